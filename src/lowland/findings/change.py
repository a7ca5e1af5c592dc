"""How one solution differs from another."""

from dataclasses import dataclass

from lowland.findings.convergence import Convergence
from lowland.findings.document import Outcome
from lowland.findings.landscape import Surface
from lowland.findings.split import Decomposition, DualKind, Gauge

# Training losses that differ by at most this share of the difference of the gaps are comparable;
# and by at most the second, if the loss of one of them still falls and that of the other does not.
ALIKE, ALIKE_UNFINISHED = 0.5, 0.1


@dataclass(frozen=True)
class Change:
    """A change of the gap with its 95 % interval, by bootstrap over pairs."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Part(Change):
    """How much of the gap's change one of its determinants makes."""

    sharp: Change | None  # the same in the sharpest directions; the means have none
    flat: Change | None  # and in the others


@dataclass(frozen=True)
class Solution:
    """One of the two sides."""

    title: str
    created: str
    outcome: Outcome
    convergence: Convergence
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
    dual: DualKind
    solutions: tuple[Solution, Solution]
    # The solution with the lower test loss, and error: 0, 1, or None if chance may have decided it.
    lower_loss: int | None
    lower_error: int | None
    paired_gaps: tuple[float, float]
    pairs: int  # that both have
    n_sharp: int
    change: Change
    parts: dict[str, Part]  # due to sharpness, size, correlation and the means
    sharpness_over_size: float  # the share of resamples in which sharpness weighs more

    @property
    def alike_fits(self) -> bool:
        """Whether both fit their training data comparably, so that the smaller gap is the better.

        Both are trained, and their training losses differ by at most half of what their gaps differ
        by, or a tenth if only one is finished. The gaps then decide which of the test losses is the
        smaller one.
        """
        losses = [side.outcome.train_loss for side in self.solutions]
        states = [side.convergence.state for side in self.solutions]
        if None in losses or "untrained" in states:
            return False
        first, second = (loss for loss in losses if loss is not None)
        share = ALIKE_UNFINISHED if states.count("unfinished") == 1 else ALIKE
        return abs(second - first) <= share * abs(self.change.value)


@dataclass(frozen=True)
class Compared:
    """Two solutions with what was compared of them, and the surfaces around them if there are."""

    results: Differences
    sides: tuple[Decomposition, Decomposition]
    surfaces: tuple[Surface | None, Surface | None] = (None, None)
