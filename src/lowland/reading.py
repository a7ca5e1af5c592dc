"""Reading files that others may have made: regular ones only, and none larger than it can be.

A name in a folder of somebody else may be a link to a device, or a pipe that nobody writes to. To
read either never ends. What cannot be read here is an ``OSError``, like any file that cannot.
"""

import errno
import io
import os
import stat
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

from lowland.errors import InputError

if TYPE_CHECKING:
    import numpy as np

TEXT = 2**26  # bytes of a document: our own take a hundredth of that
_HALF = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2  # of the memory


def opened(path: Path, most: int = _HALF) -> io.BufferedReader:
    """Open a regular file of at most so many bytes, by default half of the machine's memory."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # no waiting for pipes
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            kind = "a directory" if stat.S_ISDIR(status.st_mode) else "a device or a pipe"
            code = errno.EISDIR if stat.S_ISDIR(status.st_mode) else errno.EINVAL
            raise OSError(code, f"it is {kind}, and no file", str(path))
        if status.st_size > most:
            words = f"it has {status.st_size:,} bytes, and at most {most:,} are read"
            raise OSError(errno.EFBIG, words, str(path))
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def content(path: Path, most: int = _HALF) -> bytes:
    """Return the content of such a file, and no more than it has when it is opened."""
    with opened(path, most) as file:
        return file.read(os.fstat(file.fileno()).st_size)


def text(path: Path) -> str:
    """Return the text of a document."""
    return content(path, TEXT).decode()


def check_file(path: Path, what: str) -> None:
    """Raise unless a file can be read that a library opens by its name."""
    try:
        opened(path).close()
    except OSError as error:
        raise InputError(f"{what} {path} cannot be read: {error.strerror}") from error


def arrays(archive: bytes, name: str) -> "dict[str, np.ndarray]":
    """Return the arrays of an archive without compression: they take no more than it does."""
    import numpy as np

    try:
        with zipfile.ZipFile(io.BytesIO(archive)) as members:
            size = sum(member.file_size for member in members.infolist())
        if size > len(archive):
            raise InputError(
                f"{name} has {len(archive):,} bytes and unpacks to {size:,}, and Lowland does not "
                "compress it"
            )
        with np.load(io.BytesIO(archive), allow_pickle=False) as stored:
            return {key: stored[key] for key in stored.files}
    except InputError:
        raise
    except Exception as error:  # zip, zlib and numpy each have their own for damaged bytes
        said = " ".join(f"{type(error).__name__}: {error}".split())
        raise InputError(f"{name} cannot be read ({said})") from error
