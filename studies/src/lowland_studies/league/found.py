"""How well measures rank trained models by their gap, as types: what the league table shows."""

from dataclasses import dataclass
from typing import Any, Literal

GAPS = {"gap": "gap in loss", "error_gap": "gap in error"}


@dataclass(frozen=True)
class Interval:
    """A statistic with its 95 % interval by bootstrap over models; NaN where it is not defined."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Rank:
    """What one measure is worth as a predictor of the gap."""

    models: int  # with a value
    pearson: Interval
    spearman: Interval
    kendall: Interval
    granulated: Interval
    by_setting: dict[str, float]  # the granulated statistic along each setting
    worst: float  # over environments: two values of one setting
    worst_where: str  # in words
    information: float  # the share of the gap's order that no two settings tell


@dataclass(frozen=True)
class Entry:
    """One measure in the league table."""

    name: str
    title: str
    family: str
    sign: Literal[1, -1]  # -1 where a lower value is the sharper one: ranks are of its negative
    tested: bool  # whether it reads test data, so that it describes the gap and predicts nothing
    fooled: bool | None  # whether a rescaling of the same function moved it; None: not known
    gradients: float | None  # what it costs, in the median
    ranks: dict[str, Rank]  # by the gap that is predicted
    picked: Interval  # the change in test error where it chooses beside the validation error


@dataclass(frozen=True)
class League:
    """The models that measures are judged by, and what became of each measure."""

    settings: dict[str, list[Any]]  # that models differ in, by name: a value of each model
    gaps: dict[str, list[float]]  # of each model
    values: dict[str, list[float | None]]  # of each measure, for each model
    entries: tuple[Entry, ...]
    verdicts: tuple[str, ...]  # on what others say of measures, in sentences
    stop_loss: float  # that all models reached
    left_out: int  # models that did not
    command: str
