"""Claims about algebra, on random instances in place of runs: an instance is a realisation.

The problem is Eq. 17 of Tsuzuku et al. in the logarithms of its variances (App. B):
``S(x, y) = sum_ij a_ij exp(x_i + y_j) + b_ij exp(-x_i - y_j)``.
"""

import math
from collections.abc import Callable

import numpy as np

from lowland_studies import intervals
from lowland_studies.claims import Test
from lowland_studies.evidence import Runs
from lowland_studies.intervals import Region
from lowland_studies.study import Finding

_INSTANCES = 20
_PAIRS = 200  # of points between which convexity is tried
_SWEEPS = 2000


def on_instances(
    statistic: Callable[[np.random.Generator], float], unit: str, region: Region
) -> Test:
    """A test of a number of each random instance; the runs are not looked at."""

    def test(runs: Runs) -> Finding:
        numbers = [statistic(np.random.default_rng(seed)) for seed in range(_INSTANCES)]
        found = intervals.finding(*intervals.interval(np.array(numbers)), unit, region)
        note = f"{region.words}; {_INSTANCES} random instances"
        return Finding(**{**vars(found), "note": note})

    return test


def convex(random: np.random.Generator) -> float:
    """The least excess of S between two points over S in their middle, as a share of the former.

    Nowhere below 0, to rounding, if S is convex.
    """
    a, b = random.exponential(size=(2, 6, 9))
    least = math.inf
    for _ in range(_PAIRS):
        (x, y), (u, v) = ((random.normal(size=6), random.normal(size=9)) for _ in range(2))
        ends = (_value(a, b, x, y) + _value(a, b, u, v)) / 2
        least = min(least, 1 - _value(a, b, (x + u) / 2, (y + v) / 2) / ends)
    return least


def lambda_factor(random: np.random.Generator) -> float:
    """Eq. 17's minimum at a random lambda over that at 1/2, times sqrt(2 lambda): 1 by algebra."""
    a, b = random.exponential(size=(2, 6, 9))
    weight = float(random.uniform(0.1, 10))
    return _least(a, b / (2 * weight)) / _least(a, b) * math.sqrt(2 * weight)


def _value(a: np.ndarray, b: np.ndarray, x: np.ndarray, y: np.ndarray) -> float:
    variance = np.exp(x[:, None] + y)
    return float((a * variance + b / variance).sum())


def _least(a: np.ndarray, b: np.ndarray) -> float:
    """The minimum of S by gradient descent with a step that is halved where S would rise."""
    x, y, step = np.zeros(len(a)), np.zeros(a.shape[1]), 0.1
    value = _value(a, b, x, y)
    for _ in range(_SWEEPS):
        variance = np.exp(x[:, None] + y)
        slope = a * variance - b / variance
        moved = x - step * slope.sum(1), y - step * slope.sum(0)
        new = _value(a, b, *moved)
        if new <= value:
            (x, y), value, step = moved, new, 1.2 * step
        else:
            step /= 2
    return value
