"""Keeping to the problem's memory budget: how many samples fit, and giving back what was freed."""

import ctypes
import os
import sys

from lowland.errors import InputError
from lowland.problem import Problem

# Bytes in flight at once: more of them only leave the processor's caches.
_CACHED = 1 << 27


def samples_within(problem: Problem, each: int) -> int:
    """How many samples of ``each`` bytes to take at once; an error if not even one fits."""
    fits = problem.memory // each
    if fits < 1:
        raise InputError(
            f"one sample needs {each / 2**20:,.1f} MiB, but the memory budget is "
            f"{problem.memory / 2**20:,.1f} MiB; pass Problem(memory=...) with more bytes"
        )
    return min(fits, max(_CACHED // each, 32))


def give_back(problem: Problem) -> None:
    """Give memory that was freed back to the system, if the process holds more than its budget.

    glibc keeps blocks of up to 32 MiB for others of their size, and the layers of most networks are
    such blocks: after some passes in float64 it kept 1.7 GiB of a ResNet-18. Of other libraries
    nothing is asked.
    """
    if sys.platform != "linux":
        return
    with open("/proc/self/statm", encoding="ascii") as pages:
        resident = int(pages.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if resident > problem.memory and trim is not None:
        trim(0)
