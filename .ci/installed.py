"""Lowland as ``pip install lowland`` leaves it: run by an environment with nothing else in it.

Every module imports or names the extra that it needs, the default analysis works, and what needs
an extra or another distribution says so in one line. With the argument ``studies``, the wheel of
lowland-studies is installed as well, and its verb works.
"""

import importlib
import json
import os
import pkgutil
import re
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.metadata import metadata
from importlib.util import find_spec
from pathlib import Path

EXTRA = re.compile(r"pip install 'lowland\[(\w+)\]'")
OPTIONAL = ("mlxtend", "sklearn", "dask", "distributed", "lightning", "transformers", "sphinx")


def lowland(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command that the wheel installed."""
    command = Path(sys.executable).with_name("lowland")
    return subprocess.run([command, *arguments], capture_output=True, text=True)


def import_everything(package: str = "lowland") -> None:
    """Import each module; the ones that need an extra must name one that exists."""
    places = importlib.import_module(package).__path__
    extras = metadata("lowland").get_all("Provides-Extra") or []
    for module in pkgutil.walk_packages(places, f"{package}."):
        if module.name.endswith("__main__"):
            continue
        try:
            importlib.import_module(module.name)
        except (ImportError, ValueError) as error:
            named = EXTRA.search(str(error))
            if named is None or named[1] not in extras:
                raise
            print(f"{module.name} needs lowland[{named[1]}], and says so")


def asked_for(extra: str, *arguments: str) -> None:
    """Run a command that needs an extra: one line on stderr beyond progress, which names it."""
    done = lowland(*arguments, "--quiet")
    lines = done.stderr.splitlines()
    assert done.returncode == 2, (arguments, done)
    assert len(lines) == 1, lines
    assert f"lowland[{extra}]" in lines[0], lines
    print(lines[0])


def seconds(*command: str) -> float:
    """The median time of five runs of a command."""
    times = []
    for _ in range(5):
        began = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def main() -> None:
    """Try it, in the current directory."""
    present = [name for name in OPTIONAL if find_spec(name)]
    assert not present, f"this environment is not empty: it has {', '.join(present)}"
    import_everything()
    assert find_spec("lowland_studies") is None
    done = lowland("reproduce", "feng-tu:fig3", "--quick", "--json")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done
    assert "pip install lowland-studies" in done.stderr, done.stderr
    print(done.stderr, end="")

    done = lowland("analyze", "--out", "report")
    assert done.returncode == 0, done.stderr
    assert "64-30-30-10 on digits\nThis minimum loses" in done.stdout, done.stdout
    assert "lowland[data]" in done.stderr
    files = {"SHA256SUMS", "report.html", "results.json", "arrays.npz", "weights.safetensors"}
    assert files <= {path.name for path in Path("report").iterdir()}
    print(done.stdout.partition("\n\n")[0])
    assert lowland("report", "report", "--figures", "svg", "--quiet").returncode == 0
    assert lowland("compare", "report", "report", "--quiet").returncode == 0

    Path("grid.toml").write_text('data = "xor"\nnetwork = "2-3-2"\nmax_epochs = 1\n')
    asked_for("data", "train")
    asked_for("cluster", "sweep", "grid.toml", "--out", "runs", "--executor", "dask")

    torch, both = (
        seconds(sys.executable, "-c", f"import {what}") for what in ("torch", "torch, lowland")
    )
    command = str(Path(sys.executable).with_name("lowland"))
    print(f"import torch {torch:.2f} s, with lowland {both:.2f} s", end="; ")
    print(f"lowland --help {seconds(command, '--help'):.2f} s")


def studies() -> None:
    """Try the studies, in the current directory: some runs of a study, drawn and judged."""
    import_everything("lowland_studies")
    listed = json.loads(lowland("reproduce", "--json").stdout)
    assert "feng-tu:fig3" in [study["name"] for study in listed]
    done = lowland("reproduce", "reparametrisation", "--quick", "--json", "--quiet")
    assert done.returncode == 0, done.stderr
    verdicts = [claim["findings"] for claim in json.loads(done.stdout)["studies"][0]["claims"]]
    print(f"{len(listed)} studies; the quick version of one has {len(verdicts)} claims judged")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        studies() if sys.argv[1:] == ["studies"] else main()
