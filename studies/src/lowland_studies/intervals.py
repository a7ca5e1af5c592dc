"""What realisations say: one number of each seed, Student's interval over them, a verdict on it."""

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from lowland.errors import InputError
from lowland_studies.evidence import Column, Runs
from lowland_studies.study import Finding, Verdict

LEVEL = 0.95
TOO_FEW = "{} realisation(s); an interval needs two"


# --- where a claim holds -------------------------------------------------------------------------


@dataclass(frozen=True)
class Region:
    """The effects for which a claim holds; without its ends if it is ``open``."""

    bottom: float = -math.inf
    top: float = math.inf
    open: bool = False

    def judge(self, low: float, high: float) -> Verdict:
        """What an interval says: it lies inside, outside, or across an end."""
        if high < self.bottom or low > self.top:
            return "does not hold"
        if self.open:
            return "holds" if self.bottom < low and high < self.top else "undecided"
        return "holds" if self.bottom <= low and high <= self.top else "undecided"

    @property
    def words(self) -> str:
        """The region in words."""
        if self.top == math.inf:
            return f"holds above {self.bottom:g}" if self.open else f"holds from {self.bottom:g} on"
        if self.bottom == -math.inf:
            return f"holds {'below' if self.open else 'up to'} {self.top:g}"
        return f"holds from {self.bottom:g} to {self.top:g}"


def above(bound: float) -> Region:
    """All that is larger than the bound."""
    return Region(bottom=bound, open=True)


def below(bound: float) -> Region:
    """All that is smaller than the bound."""
    return Region(top=bound, open=True)


# --- realisations --------------------------------------------------------------------------------


def paired(runs: Runs, column: Column, key: str) -> tuple[list[float], np.ndarray, str]:
    """The values of a setting, the column as (seeds, values), and what had to be left out.

    A value that fewer than half of the seeds reached is left out, and then every seed that has
    fewer than two of the others. A seed that lacks some keeps the rest, with NaN in between.
    """
    y, values, seeds = table(runs, runs.column(column), key)
    reached = np.isfinite(y).mean(axis=0) >= 0.5 if len(seeds) else np.zeros(0, dtype=bool)
    kept = np.isfinite(y[:, reached]).sum(axis=1) >= 2
    dropped = [f"{key} {v:g}" for v, ok in zip(values, reached, strict=True) if not ok]
    for seed, row, ok in zip(seeds, np.isfinite(y[:, reached]), kept, strict=True):
        lacking = [v for v, there in zip(np.array(values)[reached], row, strict=True) if not there]
        if not ok:
            dropped.append(f"seed {seed}")
        elif lacking:
            dropped.append(f"{key} {', '.join(f'{v:g}' for v in lacking)} of seed {seed}")
    note = f"without {', '.join(dropped)}" if dropped else ""
    chosen = [value for value, ok in zip(values, reached, strict=True) if ok]
    return chosen, y[np.ix_(kept, reached)], note


def table(runs: Runs, numbers: np.ndarray, key: str) -> tuple[np.ndarray, list[float], list[int]]:
    """One number, or row of numbers, for each run as (seeds, values, ...); NaN where it has none.

    The values of the setting and the seeds come with it.
    """
    seeds, values = runs.seeds, list(runs.by(key)) if runs.rows else []
    y = np.full((len(seeds), len(values), *numbers.shape[1:]), np.nan)
    filled: set[tuple[int, int]] = set()
    for row, number in zip(runs.rows, numbers, strict=True):
        place = seeds.index(row["seed"]), values.index(row[key])
        if place in filled:
            others = [name for name in runs.varied if name != key]
            raise InputError(
                f"a claim about {key} compares runs that differ in {', '.join(others)} as well; "
                "choose a part of them with `on`"
            )
        filled.add(place)
        y[place] = number
    return y, values, seeds


def slopes(y: np.ndarray, values: list[float]) -> np.ndarray:
    """For each seed, a row of y, how much its fitted straight line rises over the whole range.

    The line is over the logarithm of the setting unless that takes 0. Further dimensions of y are
    lines of their own; values that a seed lacks are not in its line.
    """
    x = np.log(values) if min(values) > 0 else np.asarray(values, dtype=float)
    x = ((x - x.min()) / (x.max() - x.min())).reshape(-1, *(1 for _ in y.shape[2:]))
    there = np.isfinite(y)
    count = there.sum(axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        centred = np.where(there, x - (x * there).sum(axis=1, keepdims=True) / count[:, None], 0.0)
        return (np.nan_to_num(y) * centred).sum(axis=1) / (centred**2).sum(axis=1)


def level_of(y: np.ndarray) -> np.ndarray:
    """The size of a column (seeds, values, ...): the mean over values of the mean over seeds."""
    return np.abs(np.nanmean(np.nanmean(y, axis=0), axis=0))


def each_seed(
    runs: Runs,
    numbers: np.ndarray,
    unit: str,
    region: Region,
    note: str,
    of: Callable[[np.ndarray], float] = np.mean,
    *,
    percent: bool = False,
) -> Finding:
    """Judge one number per seed: by default the mean over its runs."""
    seeds, finite = runs.column("seed"), np.isfinite(numbers)
    own = [numbers[finite & (seeds == seed)] for seed in runs.seeds]
    if missing := int((~finite).sum()):
        note = joined(note, f"without {missing} run(s) that have no such number")
    return judged(np.array([of(n) for n in own if n.size]), unit, region, note, percent=percent)


# --- intervals -----------------------------------------------------------------------------------


def judged(
    seeds: np.ndarray, unit: str, region: Region, note: str = "", *, percent: bool = False
) -> Finding:
    """The finding about the mean of a number of each seed, with Student's interval."""
    if len(seeds) < 2:
        return nothing(unit, joined(TOO_FEW.format(len(seeds)), note))
    note = joined(note, f"{len(seeds)} seeds")
    return finding(*interval(seeds), unit, region, note, percent=percent)


def interval(seeds: np.ndarray, level: float = LEVEL) -> tuple[float, float, float]:
    """The mean of a number of each seed, and both ends of Student's interval."""
    reach = student(len(seeds) - 1, level) * seeds.std(ddof=1) / math.sqrt(len(seeds))
    return seeds.mean(), seeds.mean() - reach, seeds.mean() + reach


def student(freedom: int, level: float = LEVEL) -> float:
    """How many standard errors an interval of this level reaches to either side."""
    from scipy.special import stdtrit

    return float(stdtrit(freedom, (1 + level) / 2))


def finding(
    effect: float,
    low: float,
    high: float,
    unit: str,
    region: Region,
    note: str = "",
    *,
    percent: bool = False,
    verdict: Verdict | None = None,
) -> Finding:
    """The finding about an effect with its interval; the verdict is the region's unless given."""
    if not all(map(math.isfinite, (effect, low, high))):
        return nothing(unit, joined("the effect is not defined", note))
    return Finding(
        *(float(effect), float(low), float(high), unit, verdict or region.judge(low, high), note),
        bottom=region.bottom if math.isfinite(region.bottom) else None,
        top=region.top if math.isfinite(region.top) else None,
        percent=percent,
    )


def nothing(unit: str, note: str) -> Finding:
    """The finding where there is no number."""
    return Finding(math.nan, math.nan, math.nan, unit, "undecided", note)


def joined(first: str, second: str) -> str:
    """Two notes as one; either may be empty."""
    return "; ".join(filter(None, (first, second)))


def corrected(count: int) -> float:
    """Bonferroni's level for so many intervals."""
    return 1 - (1 - LEVEL) / count


def of_all(shown: Sequence[Verdict], corrected: Sequence[Verdict]) -> Verdict:
    """The verdict on a claim that must hold at all places."""
    if all(verdict == "holds" for verdict in shown):
        return "holds"
    return "does not hold" if "does not hold" in corrected else "undecided"


# --- correlations --------------------------------------------------------------------------------


def together(runs: Runs, *columns: Column) -> list[np.ndarray]:
    """For each seed, (columns, runs): those of its runs that have a number in all columns."""
    numbers = np.array([runs.column(column) for column in columns])
    seeds, finite = runs.column("seed"), np.isfinite(numbers).all(axis=0)
    own = [numbers[:, finite & (seeds == seed)] for seed in runs.seeds]
    return [part for part in own if part.size]


def pearson(x: np.ndarray, y: np.ndarray) -> float:
    """Pearson's correlation, within the last digits of -1 and 1; 0 where one is constant."""
    x, y = x - x.mean(), y - y.mean()
    size = math.sqrt((x @ x) * (y @ y))
    return float(np.clip(x @ y / size, -1 + 1e-12, 1 - 1e-12)) if size > 0 else 0.0


def too_few(numbers: list[np.ndarray]) -> str:
    """Why there are too few runs for a correlation and its jackknife; empty if there are enough."""
    if len(numbers) < 2:
        return TOO_FEW.format(len(numbers))
    fewest = sum(part.shape[1] for part in numbers) - max(part.shape[1] for part in numbers)
    return f"{fewest} run(s) beside one seed's; a correlation needs three" if fewest < 3 else ""


def jackknife(numbers: list[np.ndarray], statistic: Callable[..., float]) -> tuple[float, float]:
    """A statistic of the runs of all seeds, and its standard error over seeds."""
    n = len(numbers)
    without = [statistic(*np.hstack(numbers[:i] + numbers[i + 1 :])) for i in range(n)]
    return statistic(*np.hstack(numbers)), math.sqrt((n - 1) * np.var(without))


def counted(numbers: list[np.ndarray]) -> str:
    """How many runs of how many seeds, in words."""
    return f"{sum(part.shape[1] for part in numbers)} runs of {len(numbers)} seeds"


def ranks(x: np.ndarray, y: np.ndarray) -> str:
    """The rank correlations, in words."""
    from scipy import stats

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", stats.ConstantInputWarning)
        spearman, kendall = stats.spearmanr(x, y)[0], stats.kendalltau(x, y)[0]
    return f"Spearman {spearman:.2f}, Kendall {kendall:.2f}"


def range_of(values: Sequence[float]) -> str:
    """From where to where a setting goes, in words."""
    return f"from {values[0]:g} to {values[-1]:g}" if values else "over no values"
