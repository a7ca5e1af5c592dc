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
        unit = f"of its mean, {_name(column)} over {_range(key, values)}"
        if len(values) < 2:
            return _nothing(unit, f"{key} takes {len(values)} value(s); a trend needs two")
        if len(y) < 2:
            return _nothing(unit, _and(_TOO_FEW.format(len(y)), note))
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
    """For each seed, a row of y, how much its fitted straight line rises over the whole range."""
    x = np.log(values) if min(values) > 0 else np.asarray(values)
    x = (x - x.mean()) / (x.max() - x.min())
    return (y @ x) / (x @ x)


def unchanged(column: Column, key: str, within: float = 0.2) -> Test:
    """The column stays, at every value of the setting, within a part of its mean of the first.

    The effect is the largest change. Every value is looked at, and the level of each interval is
    Bonferroni's for all of them.
    """
    inside = _inside(-within, within)

    def test(runs: Runs) -> Finding:
        values, y, note = _paired(runs, column, key)
        unit = f"of its mean, the largest change of {_name(column)} over {_range(key, values)}"
        note = _and(f"holds within ±{within:g}", note)
        if len(values) < 2:
            return _nothing(unit, f"{key} takes {len(values)} value(s); a change needs two")
        if len(y) < 2:
            return _nothing(unit, _and(_TOO_FEW.format(len(y)), note))
        level = 1 - (1 - LEVEL) / (len(values) - 1)
        changes = [_interval(seeds, level) for seeds in (y[:, 1:] - y[:, :1]).T / abs(y.mean())]
        verdicts = {inside(low, high) for _, low, high in changes}
        verdict = next(v for v in ("does not hold", "undecided", "holds") if v in verdicts)
        largest = max(changes, key=lambda change: abs(change[0]))
        return _finding(*largest, unit, lambda low, high: verdict, _and(note, f"{len(y)} seeds"))

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
    return _share(column, of, _side(share, 1), f"holds above {share:g}")


def smaller_part(column: Column, of: Column, share: float) -> Test:
    """The absolute value of the column is less than a share of another."""
    return _share(column, of, _side(share, -1), f"holds below {share:g}", np.abs)


def _share(
    column: Column,
    of: Column,
    judge: "Judge",
    note: str,
    size: Callable[[np.ndarray], np.ndarray] = np.asarray,
) -> Test:
    unit = f"{_name(column)} / {_name(of)}"

    def test(runs: Runs) -> Finding:
        return _each_seed(runs, size(runs.column(column) / runs.column(of)), unit, judge, note)

    return test


def between(column: Column, low: float, high: float) -> Test:
    """The mean of the column lies between two numbers, or on one side where one is infinite."""

    def test(runs: Runs) -> Finding:
        unit, note = f"mean of {_name(column)}", f"holds {_bounds(low, high)}"
        return _each_seed(runs, runs.column(column), unit, _inside(low, high), note)

    return test


def at_least(column: Column, bound: float) -> Test:
    """The column is nowhere below a bound: a seed counts with the least of its runs."""

    def test(runs: Runs) -> Finding:
        unit, note = f"least {_name(column)}", f"holds from {bound:g} on"
        judge = _inside(bound, math.inf)
        return _each_seed(runs, runs.column(column), unit, judge, note, np.min)

    return test


# --- columns against each other ------------------------------------------------------------------


def correlated(x: Column, y: Column, at_least: float = 0.8) -> Test:
    """Two columns go together over runs: Pearson's correlation is above a bound.

    Its interval is Student's on Fisher's scale, with the standard error of a jackknife that leaves
    out one realisation after the other, as the runs of one are not independent.
    """
    unit = f"correlation of {_name(x)} and {_name(y)}"

    def test(runs: Runs) -> Finding:
        numbers = _together(runs, x, y)
        if lacking := _too_few(numbers):
            return _nothing(unit, lacking)
        z, error = _jackknife(numbers, lambda a, b: float(np.arctanh(_pearson(a, b))))
        reach = _student(len(numbers) - 1) * error
        note = f"holds above {at_least:g}; {_ranks(*np.hstack(numbers))}; {_counted(numbers)}"
        r, low, high = map(math.tanh, (z, z - reach, z + reach))
        return _finding(r, low, high, unit, _side(at_least, 1), note)

    return test


def stronger(x1: Column, x2: Column, y: Column) -> Test:
    """The first column goes together with the last more closely than the second does."""
    unit = f"correlation with {_name(y)}: that of {_name(x1)} minus that of {_name(x2)}"

    def test(runs: Runs) -> Finding:
        numbers = _together(runs, x1, x2, y)
        if lacking := _too_few(numbers):
            return _nothing(unit, lacking)
        more, error = _jackknife(numbers, lambda a, b, c: _pearson(a, c) - _pearson(b, c))
        reach = _student(len(numbers) - 1) * error
        a, b, c = np.hstack(numbers)
        note = f"{_pearson(a, c):.2f} against {_pearson(b, c):.2f}; {_counted(numbers)}"
        return _finding(more, more - reach, more + reach, unit, _side(0.0, 1), note)

    return test


def weaker(x: Column, y: Column, here: dict[str, Any], others: Sequence[dict[str, Any]]) -> Test:
    """Two columns go together less closely in some runs than on average in others."""
    unit = f"correlation of {_name(x)} and {_name(y)} here minus its mean elsewhere"

    def test(runs: Runs) -> Finding:
        parts = [_together(runs.where(**where), x, y) for where in (here, *others)]
        if lacking := next(filter(None, map(_too_few, parts)), ""):
            return _nothing(unit, f"of a kind: {lacking}")
        (r, own), *rest = (_jackknife(numbers, _pearson) for numbers in parts)
        effect = r - sum(other for other, _ in rest) / len(rest)
        error = math.hypot(own, *(spread / len(rest) for _, spread in rest))
        reach = _student(min(map(len, parts)) - 1) * error
        note = f"{r:.2f} against " + ", ".join(f"{other:.2f}" for other, _ in rest)
        return _finding(effect, effect - reach, effect + reach, unit, _side(0.0, -1), note)

    return test


def proportional(x: Series, y: Series, largest: int = 10, within: float = 0.2) -> Test:
    """Over the leading directions one array is proportional to another: its power is 1."""
    unit = f"power of {_name(x)} that {_name(y)} follows over the first {largest} directions"

    def test(runs: Runs) -> Finding:
        a, b = (runs.array(array)[:, :largest] for array in (x, y))
        powers = np.array([_power(*both) for both in zip(a, b, strict=True)])
        note = f"holds within 1 ± {within:g}"
        return _each_seed(runs, powers, unit, _inside(1 - within, 1 + within), note)

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


def _each_seed(
    runs: Runs,
    numbers: np.ndarray,
    unit: str,
    judge: "Judge",
    note: str,
    of: Callable[[np.ndarray], float] = np.mean,
) -> Finding:
    """Judge one number per seed: by default the mean over its runs."""
    seeds, finite = runs.column("seed"), np.isfinite(numbers)
    own = [numbers[finite & (seeds == seed)] for seed in runs.seeds]
    if missing := int((~finite).sum()):
        note = _and(note, f"without {missing} run(s) that have no such number")
    return _judged(np.array([of(n) for n in own if n.size]), unit, judge, note)


def _together(runs: Runs, *columns: Column) -> list[np.ndarray]:
    """For each seed, (columns, runs): those of its runs that have a number in all columns."""
    numbers = np.array([runs.column(column) for column in columns])
    seeds, finite = runs.column("seed"), np.isfinite(numbers).all(axis=0)
    own = [numbers[:, finite & (seeds == seed)] for seed in runs.seeds]
    return [part for part in own if part.size]


# --- intervals -----------------------------------------------------------------------------------


def _judged(seeds: np.ndarray, unit: str, judge: "Judge", note: str = "") -> Finding:
    """The finding about the mean of a number of each seed, with Student's interval."""
    if len(seeds) < 2:
        return _nothing(unit, _and(_TOO_FEW.format(len(seeds)), note))
    return _finding(*_interval(seeds, LEVEL), unit, judge, _and(note, f"{len(seeds)} seeds"))


def _interval(seeds: np.ndarray, level: float) -> tuple[float, float, float]:
    """The mean of a number of each seed, and both ends of Student's interval."""
    reach = _student(len(seeds) - 1, level) * seeds.std(ddof=1) / math.sqrt(len(seeds))
    return seeds.mean(), seeds.mean() - reach, seeds.mean() + reach


def _student(freedom: int, level: float = LEVEL) -> float:
    from scipy.special import stdtrit

    return float(stdtrit(freedom, (1 + level) / 2))


Judge = Callable[[float, float], Verdict]  # of the ends of an interval


def _side(bound: float, sign: int) -> Judge:
    """A judge that says "holds" above the bound, or below it if the sign is negative."""

    def judge(low: float, high: float) -> Verdict:
        if sign < 0:
            low, high = 2 * bound - high, 2 * bound - low
        return "holds" if low > bound else "does not hold" if high < bound else "undecided"

    return judge


def _inside(bottom: float, top: float) -> Judge:
    """A judge that says "holds" for an interval between the two numbers."""

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


def _pearson(x: np.ndarray, y: np.ndarray) -> float:
    """Pearson's correlation, within the last digits of -1 and 1; 0 where one is constant."""
    x, y = x - x.mean(), y - y.mean()
    size = math.sqrt((x @ x) * (y @ y))
    return float(np.clip(x @ y / size, -1 + 1e-12, 1 - 1e-12)) if size > 0 else 0.0


def _too_few(numbers: list[np.ndarray]) -> str:
    """Why there are too few runs for a correlation and its jackknife; empty if there are enough."""
    if len(numbers) < 2:
        return _TOO_FEW.format(len(numbers))
    fewest = sum(part.shape[1] for part in numbers) - max(part.shape[1] for part in numbers)
    return f"{fewest} run(s) beside one seed's; a correlation needs three" if fewest < 3 else ""


def _jackknife(numbers: list[np.ndarray], statistic: Callable[..., float]) -> tuple[float, float]:
    """A statistic of the runs of all seeds, and its standard error over seeds."""
    n = len(numbers)
    without = [statistic(*np.hstack(numbers[:i] + numbers[i + 1 :])) for i in range(n)]
    return statistic(*np.hstack(numbers)), math.sqrt((n - 1) * np.var(without))


def _counted(numbers: list[np.ndarray]) -> str:
    return f"{sum(part.shape[1] for part in numbers)} runs of {len(numbers)} seeds"


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


def _range(key: str, values: list[float]) -> str:
    return f"{key} from {values[0]:g} to {values[-1]:g}" if values else key


def _bounds(low: float, high: float) -> str:
    if high == math.inf:
        return f"from {low:g} on"
    return f"up to {high:g}" if low == -math.inf else f"from {low:g} to {high:g}"


def _and(first: str, second: str) -> str:
    return "; ".join(filter(None, (first, second)))
