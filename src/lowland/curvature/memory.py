"""How many samples fit the problem's memory budget."""

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
