"""SHA256SUMS: the mark of a directory that Lowland wrote, and the checksums of its files.

``sha256sum -c SHA256SUMS`` reads it as well; its last line, a comment there, is the mark.
"""

import contextlib
import hashlib
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from lowland.errors import InputError
from lowland.reading import content, opened, text

SUMS = "SHA256SUMS"
REPORT = "report.html"  # is not listed: `lowland report` draws it again from the files that are
# Stands in every page that Lowland writes, within its first lines.
PAGE_MARK = '<meta name="generator" content="Lowland '

_MARK = "# written by Lowland"
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")  # of a file in the directory itself
_SUM = re.compile(rf"([0-9a-f]{{64}})  ({_NAME.pattern})")


class Damaged(Exception):
    """A directory is not as it was written; the text says which file is wrong, and how."""


def sums_text(sums: Mapping[str, str]) -> str:
    """The content of SHA256SUMS for checksums by the names of their files."""
    lines = [f"{sums[name]}  {name}" for name in sorted(sums)]
    return "\n".join([*lines, _MARK]) + "\n"


def read_sums(folder: Path) -> dict[str, str]:
    """The checksums by file that SHA256SUMS lists; every byte of it is as Lowland writes it."""
    with readable(folder):
        listed = text(folder / SUMS)
    sums = {match[2]: match[1] for line in listed.split("\n") if (match := _SUM.fullmatch(line))}
    if listed != sums_text(sums):
        raise Damaged(f"{SUMS} is not a list that Lowland wrote")
    return sums


def read_listed(folder: Path) -> dict[str, bytes]:
    """The contents of all listed files, each checked against its checksum."""
    return {name: read_checked(folder, name, expected) for name, expected in _listed(folder)}


def read_checked(folder: Path, name: str, expected: str | None) -> bytes:
    """The content of a file, checked against its checksum."""
    with readable(folder):
        found = content(folder / name)
    if sha256(found) != expected:
        raise Damaged(f"{name} does not match {SUMS}")
    return found


def check_files(folder: Path) -> None:
    """Raise Damaged unless the folder holds the listed files as they were written, and no others.

    A report may lie beside them, and what file managers leave.
    """
    listed = _listed(folder)
    with readable(folder):
        there = {name for name in os.listdir(folder) if not is_litter(name)}
    for name in sorted(there - dict(listed).keys() - {SUMS, REPORT}):
        raise Damaged(f"{name} is not in {SUMS}")
    for name, expected in listed:
        with readable(folder):
            digest = file_sha256(folder / name)
        if digest != expected:
            raise Damaged(f"{name} does not match {SUMS}")


def foreign_files(folder: Path) -> list[str]:
    """The names in a folder that Lowland did not write, or not with their present content.

    Without a list that Lowland wrote, these are all names in it.
    """
    names = sorted(name for name in os.listdir(folder) if not is_litter(name))
    try:
        sums = read_sums(folder)
    except Damaged:
        return names
    return [name for name in names if name != SUMS and not _is_ours(folder / name, sums)]


def _is_ours(path: Path, sums: Mapping[str, str]) -> bool:
    if path.name == REPORT:
        return is_page(path)
    with contextlib.suppress(OSError):
        return path.name in sums and file_sha256(path) == sums[path.name]
    return False


def is_page(path: Path) -> bool:
    """Whether a file is a page that Lowland wrote."""
    with contextlib.suppress(OSError), opened(path) as file:
        return PAGE_MARK.encode() in file.read(1000)
    return False


def is_report(path: Path) -> bool:
    """Whether a path is that of the report in a directory that Lowland wrote."""
    with contextlib.suppress(Damaged):
        return path.name == REPORT and bool(read_sums(path.parent))
    return False


def check_name(name: str) -> None:
    """Raise for a name of a file that would not lie in the directory itself, or is taken."""
    if not _NAME.fullmatch(name) or name == SUMS:
        raise InputError(
            f"expected the name of a file, of letters, digits, '.', '_' and '-', and not {name!r}"
        )


def is_litter(name: str) -> bool:
    """Whether a file manager or an unfinished ``write_file`` of ours leaves such a name."""
    return name.startswith(".lowland-") or name in (".DS_Store", "Thumbs.db", "desktop.ini")


def file_sha256(path: Path) -> str:
    """The checksum of a file, as ``sha256sum`` prints it."""
    with opened(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sha256(data: bytes) -> str:
    """The checksum of the content of a file."""
    return hashlib.sha256(data).hexdigest()


@contextlib.contextmanager
def readable(folder: Path) -> Iterator[None]:
    """Raise Damaged for a file of the folder that is missing, unreadable or no text."""
    try:
        yield
    except FileNotFoundError as error:
        raise Damaged(f"{Path(error.filename).name} is missing") from error
    except OSError as error:
        name = Path(error.filename or folder).name
        raise Damaged(f"{name} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise Damaged(f"{SUMS} is no text: {error}") from error


def _listed(folder: Path) -> list[tuple[str, str]]:
    return sorted(read_sums(folder).items())
