"""How one solution differs from another."""

from dataclasses import dataclass

from lowland.findings.document import Outcome
from lowland.findings.split import Gauge


@dataclass(frozen=True)
class Change:
    """A change of the gap with its 95 % interval, by bootstrap over pairs."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Part(Change):
    """What one determinant of the gap changed of it."""

    sharp: Change | None  # the same in the sharpest directions; the means have none
    flat: Change | None  # and in the others


@dataclass(frozen=True)
class Solution:
    """One of the two sides."""

    title: str
    created: str
    outcome: Outcome
    layer: str
    sharp: float
    flat: float
    weight_norm: float
    total_g: float
    total_w_data: float


@dataclass(frozen=True)
class Differences:
    """All that a comparison found; every change is of the second solution against the first."""

    lowland: str  # the version that made it
    created: str  # ISO 8601
    command: str | None
    gauge: Gauge
    solutions: tuple[Solution, Solution]
    paired_gaps: tuple[float, float]
    pairs: int  # that both have
    n_sharp: int
    change: Change
    parts: dict[str, Part]  # due to sharpness, size, correlation and the means
    sharpness_over_size: float  # the share of resamples in which sharpness weighs more
