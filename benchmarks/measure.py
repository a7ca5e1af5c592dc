"""Timing: everything that is compared runs in turn in one process, so that noise hits all alike."""

import math
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

# One sample lasts at least this long; shorter work is repeated within it.
SAMPLE_SECONDS = 0.05


@dataclass(frozen=True)
class Timing:
    """Seconds for one piece of work, measured several times."""

    samples: tuple[float, ...]

    @property
    def median(self) -> float:
        return float(np.median(self.samples))

    @property
    def spread(self) -> tuple[float, float]:
        """The quartiles."""
        low, high = np.quantile(self.samples, [0.25, 0.75])
        return float(low), float(high)

    def __str__(self) -> str:
        if len(self.samples) == 1:
            return f"{_short(self.median)} (1 run)"
        low, high = self.spread
        return f"{_short(self.median)} ({_short(low)} to {_short(high)})"


def once(work: Callable[[], Any]) -> tuple[Any, float]:
    """The result and the seconds it took."""
    began = time.perf_counter()
    result = work()
    return result, time.perf_counter() - began


def interleaved(
    works: dict[str, Callable[[], Any]], warm: dict[str, float], repeats: int
) -> dict[str, Timing]:
    """Each work in turn, ``repeats`` times over; ``warm`` has the seconds of an earlier run."""
    inner = {name: math.ceil(SAMPLE_SECONDS / warm[name]) for name in works}
    samples: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(repeats):
        for name, work in works.items():
            began = time.perf_counter()
            for _ in range(inner[name]):
                work()
            samples[name].append((time.perf_counter() - began) / inner[name])
    return {name: Timing(tuple(taken)) for name, taken in samples.items()}


def peak_memory(row: str, contestant: str) -> float:
    """GiB that a process of its own needed at most, with Python, torch, the model and the data."""
    # Not getrusage: after a fork its maximum is that of the parent.
    code = (
        "import contest; "
        f"contest.work_of({row!r}, {contestant!r})(); "
        "print(next(l for l in open('/proc/self/status') if l.startswith('VmHWM')).split()[1])"
    )
    folder = Path(__file__).parent
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=folder, check=True, stdout=subprocess.PIPE, text=True)
    return int(done.stdout.split()[-1]) / 2**20  # KiB


def _short(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-6:.3g} µs"
