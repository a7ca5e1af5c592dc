"""Tests of claims over realisations: an effect, its 95 % interval, and a verdict.

Each function here returns a test, which maps runs to a :class:`Finding`. Realisations are seeds:
every one of them gives one number, and the interval is Student's over these numbers, so that what a
seed does to all settings alike is no noise. A column is the name of one in the table, or a function
of the runs that gives a number for each of them.

A claim about all of several values holds if it holds at each, at the level of 95 %, and does not
hold if it fails at one of them, at a level corrected for their number; with a claim that one of
them is enough for it is the other way round. The interval that is shown has 95 % either way.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from lowland_studies import intervals
from lowland_studies.evidence import Column, Runs, words_of
from lowland_studies.intervals import LEVEL, TOO_FEW, Region, above, below, joined, nothing
from lowland_studies.study import Finding

Test = Callable[[Runs], Finding]


# --- how a column changes with a setting ---------------------------------------------------------


def falls(column: Column, key: str) -> Test:
    """The column falls as the setting grows.

    The effect is the slope of each seed's straight line, against the logarithm of the setting
    unless that takes 0, times the whole range of the setting, relative to the mean of the column.
    """
    return _trend(column, key, below(0.0))


def rises(column: Column, key: str) -> Test:
    """The column rises as the setting grows; see :func:`falls`."""
    return _trend(column, key, above(0.0))


def rises_slightly(column: Column, key: str, most: float = 0.2) -> Test:
    """The column rises as the setting grows, by no more than a part of its mean."""
    return _trend(column, key, Region(0.0, most, open=True), f"holds up to {most:.0%}")


def _trend(column: Column, key: str, region: Region, note: str = "") -> Test:
    def test(runs: Runs) -> Finding:
        values, y, lacking = intervals.paired(runs, column, key)
        unit = intervals.range_of(values)
        if len(values) < 2:
            return nothing(unit, f"{key} takes {len(values)} value(s); a trend needs two")
        if len(y) < 2:
            return nothing(unit, joined(TOO_FEW.format(len(y)), lacking))
        changes = intervals.slopes(y, values) / intervals.level_of(y)
        return intervals.judged(changes, unit, region, joined(note, lacking), percent=True)

    return test


def falls_most(column: Column, other: Column, key: str, of: Column) -> Test:
    """The column falls as the setting grows, by more than the other one changes either way.

    The effect is the fall of the one less the change of the other, relative to the mean of ``of``;
    each is that of a straight line, as in :func:`falls`.
    """
    return _most(column, other, key, of, -1)


def rises_most(column: Column, other: Column, key: str, of: Column) -> Test:
    """The column rises by more than the other one changes; see :func:`falls_most`."""
    return _most(column, other, key, of, 1)


def _most(column: Column, other: Column, key: str, of: Column, sign: int) -> Test:
    moves = "rises" if sign > 0 else "falls"

    def test(runs: Runs) -> Finding:
        unit = f"of {words_of(of)}: how much more {words_of(column)} {moves}"
        unit += f" than {words_of(other)} changes"
        # Together, so that runs which lack one of them are left out of both.
        values, y, lacking = intervals.paired(
            runs, lambda r: r.column(column) + 0 * r.column(other), key
        )
        _, z, _ = intervals.paired(runs, lambda r: r.column(other) + 0 * r.column(column), key)
        if len(values) < 2:
            return nothing(unit, f"{key} takes {len(values)} value(s); a trend needs two")
        most = sign * intervals.slopes(y, values) - np.abs(intervals.slopes(z, values))
        size = abs(np.nanmean(runs.column(of)))
        return intervals.judged(most / size, unit, above(0.0), lacking, percent=True)

    return test


def unchanged(column: Column, key: str, within: float = 0.2) -> Test:
    """The column stays, at every value of the setting, within a part of its mean of the first.

    The effect is the largest change.
    """
    region = Region(-within, within)

    def test(runs: Runs) -> Finding:
        values, y, lacking = intervals.paired(runs, column, key)
        unit = f"at most, {intervals.range_of(values)}"
        note = joined(f"holds within ±{within:.0%}", lacking)
        if len(values) < 2:
            return nothing(unit, f"{key} takes {len(values)} value(s); a change needs two")
        changes = [
            change[np.isfinite(change)]
            for change in (y[:, 1:] - y[:, :1]).T / intervals.level_of(y)
        ]
        if min(map(len, changes)) < 2:
            return nothing(unit, joined(TOO_FEW.format(min(map(len, changes))), note))
        shown = [intervals.interval(change) for change in changes]
        wide = [intervals.interval(change, intervals.corrected(len(changes))) for change in changes]
        verdict = intervals.of_all(
            [region.judge(*i[1:]) for i in shown], [region.judge(*i[1:]) for i in wide]
        )
        largest = max(shown, key=lambda change: abs(change[0]))
        note = joined(note, f"{len(y)} seeds")
        return intervals.finding(*largest, unit, region, note, percent=True, verdict=verdict)

    return test


def not_monotone(column: Column, key: str) -> Test:
    """Somewhere inside the range of the setting the column lies beyond both of its ends.

    The effect is how far, at the place where it is farthest, relative to the mean.
    """

    def test(runs: Runs) -> Finding:
        values, y, lacking = intervals.paired(runs, column, key)
        unit = f"of its mean, by which it goes beyond both ends, {intervals.range_of(values)}"
        if len(values) < 3:
            return nothing(unit, f"{key} takes {len(values)} value(s); an inside needs three")
        y = y / intervals.level_of(y)
        beyond = [
            [change[np.isfinite(change)] for change in (inner - y[:, [0, -1]].T)]
            for inner in y[:, 1:-1].T
        ]
        if (fewest := min(len(change) for both in beyond for change in both)) < 2:
            return nothing(unit, joined(TOO_FEW.format(fewest), lacking))

        def farthest(level: float) -> tuple[float, float, float]:
            candidates = []
            for both in beyond:
                for sign in (1, -1):
                    each = [intervals.interval(sign * change, level) for change in both]
                    candidates.append(np.min(each, axis=0))
            effect, low, high = np.max(candidates, axis=0)
            return effect, low, high

        region = above(0.0)
        wide = farthest(intervals.corrected(2 * (len(values) - 2)))
        note = joined(lacking, f"{len(y)} seeds")
        return intervals.finding(
            *farthest(LEVEL),
            *(unit, region, note),
            percent=True,
            verdict=region.judge(*wide[1:]),
        )

    return test


# --- the size of a column ------------------------------------------------------------------------


def larger_part(column: Column, of: Column, share: float = 0.5) -> Test:
    """The column is more than a share of another."""
    return _share(column, of, above(share))


def smaller_part(column: Column, of: Column, share: float) -> Test:
    """The absolute value of the column is less than a share of another."""
    return _share(column, of, below(share), np.abs)


def part_between(column: Column, of: Column, low: float, high: float) -> Test:
    """The column is a share of another that lies between two numbers."""
    return _share(column, of, Region(low, high))


def _share(
    column: Column,
    of: Column,
    region: Region,
    size: Callable[[np.ndarray], np.ndarray] = np.asarray,
) -> Test:
    unit = f"is the share of {words_of(column)} in {words_of(of)}"

    def test(runs: Runs) -> Finding:
        shares = size(runs.column(column) / runs.column(of))
        return intervals.each_seed(runs, shares, unit, region, region.words, percent=True)

    return test


def between(column: Column, low: float, high: float) -> Test:
    """The mean of the column lies between two numbers, or on one side where one is infinite."""
    region = Region(low, high)

    def test(runs: Runs) -> Finding:
        unit = f"mean of {words_of(column)}"
        return intervals.each_seed(runs, runs.column(column), unit, region, region.words)

    return test


def at_least(column: Column, bound: float) -> Test:
    """The column is nowhere below a bound: a seed counts with the least of its runs."""
    region = Region(bottom=bound)

    def test(runs: Runs) -> Finding:
        unit = f"least {words_of(column)}"
        return intervals.each_seed(runs, runs.column(column), unit, region, region.words, np.min)

    return test


# --- columns against each other ------------------------------------------------------------------


def correlated(x: Column, y: Column, at_least: float = 0.8) -> Test:
    """Two columns go together over runs: Pearson's correlation is above a bound.

    Its interval is Student's on Fisher's scale, with the standard error of a jackknife that leaves
    out one realisation after the other, as the runs of one are not independent.
    """
    unit = f"correlation of {words_of(x)} and {words_of(y)}"
    region = above(at_least)

    def test(runs: Runs) -> Finding:
        numbers = intervals.together(runs, x, y)
        if lacking := intervals.too_few(numbers):
            return nothing(unit, lacking)
        z, error = intervals.jackknife(
            numbers, lambda a, b: float(np.arctanh(intervals.pearson(a, b)))
        )
        reach = intervals.student(len(numbers) - 1) * error
        order = intervals.ranks(*np.hstack(numbers))
        note = f"{region.words}; {order}; {intervals.counted(numbers)}"
        r, low, high = map(math.tanh, (z, z - reach, z + reach))
        return intervals.finding(r, low, high, unit, region, note)

    return test


def stronger(x1: Column, x2: Column, y: Column) -> Test:
    """The first column goes together with the last more closely than the second does.

    Closeness is the size of the correlation, whatever its sign: a column that goes against the
    other is not a weak signal.
    """
    unit = f"|correlation| with {words_of(y)}: that of {words_of(x1)} minus that of {words_of(x2)}"

    def closer(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> float:
        return abs(intervals.pearson(a, c)) - abs(intervals.pearson(b, c))

    def test(runs: Runs) -> Finding:
        numbers = intervals.together(runs, x1, x2, y)
        if lacking := intervals.too_few(numbers):
            return nothing(unit, lacking)
        more, error = intervals.jackknife(numbers, closer)
        reach = intervals.student(len(numbers) - 1) * error
        a, b, c = np.hstack(numbers)
        both = f"{intervals.pearson(a, c):.2f} against {intervals.pearson(b, c):.2f}"
        note = f"{both}; {intervals.counted(numbers)}"
        return intervals.finding(more, more - reach, more + reach, unit, above(0.0), note)

    return test


def weaker(x: Column, y: Column, here: dict[str, Any], others: Sequence[dict[str, Any]]) -> Test:
    """Two columns go together less closely in some runs than on average in others.

    Closeness is the size of the correlation, as in :func:`stronger`.
    """
    unit = f"|correlation| of {words_of(x)} and {words_of(y)} here minus its mean elsewhere"

    def closeness(a: np.ndarray, b: np.ndarray) -> float:
        return abs(intervals.pearson(a, b))

    def test(runs: Runs) -> Finding:
        parts = [intervals.together(runs.where(**where), x, y) for where in (here, *others)]
        if lacking := next(filter(None, map(intervals.too_few, parts)), ""):
            return nothing(unit, f"of a kind: {lacking}")
        (r, own), *rest = (intervals.jackknife(numbers, closeness) for numbers in parts)
        effect = r - sum(other for other, _ in rest) / len(rest)
        error = math.hypot(own, *(spread / len(rest) for _, spread in rest))
        reach = intervals.student(min(map(len, parts)) - 1) * error
        note = f"{r:.2f} against " + ", ".join(f"{other:.2f}" for other, _ in rest)
        return intervals.finding(effect, effect - reach, effect + reach, unit, below(0.0), note)

    return test


# --- some runs against others --------------------------------------------------------------------


def larger(column: Column, here: dict[str, Any], there: dict[str, Any]) -> Test:
    """The column is larger in some runs than in others, such as those of another optimiser.

    The effect is the difference of a seed's means over either, relative to the mean of all there,
    or here where that is 0.
    """
    return _differ(column, here, there, above(0.0))


def smaller(column: Column, here: dict[str, Any], there: dict[str, Any]) -> Test:
    """The column is smaller in some runs than in others; see :func:`larger`."""
    return _differ(column, here, there, below(0.0))


def _differ(column: Column, here: dict[str, Any], there: dict[str, Any], region: Region) -> Test:
    unit = f"change of {words_of(column)} from {_told(there)} to {_told(here)}"

    def test(runs: Runs) -> Finding:
        own, other = (_seed_means(runs.where(**part), column) for part in (here, there))
        shared = sorted(own.keys() & other.keys())
        lacking = len(own.keys() | other.keys()) - len(shared)
        note = f"without {lacking} seed(s) that lack one of the two" if lacking else ""
        sizes = [
            abs(sum(part[seed] for seed in shared)) / max(len(shared), 1) for part in (other, own)
        ]
        size = sizes[0] or sizes[1] or 1.0
        changes = np.array([(own[seed] - other[seed]) / size for seed in shared])
        return intervals.judged(changes, unit, region, note, percent=True)

    return test


def _seed_means(runs: Runs, column: Column) -> dict[int, float]:
    """The mean of the column over the runs of each seed, without those that have no number."""
    numbers, seeds = runs.column(column), runs.column("seed")
    own = {seed: numbers[(seeds == seed) & np.isfinite(numbers)] for seed in runs.seeds}
    return {seed: float(values.mean()) for seed, values in own.items() if values.size}


def _told(settings: dict[str, Any]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in settings.items())


# --- a part of the runs, and a second look -------------------------------------------------------


def on(select: dict[str, Any] | Callable[[Runs], Runs], test: Test) -> Test:
    """The test on the runs with these settings, or on those that a function chooses."""

    def partly(runs: Runs) -> Finding:
        return test(select(runs) if callable(select) else runs.where(**select))

    return partly


def beside(test: Test, other: Test, words: str) -> Test:
    """The test; where another one, called ``words``, has another verdict, the unit says so."""

    def both(runs: Runs) -> Finding:
        own, second = test(runs), other(runs)
        if own.verdict == second.verdict:
            return own
        disagrees = (
            f"by {words} it {second.verdict}"
            if second.verdict != "undecided"
            else (f"by {words} it is undecided")
        )
        effect = second.interval.partition(" [")[0].replace("-", "−")
        return dataclasses.replace(own, unit=f"{own.unit}; {disagrees} ({effect})")

    return both
