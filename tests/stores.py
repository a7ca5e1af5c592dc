"""Runs to keep in a store, and processes to keep them."""

import hashlib
import subprocess
import sys
from pathlib import Path
from typing import Any

from lowland.sweep import Store
from lowland.sweep.keys import key_of, source_of

FILES = {
    "results.json": b'{"format": 1}',
    "arrays.npz": bytes(range(256)) * 40,
    "weights.safetensors": b"w" * 5000,
    "epochs.csv": b"epoch,loss\n1,0.5\n",
}
NAMES = {*FILES, "run.json", "SHA256SUMS"}


def keys(count: int) -> list[str]:
    return [key_of({"i": i}) for i in range(count)]


def run_of(i: int, **more: Any) -> dict[str, Any]:
    return {
        "key": key_of({"i": i}),
        "configuration": {"i": i},
        "status": "done",
        "reason": None,
        "results": {"loss": 0.1 * i, "fits": True},
        "seconds": 1.5,
        "code": {"lowland": "0", "source": source_of({})},
        **more,
    }


def put(store: Store, i: int, **more: Any) -> str:
    key = key_of({"i": i})
    assert store.write(key, run_of(i, **more), FILES)
    return key


def names(folder: Path) -> set[str]:
    return {p.name for p in folder.iterdir()}


def content(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def seal(folder: Path) -> None:
    """Let SHA256SUMS agree with the files as they are now, as a forger would."""
    names = sorted(p.name for p in folder.iterdir() if p.name not in ("SHA256SUMS", "report.html"))
    sums = {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in names}
    lines = [f"{digest}  {name}\n" for name, digest in sums.items()]
    (folder / "SHA256SUMS").write_text("".join(lines) + "# written by Lowland\n")


def start(code: str, *arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)], stdout=subprocess.PIPE, text=True
    )


def finish(process: subprocess.Popen[str]) -> str:
    out, _ = process.communicate()
    return out


def kill(process: subprocess.Popen[str]) -> str:
    process.kill()
    return finish(process)
