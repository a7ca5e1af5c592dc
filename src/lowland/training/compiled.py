"""C source of this package, compiled on first use for the processor at hand."""

import contextlib
import ctypes
import functools
import hashlib
import os
import platform
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from lowland.atomic import write_file
from lowland.reading import content, text

# Not -ffast-math: with it a comparison may take for granted that no number is NaN or infinite. -O3
# takes four times as long, and the loops, whose vectors are written out, run no faster.
_FLAGS = ("-O2", "-march=native", "-fno-math-errno", "-fno-trapping-math", "-fPIC", "-shared")
_LONGEST = 120  # seconds that the compiler may take


@functools.cache
def library(source: Path, macros: tuple[str, ...]) -> ctypes.CDLL | None:
    """The compiled source, from the user's cache if it is there; None if it cannot be compiled.

    The cache is ``$XDG_CACHE_HOME/lowland``, by default ``~/.cache/lowland``. Where that cannot be
    written, or belongs to somebody else, each process compiles for itself. A library is loaded from
    it only if nobody else can write it and it has the checksum beside it: part of one would end the
    process.
    """
    code = source.read_bytes()
    told = "\n".join([_processor(), *_FLAGS, *macros])
    name = f"{source.stem}-{hashlib.sha256(told.encode() + code).hexdigest()[:16]}.so"
    with contextlib.suppress(OSError, RuntimeError):  # no home, not writable, damaged
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lowland"
        cache.mkdir(mode=0o700, parents=True, exist_ok=True)
        target, mark = cache / name, cache / f"{name}.sha256"
        if not _is_ours(cache):
            raise PermissionError(f"{cache} can be written by others")
        with contextlib.suppress(OSError):
            if _is_ours(target) and _is_ours(mark) and text(mark) == _digest(target):
                return ctypes.CDLL(str(target))
        with _built(source, macros, cache) as built:
            if built is not None:
                built.chmod(0o700)  # whatever the umask
                digest = _digest(built)
                built.replace(target)
                write_file(mark, digest)
                mark.chmod(0o600)
                return ctypes.CDLL(str(target))
    with contextlib.suppress(OSError), _built(source, macros, None) as built:
        return None if built is None else ctypes.CDLL(str(built))
    return None


def _is_ours(path: Path) -> bool:
    """Whether this user alone can write a file or a folder."""
    status = path.stat()
    return status.st_uid == os.getuid() and not status.st_mode & 0o022


def _digest(path: Path) -> str:
    return hashlib.sha256(content(path)).hexdigest()


@contextlib.contextmanager
def _built(source: Path, macros: tuple[str, ...], within: Path | None) -> Iterator[Path | None]:
    """The library in a directory of its own, which is removed afterwards; None if cc fails."""
    with tempfile.TemporaryDirectory(dir=within, prefix=".lowland-") as directory:
        target = Path(directory, "built.so")
        command = ["cc", *_FLAGS, *macros, str(source), "-o", str(target), "-lm"]
        try:
            subprocess.run(command, check=True, capture_output=True, timeout=_LONGEST)
        except (OSError, subprocess.SubprocessError):
            yield None
        else:
            yield target


@functools.cache
def _processor() -> str:
    """What decides the instructions of ``-march=native``, in words."""
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
        for line in lines:
            if line.startswith(("flags", "Features")):
                return platform.machine() + line
    return f"{platform.machine()} {platform.processor()}"
