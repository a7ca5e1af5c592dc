"""Results that are whole or absent: written beside their place, then renamed into it."""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from lowland.errors import InputError


@contextlib.contextmanager
def replaced_directory(target: Path, marker: str) -> Iterator[Path]:
    """A new directory that takes the place of ``target`` when the block ends without an error.

    A directory that is already there is replaced only if it holds ``marker``, the file that says
    it is a result of ours: no user's folder is ever removed.
    """
    target = Path(os.path.abspath(target))
    if target.exists() and not target.is_dir():
        raise InputError(f"{target} is a file; choose another output directory")
    if target.is_dir() and any(target.iterdir()) and not (target / marker).is_file():
        raise InputError(
            f"{target} is not empty and holds no {marker}, so it is not a Lowland result; "
            "choose another output directory"
        )
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        beside = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    except OSError as error:
        raise InputError(
            f"cannot write the output directory {target}: {error.strerror}; choose another"
        ) from error
    try:
        beside.chmod(0o755)
        yield beside
        if target.is_dir():
            # Two renames: in between, the old result is beside its place and still whole.
            old = beside.with_name(beside.name + ".old")
            target.rename(old)
            beside.rename(target)
            shutil.rmtree(old)
        else:
            beside.rename(target)
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def check_writable(target: Path, marker: str) -> None:
    """Raise before the work rather than after it if ``target`` could not be written."""
    with contextlib.suppress(_NotYet), replaced_directory(target, marker):
        raise _NotYet


class _NotYet(Exception):
    """Leaves a replaced_directory block without replacing anything."""


def write_file(target: Path, text: str) -> None:
    """Write a text file so that a reader sees the old one or the new one, never a part."""
    try:
        handle, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    except OSError as error:
        raise InputError(f"cannot write {target}: {error.strerror}") from error
    try:
        with open(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(name, 0o644)
        os.replace(name, target)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
