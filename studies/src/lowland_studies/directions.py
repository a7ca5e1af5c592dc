"""Tests of claims about all directions of a run, or about the leading ones; see ``claims``."""

import math

import numpy as np

from lowland_studies import intervals
from lowland_studies.claims import Test
from lowland_studies.evidence import Runs, Series, words_of
from lowland_studies.intervals import TOO_FEW, Region, above, below, nothing
from lowland_studies.study import Finding


def falls_everywhere(array: Series, key: str) -> Test:
    """The array falls with the setting in every direction; see :func:`rises_everywhere`."""
    return _everywhere(array, key, below(0.0))


def rises_everywhere(array: Series, key: str) -> Test:
    """The array rises with the setting in every direction.

    The effect is that of the direction in which it rises least, as in :func:`rises`.
    """
    return _everywhere(array, key, above(0.0))


def _everywhere(array: Series, key: str, region: Region) -> Test:
    sign, moves = (1, "rise") if region.top == math.inf else (-1, "fall")

    def test(runs: Runs) -> Finding:
        y, values, seeds = intervals.table(runs, runs.array(array), key)
        unit = f"in the direction where it {moves}s least, {intervals.range_of(values)}"
        if len(values) < 2:
            return nothing(unit, f"{key} takes {len(values)} value(s); a trend needs two")
        if len(seeds) < 2:
            return nothing(unit, TOO_FEW.format(len(seeds)))
        there = np.isfinite(y)
        lacking = ~there.any(axis=2, keepdims=True)  # runs that did not converge
        y = y[:, :, (there | lacking).all(axis=(0, 1))]  # directions that all others have
        if not y.shape[2]:
            return nothing(unit, "no direction is in all runs")
        changes = intervals.slopes(y, values) / intervals.level_of(y)  # (seeds, n)
        shown = [intervals.interval(change) for change in changes.T]
        wide = [intervals.interval(change, intervals.corrected(len(shown))) for change in changes.T]
        verdict = intervals.of_all(
            [region.judge(*i[1:]) for i in shown], [region.judge(*i[1:]) for i in wide]
        )
        least = min(range(len(shown)), key=lambda n: sign * shown[n][0])
        count = sum(sign * effect > 0 for effect, _, _ in shown)
        note = f"the means of {count} of {len(shown)} directions {moves}; least at n = {least + 1}"
        note += f"; {len(seeds)} seeds"
        return intervals.finding(*shown[least], unit, region, note, percent=True, verdict=verdict)

    return test


def proportional(x: Series, y: Series, largest: int = 10, within: float = 0.2) -> Test:
    """Over the leading directions one array is proportional to another: its power is 1."""
    unit = f"power of {words_of(x)} that {words_of(y)} follows over the first {largest} directions"

    def power(runs: Runs) -> np.ndarray:
        a, b = (runs.array(array)[:, :largest] for array in (x, y))
        return np.array([_power(*both) for both in zip(a, b, strict=True)])

    power.__name__ = unit
    region = Region(1 - within, 1 + within)

    def test(runs: Runs) -> Finding:
        note = f"holds within 1 ± {within:g}"
        return intervals.each_seed(runs, runs.column(power), unit, region, note)

    return test


def _power(x: np.ndarray, y: np.ndarray) -> float:
    """The slope of log y on log x."""
    positive = (x > 0) & (y > 0)
    if positive.sum() < 3:
        return math.nan
    u, v = np.log(x[positive]), np.log(y[positive])
    u = u - u.mean()
    return float(u @ v / (u @ u))
