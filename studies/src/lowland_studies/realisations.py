"""Realisations with nothing in common: data, random labels and initial weights of their own."""

import functools
import operator
from typing import Any

from lowland.sweep.grid import Grid


def realisations(count: int, **keys: Any) -> Grid:
    """The grid of these keys once for each seed, which also chooses the samples and the noise."""
    return functools.reduce(
        operator.add, (Grid(**{"seed": i, "data_seed": i, **keys}) for i in range(count))
    )
