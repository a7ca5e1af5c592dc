"""The sole right to do a run: a locked file, which the system unlocks when its process ends.

Locks are those of ``flock``: they hold between processes, and between threads that open the file
on their own.
"""

import contextlib
import fcntl
import os
from pathlib import Path


class RunLock:
    """The sole right to do a run, held until ``release`` or the end of the process.

    If the process ends without a release, children that it forked go on holding the lock; spawned
    ones do not.
    """

    def __init__(self, path: Path, descriptor: int) -> None:
        self._path = path
        self._descriptor: int | None = descriptor

    def release(self) -> None:
        """Let other processes take the lock."""
        if self._descriptor is None:
            return
        with contextlib.suppress(OSError):
            self._path.unlink()  # before the lock goes: afterwards the file may be another's
        os.close(self._descriptor)
        self._descriptor = None

    def __enter__(self) -> "RunLock":
        return self

    def __exit__(self, *exception: object) -> None:
        self.release()


def acquire(path: Path) -> RunLock | None:
    """The lock of a file, which is made if need be; None if another process or thread holds it."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            free = _lock(descriptor)
            # Its holder may have removed the file after it was opened here.
            current = _is_at(descriptor, path)
        except BaseException:
            os.close(descriptor)
            raise
        if free and current:
            return RunLock(path, descriptor)
        os.close(descriptor)
        if current:
            return None


def is_locked(path: Path) -> bool:
    """Whether a living process holds the lock of a file."""
    # Network file systems lock only what is open for writing; nobody locks a read-only store.
    mode = os.O_RDWR if os.access(path, os.W_OK) else os.O_RDONLY
    with contextlib.suppress(OSError):
        descriptor = os.open(path, mode | os.O_NONBLOCK | os.O_CLOEXEC)  # no waiting for pipes
        try:
            return not _lock(descriptor)
        finally:
            os.close(descriptor)
    return False


def _lock(descriptor: int) -> bool:
    """Take the lock if it is free; whether that was so."""
    with contextlib.suppress(BlockingIOError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


def _is_at(descriptor: int, path: Path) -> bool:
    """Whether an open file is the one that lies at a path now."""
    with contextlib.suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    return False
