"""One run on disk: a directory of files, with a list of their checksums."""

import contextlib
import hashlib
import json
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

RUN, SUMS, REPORT = "run.json", "SHA256SUMS", "report.html"

_SUM = re.compile(r"([0-9a-f]{64}) [ *](.+)")


class Damaged(Exception):
    """A run is not as it was written; the text says which file is wrong, and how."""


def damage_of(folder: Path) -> str | None:
    """What is wrong with a run, or None if it is whole."""
    try:
        with _reading(folder):
            read_run(folder)
            sums = _read_sums(folder)
            there = {name for name in os.listdir(folder) if not is_litter(name)}
            for name in sorted(there - sums.keys() - {SUMS, REPORT}):
                raise Damaged(f"{name} is not in {SUMS}")
            for name, expected in sorted(sums.items()):
                with open(folder / name, "rb") as file:
                    if hashlib.file_digest(file, "sha256").hexdigest() != expected:
                        raise Damaged(f"{name} does not match {SUMS}")
    except Damaged as wrong:
        return str(wrong)
    return None


def read_run(folder: Path) -> dict[str, Any]:
    """The document of a run, checked against its checksum."""
    with _reading(folder):
        content = (folder / RUN).read_bytes()
        if sha256(content) != _read_sums(folder).get(RUN):
            raise Damaged(f"{RUN} does not match {SUMS}")
        run = json.loads(content)
        if not isinstance(run, dict) or run.get("key") != folder.name:
            raise Damaged(f"{RUN} belongs to another run")
        return run


def _read_sums(folder: Path) -> dict[str, str]:
    lines = (folder / SUMS).read_text(encoding="utf-8").removesuffix("\n").split("\n")
    matches = [_SUM.fullmatch(line) for line in lines]
    if not all(matches):
        raise Damaged(f"{SUMS} is not a list as of sha256sum")
    return {match[2]: match[1] for match in matches if match}


@contextlib.contextmanager
def _reading(folder: Path) -> Iterator[None]:
    """Raise Damaged for a file of the run that is missing, unreadable or no text."""
    try:
        yield
    except FileNotFoundError as error:
        raise Damaged(f"{Path(error.filename).name} is missing") from error
    except OSError as error:
        name = Path(error.filename or folder).name
        raise Damaged(f"{name} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise Damaged(f"{RUN} or {SUMS} is no text as it was written: {error}") from error


def is_litter(name: str) -> bool:
    """Whether a file manager or an unfinished ``write_file`` of ours leaves such a name."""
    return name.startswith(".lowland-") or name in (".DS_Store", "Thumbs.db", "desktop.ini")


def as_text(document: Mapping[str, Any]) -> str:
    """The document as JSON; numbers that are not finite become null, as JSON has none."""
    finite = with_floats(document, lambda x: x if math.isfinite(x) else None)
    return json.dumps(finite, indent=1, allow_nan=False) + "\n"


def with_floats(value: Any, change: Callable[[float], Any]) -> Any:
    """The same value in plain dictionaries and lists, with ``change`` applied to every float."""
    if isinstance(value, Mapping):
        for name in value:
            if not isinstance(name, str):
                raise TypeError(f"{name!r} as a name is {type(name).__name__}")
        return {name: with_floats(inner, change) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [with_floats(inner, change) for inner in value]
    return change(value) if isinstance(value, float) else value


def sha256(content: bytes) -> str:
    """The checksum of a file, as ``sha256sum`` prints it."""
    return hashlib.sha256(content).hexdigest()
