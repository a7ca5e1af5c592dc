"""Tests of claims over realisations: an effect, its 95 % interval, and a verdict.

Each function here returns a test, which maps runs to a :class:`Finding`. Realisations are seeds:
every one of them gives one number, and the interval is Student's over these numbers, so that what a
seed does to all settings alike is no noise. A column is the name of one in the table, or a function
of the runs that gives a number for each of them.
"""

import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from lowland.errors import InputError
from lowland.studies.evidence import Column, Runs, Series
from lowland.studies.study import Finding, Verdict

Test = Callable[[Runs], Finding]

LEVEL = 0.95
_RESAMPLES = 2000
_TOO_FEW = "{} realisation(s); an interval needs two"


# --- how a column changes with a setting ---------------------------------------------------------


def falls(column: Column, key: str) -> Test:
    """The column falls as the setting grows.

    The effect is the slope of each seed's straight line, against the logarithm of the setting
    unless that takes 0, times the whole range of the setting, relative to the mean of the column.
    """
    return _trend(column, key, -1)


def rises(column: Column, key: str) -> Test:
    """The column rises as the setting grows; see :func:`falls`."""
    return _trend(column, key, 1)


def _trend(column: Column, key: str, sign: int) -> Test:
    def test(runs: Runs) -> Finding:
        values, y, note = _paired(runs, column, key)
        unit = _change(column, key, values)
        if len(values) < 2:
            return _nothing(unit, f"{key} takes {len(values)} value(s); a trend needs two")
        return _judged(_slopes(y, values) / abs(y.mean()), unit, _side(0.0, sign), note)

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
        unit = f"of the mean {_name(of)}, by which {_name(column)} {moves} more with {key}"
        unit += f" than {_name(other)} changes"
        # Together, so that seeds which lack one of them are left out of both.
        values, y, note = _paired(runs, lambda r: r.column(column) + 0 * r.column(other), key)
        _, z, _ = _paired(runs, lambda r: r.column(other) + 0 * r.column(column), key)
        if len(values) < 2:
            return _nothing(unit, f"{key} takes {len(values)} value(s); a trend needs two")
        most = sign * _slopes(y, values) - np.abs(_slopes(z, values))
        return _judged(most / abs(np.nanmean(runs.column(of))), unit, _side(0.0, 1), note)

    return test


def _slopes(y: np.ndarray, values: Sequence[float]) -> np.ndarray:
    """How much the straight line of each seed, a row of y, rises over the whole range."""
    x = np.log(values) if min(values) > 0 else np.asarray(values)
    x = (x - x.mean()) / (x.max() - x.min())
    return (y @ x) / (x @ x)


def unchanged(column: Column, key: str, within: float = 0.2) -> Test:
    """The column is the same at both ends of the setting, up to a part ``within`` of its mean."""

    def test(runs: Runs) -> Finding:
        values, y, note = _paired(runs, column, key)
        unit = _change(column, key, values)
        if len(values) < 2:
            return _nothing(unit, f"{key} takes {len(values)} value(s); a change needs two")
        change = (y[:, -1] - y[:, 0]) / abs(y.mean())
        note = _and(f"holds within ±{within:g}", note)
        return _judged(change, unit, _inside(-within, within), note)

    return test


def not_monotone(column: Column, key: str) -> Test:
    """Somewhere inside the range of the setting the column lies beyond both of its ends.

    The effect is how far, at the place where it is farthest, relative to the mean. Every place and
    both directions are looked at, and the level of each interval is Bonferroni's for all of them.
    """

    def test(runs: Runs) -> Finding:
        values, y, note = _paired(runs, column, key)
        unit = f"of the mean, {_name(column)} inside the range of {key} beyond both ends"
        if len(values) < 3:
            return _nothing(unit, f"{key} takes {len(values)} value(s); an inside needs three")
        if len(y) < 2:
            return _nothing(unit, _and(_TOO_FEW.format(len(y)), note))
        level = 1 - (1 - LEVEL) / (2 * (len(values) - 2))
        candidates = []
        for inner in y[:, 1:-1].T / abs(y.mean()):
            ends = y[:, [0, -1]].T / abs(y.mean())
            for sign in (1, -1):
                both = [_interval(sign * (inner - end), level) for end in ends]
                candidates.append(np.min(both, axis=0))
        effect, low, high = np.max(candidates, axis=0)
        return _finding(effect, low, high, unit, _side(0.0, 1), _and(note, f"{len(y)} seeds"))

    return test


# --- the size of a column ------------------------------------------------------------------------


def larger_part(column: Column, of: Column, share: float = 0.5) -> Test:
    """The column is more than a share of another."""
    return _share(column, of, share, 1)


def smaller_part(column: Column, of: Column, share: float) -> Test:
    """The column is less than a share of another."""
    return _share(column, of, share, -1)


def _share(column: Column, of: Column, share: float, sign: int) -> Test:
    unit = f"{_name(column)} / {_name(of)}"
    note = f"holds {'above' if sign > 0 else 'below'} {share:g}"

    def test(runs: Runs) -> Finding:
        part = runs.column(column) / runs.column(of)
        return _judged(_per_seed(runs, part), unit, _side(share, sign), note)

    return test


def between(column: Column, low: float, high: float) -> Test:
    """The mean of the column lies between two numbers."""

    def test(runs: Runs) -> Finding:
        seeds = _per_seed(runs, runs.column(column))
        note = f"holds from {low:g} to {high:g}"
        return _judged(seeds, f"mean of {_name(column)}", _inside(low, high), note)

    return test


# --- columns against each other ------------------------------------------------------------------


def correlated(x: Column, y: Column, at_least: float = 0.8) -> Test:
    """Two columns go together over runs: Pearson's correlation is above a bound.

    Its interval is Student's on Fisher's scale, with the standard error from a bootstrap over runs,
    which does not rely on normal data.
    """
    unit = f"correlation of {_name(x)} and {_name(y)}"

    def test(runs: Runs) -> Finding:
        a, b = _together(runs.column(x), runs.column(y))
        if len(a) < 4:
            return _nothing(unit, f"{len(a)} run(s); a correlation needs four")
        spread = np.std(_fisher(_pearson(*_resampled(a, b))), ddof=1)
        reach = _student(len(a) - 2) * spread
        r = _pearson(a, b)
        low, high = np.tanh(_fisher(r) + np.array([-reach, reach]))
        note = f"holds above {at_least:g}; {_ranks(a, b)}; {len(a)} runs"
        return _finding(r, low, high, unit, _side(at_least, 1), note)

    return test


def stronger(x1: Column, x2: Column, y: Column) -> Test:
    """The first column goes together with the last more closely than the second does."""
    unit = f"correlation with {_name(y)}: that of {_name(x1)} minus that of {_name(x2)}"

    def test(runs: Runs) -> Finding:
        a, b, c = _together(*(runs.column(column) for column in (x1, x2, y)))
        if len(a) < 4:
            return _nothing(unit, f"{len(a)} run(s); a correlation needs four")
        first, second, last = _resampled(a, b, c)
        spread = np.std(_pearson(first, last) - _pearson(second, last), ddof=1)
        reach = _student(len(a) - 2) * spread
        r1, r2 = _pearson(a, c), _pearson(b, c)
        note = f"{r1:.2f} against {r2:.2f}; {len(a)} runs"
        return _finding(r1 - r2, r1 - r2 - reach, r1 - r2 + reach, unit, _side(0.0, 1), note)

    return test


def weaker(x: Column, y: Column, here: dict[str, Any], others: Sequence[dict[str, Any]]) -> Test:
    """Two columns go together less closely in some runs than on average in others."""
    unit = f"correlation of {_name(x)} and {_name(y)} here minus its mean elsewhere"

    def test(runs: Runs) -> Finding:
        columns = []
        for where in (here, *others):
            part = runs.where(**where)
            columns.append(_together(part.column(x), part.column(y)))
        fewest = min(len(a) for a, _ in columns)
        if fewest < 4:
            return _nothing(unit, f"{fewest} run(s) of a kind; a correlation needs four")
        r = [_pearson(*both) for both in columns]
        drawn = [_pearson(*_resampled(*both, seed=k)) for k, both in enumerate(columns)]
        spread = np.std(drawn[0] - np.mean(drawn[1:], axis=0), ddof=1)
        reach = _student(fewest - 2) * spread
        effect = r[0] - np.mean(r[1:])
        note = f"{r[0]:.2f} against " + ", ".join(f"{other:.2f}" for other in r[1:])
        return _finding(effect, effect - reach, effect + reach, unit, _side(0.0, -1), note)

    return test


def proportional(x: Series, y: Series, largest: int = 10, within: float = 0.2) -> Test:
    """Over the leading directions one array is proportional to another: its power is 1."""
    unit = f"power of {_name(x)} that {_name(y)} follows over the first {largest} directions"

    def test(runs: Runs) -> Finding:
        a, b = (runs.array(array)[:, :largest] for array in (x, y))
        powers = np.array([_power(*both) for both in zip(a, b, strict=True)])
        note = f"holds within 1 ± {within:g}"
        return _judged(_per_seed(runs, powers), unit, _inside(1 - within, 1 + within), note)

    return test


def _power(x: np.ndarray, y: np.ndarray) -> float:
    """The slope of log y on log x."""
    positive = (x > 0) & (y > 0)
    if positive.sum() < 3:
        return math.nan
    u, v = np.log(x[positive]), np.log(y[positive])
    u = u - u.mean()
    return float(u @ v / (u @ u))


# --- a part of the runs --------------------------------------------------------------------------


def on(select: dict[str, Any] | Callable[[Runs], Runs], test: Test) -> Test:
    """The test on the runs with these settings, or on those that a function chooses."""

    def partly(runs: Runs) -> Finding:
        return test(select(runs) if callable(select) else runs.where(**select))

    return partly


# --- realisations --------------------------------------------------------------------------------


def _paired(runs: Runs, column: Column, key: str) -> tuple[list[float], np.ndarray, str]:
    """The values of a setting, the column as (seeds, values), and what had to be left out.

    A value that fewer than half of the seeds reached is left out, and then every seed that lacks
    one of the others.
    """
    cells: dict[tuple[int, float], float] = {}
    for row, number in zip(runs.rows, runs.column(column), strict=True):
        if (row["seed"], row[key]) in cells:
            others = [name for name in runs.varied if name != key]
            raise InputError(
                f"a claim about {key} compares runs that differ in {', '.join(others)} as well; "
                "choose a part of them with `on`"
            )
        cells[row["seed"], row[key]] = number
    seeds, values = runs.seeds, list(runs.by(key)) if runs.rows else []
    y = np.array([[cells.get((seed, value), np.nan) for value in values] for seed in seeds])
    y = y.reshape(len(seeds), len(values))
    reached = np.isfinite(y).mean(axis=0) >= 0.5 if len(seeds) else np.zeros(0, dtype=bool)
    complete = np.isfinite(y[:, reached]).all(axis=1)
    dropped = [f"{key} {v:g}" for v, ok in zip(values, reached, strict=True) if not ok]
    dropped += [f"seed {seed}" for seed, ok in zip(seeds, complete, strict=True) if not ok]
    note = f"without {', '.join(dropped)}" if dropped else ""
    kept = [value for value, ok in zip(values, reached, strict=True) if ok]
    return kept, y[np.ix_(complete, reached)], note


def _per_seed(runs: Runs, numbers: np.ndarray) -> np.ndarray:
    """The mean of each seed over its runs; of seeds that have no number, none."""
    seeds = runs.column("seed")
    finite = np.isfinite(numbers)
    means = [numbers[finite & (seeds == seed)] for seed in runs.seeds]
    return np.array([mean.mean() for mean in means if mean.size])


def _together(*columns: np.ndarray) -> tuple[np.ndarray, ...]:
    """The numbers of those runs that have all of them."""
    finite = np.isfinite(columns).all(axis=0)
    return tuple(column[finite] for column in columns)


# --- intervals -----------------------------------------------------------------------------------


def _judged(seeds: np.ndarray, unit: str, judge: "Judge", note: str = "") -> Finding:
    """The mean of a number of each seed, with Student's interval."""
    if len(seeds) < 2:
        return _nothing(unit, _and(_TOO_FEW.format(len(seeds)), note))
    return _finding(*_interval(seeds, LEVEL), unit, judge, _and(note, f"{len(seeds)} seeds"))


def _interval(seeds: np.ndarray, level: float) -> tuple[float, float, float]:
    """Mean, lower and upper end."""
    reach = _student(len(seeds) - 1, level) * seeds.std(ddof=1) / math.sqrt(len(seeds))
    return seeds.mean(), seeds.mean() - reach, seeds.mean() + reach


def _student(freedom: int, level: float = LEVEL) -> float:
    from scipy.special import stdtrit

    return float(stdtrit(freedom, (1 + level) / 2))


Judge = Callable[[float, float], Verdict]  # of the ends of an interval


def _side(bound: float, sign: int) -> Judge:
    """Holds above the bound, or below it if the sign is negative."""

    def judge(low: float, high: float) -> Verdict:
        if sign < 0:
            low, high = 2 * bound - high, 2 * bound - low
        return "holds" if low > bound else "does not hold" if high < bound else "undecided"

    return judge


def _inside(bottom: float, top: float) -> Judge:
    def judge(low: float, high: float) -> Verdict:
        if bottom <= low and high <= top:
            return "holds"
        return "does not hold" if low > top or high < bottom else "undecided"

    return judge


def _finding(
    effect: float, low: float, high: float, unit: str, judge: Judge, note: str = ""
) -> Finding:
    if not all(map(math.isfinite, (effect, low, high))):
        return _nothing(unit, _and("the effect is not defined", note))
    return Finding(float(effect), float(low), float(high), unit, judge(low, high), note)


def _nothing(unit: str, note: str) -> Finding:
    return Finding(math.nan, math.nan, math.nan, unit, "undecided", note)


# --- correlations --------------------------------------------------------------------------------


def _pearson(x: np.ndarray, y: np.ndarray) -> Any:
    """Pearson's correlation along the last axis; 0 where one of them is constant."""
    x, y = x - x.mean(-1, keepdims=True), y - y.mean(-1, keepdims=True)
    size = np.sqrt((x * x).sum(-1) * (y * y).sum(-1))
    return np.divide((x * y).sum(-1), size, out=np.zeros_like(size), where=size > 0)


def _fisher(r: Any) -> Any:
    return np.arctanh(np.clip(r, -1 + 1e-12, 1 - 1e-12))


def _resampled(*columns: np.ndarray, seed: int = 0) -> list[np.ndarray]:
    """The same resamples of each column, (resamples, runs)."""
    n = len(columns[0])
    drawn = np.random.default_rng(seed).integers(n, size=(_RESAMPLES, n))
    return [column[drawn] for column in columns]


def _ranks(x: np.ndarray, y: np.ndarray) -> str:
    from scipy import stats

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", stats.ConstantInputWarning)
        spearman, kendall = stats.spearmanr(x, y)[0], stats.kendalltau(x, y)[0]
    return f"Spearman {spearman:.2f}, Kendall {kendall:.2f}"


# --- words ---------------------------------------------------------------------------------------


def _name(column: Column) -> str:
    if isinstance(column, str):
        return column.removeprefix("duality/")
    return getattr(column, "__name__", "it").strip("_").replace("_", " ")


def _change(column: Column, key: str, values: list[float]) -> str:
    ends = f" from {values[0]:g} to {values[-1]:g}" if values else ""
    return f"of its mean, {_name(column)} over {key}{ends}"


def _and(first: str, second: str) -> str:
    return "; ".join(filter(None, (first, second)))
