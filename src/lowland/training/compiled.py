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

# Not -ffast-math: with it a comparison may take for granted that no number is NaN or infinite. -O3
# takes four times as long, and the loops, whose vectors are written out, run no faster.
_FLAGS = ("-O2", "-march=native", "-fno-math-errno", "-fno-trapping-math", "-fPIC", "-shared")
_LONGEST = 120  # seconds that the compiler may take


@functools.cache
def library(source: Path, macros: tuple[str, ...]) -> ctypes.CDLL | None:
    """The compiled source, from the user's cache if it is there; None if it cannot be compiled.

    The cache is ``$XDG_CACHE_HOME/lowland``, by default ``~/.cache/lowland``. Where that cannot be
    written, each process compiles for itself.
    """
    text = source.read_bytes()
    told = "\n".join([_processor(), *_FLAGS, *macros])
    name = f"{source.stem}-{hashlib.sha256(told.encode() + text).hexdigest()[:16]}.so"
    with contextlib.suppress(OSError, RuntimeError):  # no home, not writable, damaged
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lowland"
        with contextlib.suppress(OSError):
            return ctypes.CDLL(str(cache / name))
        cache.mkdir(parents=True, exist_ok=True)
        with _built(source, macros, cache) as built:
            if built is not None:
                # Whole or absent, also for another process and after a power cut: loading a part
                # of a library would end the process.
                with built.open("rb") as file:
                    os.fsync(file.fileno())
                built.replace(cache / name)
                return ctypes.CDLL(str(cache / name))
    with contextlib.suppress(OSError), _built(source, macros, None) as built:
        return None if built is None else ctypes.CDLL(str(built))
    return None


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
