"""The generalisation gap in one layer, split over directions of its weight space."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from lowland.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

# A dual that misses the activities or the losses by more than this explains another network's gap.
TRUSTED = 0.1

BasisKind = Literal["hessian", "ggn", "fisher"]
Gauge = Literal["given", "balanced"]
SharpRule = Literal["number", "share", "drop", "variance"]
Interval = tuple[float, float]


@dataclass(frozen=True)
class Setting:
    """What was decomposed, and how."""

    layer: str
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
class Fit:
    """How well the dual weights stand for the data."""

    pairs: int  # that have a dual shift
    excluded: int  # pairs that have none, left out of every sum
    excluded_gap: float  # what the excluded pairs carry: the sum of their gaps over all pairs
    degenerate: dict[str, int]  # odd cases by kind
    positions: int  # T, what a sample shows the layer
    rank: float  # mean number of singular values of X that the dual uses
    full_rank: int  # the largest possible
    duality_residual: float  # largest |dW X - W dX| / |W dX|
    mean_residual: float
    loss_defect: float  # mean |l(w + dW, x) - l(w, x')|, as a share of mean |dl|

    @property
    def trusted(self) -> bool:
        """Whether the dual weights stand for the data: activities and losses within 10 %."""
        return self.mean_residual <= TRUSTED and self.loss_defect <= TRUSTED


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
    explained: float  # dual_gap / paired_gap
    sigma_g: float  # sqrt(total_g)
    sigma_w: float  # sqrt(total_w_data)
    dual_gap: float
    sharp: float
    flat: float
    n_sharp: int
    weight_norm: float
    mean_residual: float
    loss_defect: float
    trusted: bool
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
        """Whether the dual weights stand for the data: activities and losses within 10 %."""
        return self.fit.trusted

    @property
    def row(self) -> LayerRow:
        """The layer's line in a table of layers."""
        setting, totals, fit = self.setting, self.totals, self.fit
        return LayerRow(
            layer=setting.layer,
            explained=totals.dual_gap / totals.paired_gap if totals.paired_gap else 0.0,
            sigma_g=totals.total_g**0.5,
            sigma_w=totals.total_w_data**0.5,
            dual_gap=totals.dual_gap,
            sharp=totals.sharp,
            flat=totals.flat,
            n_sharp=setting.n_sharp,
            weight_norm=totals.weight_norm,
            mean_residual=fit.mean_residual,
            loss_defect=fit.loss_defect,
            trusted=self.trusted,
            directions=setting.directions,
            positions=fit.positions,
            rank=fit.rank,
            full_rank=fit.full_rank,
        )

    def __repr__(self) -> str:
        doubt = "" if self.trusted else ", NO useful dual"
        return (
            f"Decomposition(layer={self.layer!r}, paired_gap={self.paired_gap:.4g}, "
            f"sharp={self.sharp:.4g} in {self.n_sharp} of {self.setting.directions:,} directions, "
            f"flat={self.flat:.4g}, pairs={self.pairs}, excluded={self.excluded}{doubt})"
        )


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
