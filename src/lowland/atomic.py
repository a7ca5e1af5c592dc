"""Results that are whole or absent: written beside their place, then renamed into it."""

import contextlib
import ctypes
import os
import secrets
import shutil
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

from lowland.errors import InputError
from lowland.manifest import REPORT, SUMS, file_sha256, foreign_files, is_page, is_report, sums_text

_SIGNALS = tuple(
    s for name in ("SIGINT", "SIGTERM", "SIGHUP") if (s := getattr(signal, name, None))
)


@contextlib.contextmanager
def replaced_directory(target: Path) -> Iterator[Path]:
    """A new directory that takes the place of ``target`` when the block ends without an error.

    It gets a list of its files' checksums (:mod:`lowland.manifest`). A directory that is already
    there is replaced only if it is empty or holds nothing but files that are as Lowland wrote
    them, by such a list: no file of the user is ever removed. An interrupt leaves the old directory
    or the new one, and nothing beside it.
    """
    with _writing(f"the output directory {target}"):
        target = Path(os.path.realpath(target))  # a link keeps pointing to where it points
        _check_replaceable(target)
        made = [p for p in target.parents if not p.exists()]  # innermost first
    beside = target.with_name(f".lowland-{secrets.token_hex(4)}")
    try:
        with _writing(f"the output directory {target}"):
            with _undisturbed():
                target.parent.mkdir(parents=True, exist_ok=True)
                beside.mkdir()
            yield beside
            sums = {p.name: file_sha256(p) for p in beside.iterdir() if p.name != REPORT}
            (beside / SUMS).write_text(sums_text(sums), encoding="utf-8")
            with _undisturbed():
                _take_place(beside, target)
    finally:
        with _undisturbed():
            # After the exchange this is the old result, otherwise the unfinished one.
            shutil.rmtree(beside, ignore_errors=True)
            with contextlib.suppress(OSError):  # parents stay if they hold something
                for parent in made:
                    parent.rmdir()


def check_writable(target: Path) -> None:
    """Raise before the work rather than after it if ``target`` could not be replaced."""
    with contextlib.suppress(_NotYet), replaced_directory(target):
        raise _NotYet


class _NotYet(Exception):
    """Leaves a replaced_directory block without replacing anything."""


def write_file(target: Path, content: str | bytes) -> None:
    """Write a file so that a reader sees the old one or the new one, never a part."""
    if isinstance(content, str):
        content = content.encode(errors="replace")
    beside = target.with_name(f".lowland-{secrets.token_hex(4)}")
    try:
        with _writing(str(target)):
            beside.write_bytes(content)
            os.replace(beside, target)
    finally:
        with _undisturbed(), contextlib.suppress(OSError):
            beside.unlink()


def write_page(target: Path, text: str) -> None:
    """Write a page in the same way; a file in its place is replaced only if it is such a page."""
    check_page(target)
    write_file(target, text)


def check_page(target: Path) -> None:
    """Raise if a page could not take this place, because something of the user's is there.

    The report of a directory that Lowland wrote is Lowland's, whatever became of it.
    """
    if target.is_file() and not is_page(target) and not is_report(target):
        raise InputError(
            f"{target} is no page that Lowland wrote, and is not replaced; move it away, or choose "
            "another file"
        )


def _check_replaceable(target: Path) -> None:
    advice = "choose another output directory"
    for parent in (target, *target.parents):
        if parent.exists() and not parent.is_dir():
            within = "" if parent == target else f", so {target} cannot be inside it"
            raise InputError(f"{parent} is a file{within}; {advice}")
    if target.is_symlink():  # after all links were followed
        raise InputError(f"{target} is a link in a circle; {advice}")
    if not target.exists():
        return
    if target.samefile(os.curdir):
        raise InputError(
            f"{target} is the current directory, which cannot be replaced as a whole; choose one "
            "inside it, such as lowland-report"
        )
    if os.path.ismount(target):
        raise InputError(
            f"{target} is a mount point, which cannot be replaced as a whole; choose a directory "
            f"inside it, such as {target / 'lowland-report'}"
        )
    foreign = foreign_files(target)
    if foreign:
        more = f" and {len(foreign) - 1} more" if len(foreign) > 1 else ""
        raise InputError(
            f"{target} holds {foreign[0]!r}{more}, which Lowland did not write, or not as it is "
            f"now, and will not remove; move it away, or {advice}"
        )


def _take_place(beside: Path, target: Path) -> None:
    """Rename ``beside`` to ``target``; what was there, if anything, is ``beside`` afterwards."""
    if not target.exists():
        beside.rename(target)
    elif not _exchange(beside, target):
        # Two renames. A process killed in between leaves both results beside their place, whole.
        old = beside.with_name(beside.name + ".old")
        target.rename(old)
        try:
            beside.rename(target)
        except OSError:
            old.rename(target)
            raise
        old.rename(beside)


def _exchange(a: Path, b: Path) -> bool:
    """Let two directories swap names in one step, if the system has one; Python offers none."""
    here, swap = -100, 2  # AT_FDCWD, RENAME_EXCHANGE / RENAME_SWAP
    names = os.fsencode(a), os.fsencode(b)
    try:
        libc = ctypes.CDLL(None)
        if sys.platform == "darwin":
            return libc.renamex_np(*names, ctypes.c_uint(swap)) == 0
        return libc.renameat2(here, names[0], here, names[1], ctypes.c_uint(swap)) == 0
    except (AttributeError, OSError, TypeError):  # an old libc, or Windows
        return False


@contextlib.contextmanager
def _writing(what: str) -> Iterator[None]:
    """Say what could not be written, and why, on one line."""
    try:
        yield
    except OSError as error:
        raise InputError(
            f"cannot write {what}: {error.strerror or error}; choose another place, or make room "
            "and permission there"
        ) from error


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Let signals wait until the block is done, then deliver them.

    The handlers are replaced, and not the signals masked: a masked signal reaches any other
    thread, and torch has many.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # Python delivers signals to the main thread only
        return
    waiting: list[int] = []
    before = {}
    try:
        for number in _SIGNALS:
            handler = signal.getsignal(number)
            if handler is not None:  # None: installed by something that is not Python
                before[number] = handler
                signal.signal(number, lambda number, frame: waiting.append(number))
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for number in waiting:
            signal.raise_signal(number)
