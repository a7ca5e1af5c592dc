"""The generalisation gap in one layer, split over directions of its weight space."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from lowland.errors import InputError
from lowland.figures import draw_split, drawn_on, picture

if TYPE_CHECKING:
    import pandas as pd

# A dual that misses the activities or the losses by more than this explains another network's gap.
TRUSTED = 0.1
# One that solves for the outputs should solve nearly all of them: the losses of all pairs within
# this share, and no more of the gap lost with pairs that were not solved.
SOLVED_LOSSES, LOST_GAP = 0.01, 0.05

BasisKind = Literal["hessian", "ggn", "fisher"]
Gauge = Literal["given", "balanced"]
DualKind = Literal["activity", "output"]  # what dual weights reproduce
SharpRule = Literal["number", "share", "drop", "variance"]
Interval = tuple[float, float]


@dataclass(frozen=True)
class Setting:
    """What was decomposed, and how."""

    layer: str
    dual: DualKind  # activity: what the layer puts out; output: what the network does
    joint: (
        bool  # whether the dual weights are one shift of several layers, of which this has a part
    )
    basis: BasisKind  # whose eigenvectors the directions are
    gauge: Gauge  # balanced: hidden units rescaled to equal norms in and out
    pairing: str  # which samples are paired, in words
    n_sharp: int
    n_sharp_rule: SharpRule  # that chose it; number: the caller did
    directions: int  # dimension of the layer's weight space
    route: str  # how the directions were found
    cut: float  # singular values of X below this share of the largest are left out of the dual
    seconds: float  # of what this layer took beyond the passes that all share


@dataclass(frozen=True)
class Intervals:
    """95 % intervals, by bootstrap over pairs."""

    paired_gap: Interval
    sharp: Interval
    flat: Interval
    difference: Interval  # sharp - flat, both of the same pairs: on which side of 0 is it?


@dataclass(frozen=True)
class Totals:
    """Sums over directions and means over pairs."""

    gap: float  # mean test loss - mean train loss
    paired_gap: float  # mean over pairs of dl_k = l(test sample) - l(partner), at the test's target
    dual_gap: float  # mean of l(w + dW_k, x_k) - l(w, x_k): what the dual weights make of it
    target_gap: float  # what the partners' own targets add to the gap; 0 where they are the same
    eq9: float  # sum_n c sigma_g sigma_w + mu_g mu_w: the paired gap again
    eq11: float  # the same without the means
    sharp: float  # the part of eq11 in the n_sharp sharpest directions
    flat: float  # the rest
    intervals: Intervals
    weight_norm: float
    total_w: float  # T_w = sum_n sigma_w^2 (Eq. 12), over the directions
    total_w_data: float  # the same from W and the covariance of dx / |x|, without directions
    total_g: float  # T_g = sum_n sigma_g^2
    unseen_sigma_g: float  # no direction that is not listed has a larger sigma_g; 0 if all are


@dataclass(frozen=True)
class Solving:
    """How dual weights that reproduce the network's outputs were found.

    They are solutions of nonlinear equations, and of least norm only among those near by. So some
    pairs are solved again from random starts: the spreads say how much depends on the start.
    """

    matched: int  # numbers of a sample's outputs that were matched
    outputs: int  # that the loss can see; if more, those matched are random combinations of them
    solved: float  # the share of pairs
    relative_norm: float  # mean |dW| / |W|
    along: float  # median share of dW along the solution set; 0 where it is shortest
    half_split: float  # the sharp share of one half of the pairs less that of the other
    starts: int  # of each of the pairs that were solved again; 0 if none were
    started: int  # how many pairs these were
    norm_spread: float  # mean of the longest solution over the shortest, less 1
    share_spread: float  # between starts: the largest sharp share less the smallest


@dataclass(frozen=True)
class Fit:
    """How well the dual weights stand for the data."""

    pairs: int  # that have a dual shift
    excluded: int  # pairs that have none, left out of every sum
    excluded_gap: float  # what the excluded pairs carry: the sum of their gaps over all pairs
    excluded_share: float  # the same by the inputs' part of the gap, as a share of it
    degenerate: dict[str, int]  # odd cases by kind
    positions: int  # T, what a sample shows the layer
    rank: float  # mean number of singular values used: of X, or of the Jacobian of the outputs
    full_rank: int  # the largest possible
    duality_residual: float  # largest |dW X - W dX| / |W dX|, or |f(W + dW, x) - f(W, x')| / |df|
    mean_residual: float
    loss_defect: float  # mean |l(w + dW, x) - l(w, x')|, as a share of mean |dl|
    solving: Solving | None = None  # of a dual that reproduces outputs: its defect is of all pairs

    @property
    def trusted(self) -> bool:
        """Whether the dual weights stand for the data.

        Activities and losses within 10 %; or, of the output-level dual, the losses of all pairs
        within 1 %, and less than 5 % of the gap in pairs that were not solved.
        """
        if self.solving is not None:
            return self.loss_defect <= SOLVED_LOSSES and self.excluded_share <= LOST_GAP
        return self.mean_residual <= TRUSTED and self.loss_defect <= TRUSTED

    @property
    def doubt(self) -> str | None:
        """Why the dual weights do not stand for the data, in words; None where they do."""
        if self.trusted:
            return None
        if self.solving is None:
            return (
                f"activities are missed by {self.mean_residual:.0%}, "
                f"losses by {self.loss_defect:.0%}"
            )
        solved = f"{self.solving.solved:.0%} of the pairs were solved"
        if self.solving.solved < 0.5:
            return f"the outputs cannot be reached through this layer: {solved}"
        return (
            f"{solved}, losses are missed by {self.loss_defect:.1%}, and "
            f"{self.excluded_share:.0%} of the gap is in pairs that were not solved"
        )


@dataclass(frozen=True)
class Directions:
    """One number for each direction, by decreasing ``sigma_g``."""

    sigma_g: np.ndarray
    sigma_w: np.ndarray
    c: np.ndarray  # 0 where a sigma is 0: such a direction contributes nothing
    mu_g: np.ndarray
    mu_w: np.ndarray
    contribution: np.ndarray  # c sigma_g sigma_w
    eigenvalue: np.ndarray

    def __post_init__(self) -> None:
        _check_vectors(self)


@dataclass(frozen=True)
class PairValues:
    """One number, or row of numbers, for each pair that has a dual shift."""

    train: np.ndarray  # its training sample's place in the data, (K,)
    test: np.ndarray  # its test sample's, (K,)
    dl: np.ndarray  # (K,)
    size: np.ndarray  # |dW_k|^2, (K,)
    components: np.ndarray  # of dW_k along the leading directions, (K, n)


@dataclass(frozen=True)
class Approximations:
    """The supplement's successive approximations of each direction's contribution."""

    finite: np.ndarray  # <d(n, k)>, Eq. 13
    alone: np.ndarray  # each direction on its own, Eq. 14 and 16
    linear: np.ndarray  # its gradient, Eq. 17
    gradient_square: np.ndarray  # <(dl_k/dw_n)^2>, the leading order of sigma_g^2

    def __post_init__(self) -> None:
        _check_vectors(self)


@dataclass(frozen=True)
class Widths:
    """How far the weights may move along each direction; NaN where that was not computed."""

    flatness: np.ndarray  # F_n, until the training loss is twice as large
    flatness_e: np.ndarray  # until it is e times as large (Feng & Tu 2021)

    def __post_init__(self) -> None:
        _check_vectors(self)


@dataclass(frozen=True)
class LayerRow:
    """One layer's line in a table of layers."""

    layer: str
    dual: DualKind
    explained: float  # dual_gap / paired_gap
    sigma_g: float  # sqrt(total_g)
    sigma_w: float  # sqrt(total_w_data)
    carried: float  # what of the paired gap its dual weights stand for: all, unless they are joint
    dual_gap: float
    sharp: float
    flat: float
    n_sharp: int
    weight_norm: float
    mean_residual: float
    loss_defect: float
    trusted: bool
    doubt: str | None  # why it is not trusted
    directions: int
    positions: int
    rank: float
    full_rank: int


@dataclass(frozen=True)
class Decomposition:
    """The generalisation gap in one layer, split over directions of its weight space.

    The numbers lie in parts; those that are wanted most can be read here as well.
    """

    setting: Setting
    totals: Totals
    fit: Fit
    per_direction: Directions
    per_pair: PairValues | None  # None where it was not kept
    approximations: Approximations | None = None  # if asked for
    widths: Widths | None = None  # if asked for

    @property
    def layer(self) -> str:
        """The layer's name."""
        return self.setting.layer

    @property
    def n_sharp(self) -> int:
        """How many directions count as sharp."""
        return self.setting.n_sharp

    @property
    def gap(self) -> float:
        """Mean test loss - mean training loss."""
        return self.totals.gap

    @property
    def paired_gap(self) -> float:
        """Mean over pairs of the test sample's loss less its partner's, at the test's target."""
        return self.totals.paired_gap

    @property
    def targets_dominate(self) -> bool:
        """Whether the partners' targets make more of the gap than their inputs, which are split."""
        return abs(self.totals.target_gap) > abs(self.totals.paired_gap)

    @property
    def eq9(self) -> float:
        """The sum over directions with the means: the paired gap again."""
        return self.totals.eq9

    @property
    def eq11(self) -> float:
        """The sum over directions without the means."""
        return self.totals.eq11

    @property
    def sharp(self) -> float:
        """The part of ``eq11`` in the ``n_sharp`` sharpest directions."""
        return self.totals.sharp

    @property
    def flat(self) -> float:
        """The part of ``eq11`` in the other directions."""
        return self.totals.flat

    @property
    def weight_norm(self) -> float:
        """The Frobenius norm of the layer's weight."""
        return self.totals.weight_norm

    @property
    def total_w(self) -> float:
        """The sum over directions of ``sigma_w`` squared (Eq. 12)."""
        return self.totals.total_w

    @property
    def pairs(self) -> int:
        """How many pairs have a dual shift."""
        return self.fit.pairs

    @property
    def excluded(self) -> int:
        """How many pairs have none, and are left out of every sum."""
        return self.fit.excluded

    @property
    def duality_residual(self) -> float:
        """The largest relative error of the activities that the dual weights make."""
        return self.fit.duality_residual

    @property
    def sigma_g(self) -> np.ndarray:
        """Per direction: the standard deviation of the effective gradients."""
        return self.per_direction.sigma_g

    @property
    def sigma_w(self) -> np.ndarray:
        """Per direction: the standard deviation of the dual shifts."""
        return self.per_direction.sigma_w

    @property
    def c(self) -> np.ndarray:
        """Per direction: the correlation of gradients and shifts."""
        return self.per_direction.c

    @property
    def mu_g(self) -> np.ndarray:
        """Per direction: the mean of the effective gradients."""
        return self.per_direction.mu_g

    @property
    def mu_w(self) -> np.ndarray:
        """Per direction: the mean of the dual shifts."""
        return self.per_direction.mu_w

    @property
    def contribution(self) -> np.ndarray:
        """Per direction: ``c sigma_g sigma_w``, its part of the gap."""
        return self.per_direction.contribution

    @property
    def eigenvalue(self) -> np.ndarray:
        """Per direction: the curvature of the training loss."""
        return self.per_direction.eigenvalue

    @property
    def complete(self) -> bool:
        """Whether every direction is listed."""
        return len(self.sigma_g) == self.setting.directions

    @property
    def trusted(self) -> bool:
        """Whether the dual weights stand for the data: see :attr:`Fit.trusted`."""
        return self.fit.trusted

    @property
    def row(self) -> LayerRow:
        """The layer's line in a table of layers."""
        setting, totals, fit = self.setting, self.totals, self.fit
        return LayerRow(
            layer=setting.layer,
            dual=setting.dual,
            explained=totals.dual_gap / totals.paired_gap if totals.paired_gap else 0.0,
            sigma_g=totals.total_g**0.5,
            sigma_w=totals.total_w_data**0.5,
            carried=totals.eq9,
            dual_gap=totals.dual_gap,
            sharp=totals.sharp,
            flat=totals.flat,
            n_sharp=setting.n_sharp,
            weight_norm=totals.weight_norm,
            mean_residual=fit.mean_residual,
            loss_defect=fit.loss_defect,
            trusted=self.trusted,
            doubt=fit.doubt,
            directions=setting.directions,
            positions=fit.positions,
            rank=fit.rank,
            full_rank=fit.full_rank,
        )

    def __repr__(self) -> str:
        doubt = "" if self.trusted else ", NO useful dual"
        return (
            f"Decomposition(layer={self.layer!r}, {self.setting.dual}-level dual, "
            f"paired_gap={self.paired_gap:.4g}, "
            f"sharp={self.sharp:.4g} in {self.n_sharp} of {self.setting.directions:,} directions, "
            f"flat={self.flat:.4g}, pairs={self.pairs}, excluded={self.excluded}{doubt})"
        )

    def plot(self, ax: Any = None) -> Any:
        """Draw where the gap builds up, over the directions, on matplotlib axes."""
        return drawn_on(draw_split, self, ax)

    def _repr_html_(self) -> str:
        return picture(draw_split, self)


class Decompositions(Mapping[str, Decomposition]):
    """The decompositions of several layers by name, in the order of the model."""

    def __init__(self, by_layer: dict[str, Decomposition], skipped: dict[str, str]) -> None:
        self._by_layer = by_layer
        self.skipped = skipped  # layers that have no dual, and why

    def __getitem__(self, name: str) -> Decomposition:
        return self._by_layer[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_layer)

    def __len__(self) -> int:
        return len(self._by_layer)

    def __repr__(self) -> str:
        return self.to_frame().to_string(float_format="{:.4g}".format)

    def rows(self) -> list[LayerRow]:
        """One line of single numbers for each layer."""
        return [decomposition.row for decomposition in self.values()]

    def to_frame(self) -> "pd.DataFrame":
        """A table: the gap that each layer explains, its parts, sharpness, size and norm."""
        import pandas as pd

        return pd.DataFrame([asdict(row) for row in self.rows()]).set_index("layer")


def _check_vectors(part: object) -> None:
    shapes = {name: value.shape for name, value in vars(part).items()}
    if len(set(shapes.values())) > 1 or any(len(shape) != 1 for shape in shapes.values()):
        raise InputError(
            f"the arrays over directions must be vectors of one length, but came as {shapes}"
        )
