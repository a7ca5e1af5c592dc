"""Activity-weight duality: the generalisation gap over the eigen-directions of a layer's curvature.

Y. Feng, W. Zhang and Y. Tu, Nature Machine Intelligence 5, 908-918 (2023); Feng & Tu, 2022. A test
sample that differs from a training sample by ``dx`` in a layer's inputs acts on the network as the
training sample would if the layer's weight were shifted by

    dW = (W dx) x^T / |x|^2                                                        (Eq. 6)

so differences between data become shifts in weight space, where the loss landscape is.
"""

import math
import operator
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Literal, SupportsIndex, overload

import numpy as np
import torch
from torch import Tensor

from lowland.curvature.factors import Kind
from lowland.curvature.layers import MatrixLayer, layer, layers
from lowland.dual.basis import ALL_DIRECTIONS, LEADING, Basis, bases, canonical, null_directions
from lowland.dual.bootstrap import intervals
from lowland.dual.expansion import expansion
from lowland.dual.flatness import flatness
from lowland.dual.moments import moments, unseen_sigma_g
from lowland.dual.pairing import Pairs, pair
from lowland.dual.shifts import Paired, Shifts, dual_shifts, held_bytes, positions
from lowland.errors import InputError
from lowland.problem import Problem, differentiating
from lowland.rescaling import balanced

if TYPE_CHECKING:
    import pandas as pd

N_SHARP = 10  # the paper's n_s, where its sharpness spectrum falls steepest
# A dual that misses the activities or the losses by more than this explains another network's gap.
TRUSTED = 0.1
# Components of single pairs that are kept with a decomposition, for comparisons: 16 MiB.
_KEPT = 1 << 22

Rule = Literal["drop", "variance"]
Gauge = Literal["given", "balanced"]


@dataclass(frozen=True)
class Decomposition:
    """The generalisation gap in one layer, split over directions of its weight space.

    Per-direction fields are arrays ordered by decreasing ``sigma_g``. Means and standard deviations
    are over the ``pairs`` of a test and a training sample that have a dual shift; the ``excluded``
    others are left out of every sum and counted by reason in ``degenerate``.
    """

    layer: str
    basis: str  # hessian, ggn or fisher: whose eigenvectors the directions are
    gauge: str  # given, or balanced: hidden units rescaled to equal norms in and out
    pairing: str  # which samples are paired, in words
    gap: float  # mean test loss - mean train loss
    paired_gap: float  # mean over pairs of dl_k = l(test sample) - l(its partner)
    dual_gap: float  # mean of l(w + dW_k, x_k) - l(w, x_k): what the dual weights make of it
    target_gap: float  # of it, what the partners' other targets make; 0 where these are the same
    eq9: float  # sum_n c sigma_g sigma_w + mu_g mu_w: the paired gap again
    eq11: float  # the same without the means
    sharp: float  # the part of eq11 in the n_sharp sharpest directions
    flat: float  # the rest
    n_sharp: int
    directions: int  # dimension of the layer's weight space
    route: str  # how the directions were found
    unseen_sigma_g: float  # no direction that is not listed has a larger sigma_g; 0 if all are
    weight_norm: float
    total_w: float  # T_w = sum_n sigma_w^2 (Eq. 12), over the directions
    total_w_data: float  # the same from W and the covariance of dx / |x|, without directions
    total_g: float  # T_g = sum_n sigma_g^2
    intervals: dict[str, tuple[float, float]]  # 95 %, by bootstrap over pairs
    pairs: int
    excluded: int
    excluded_gap: float  # what the excluded pairs carry: the sum of their dl_k over all pairs
    degenerate: dict[str, int]  # odd cases by kind
    positions: int  # T, what a sample shows the layer
    rank: float  # mean number of singular values of X that the dual uses
    full_rank: int  # the largest possible
    cut: float  # singular values below this share of the largest are left out
    duality_residual: float  # largest |dW X - W dX| / |W dX|
    mean_residual: float
    loss_defect: float  # mean |l(w + dW, x) - l(w, x')|, as a share of mean |dl|
    seconds: float  # of what this layer took beyond the passes that all share
    sigma_g: np.ndarray
    sigma_w: np.ndarray
    c: np.ndarray  # 0 where a sigma is 0: such a direction contributes nothing
    mu_g: np.ndarray
    mu_w: np.ndarray
    contribution: np.ndarray  # c sigma_g sigma_w
    eigenvalue: np.ndarray
    finite: np.ndarray | None  # <d(n, k)>, Eq. 13; None unless asked for, as all that follow
    alone: np.ndarray | None  # each direction on its own, Eq. 14 and 16
    linear: np.ndarray | None  # its gradient, Eq. 17
    gradient_square: np.ndarray | None  # <(dl_k/dw_n)^2>, the leading order of sigma_g^2
    flatness: np.ndarray | None  # F_n, the width within a factor of 2; NaN where not asked for
    flatness_e: np.ndarray | None  # within a factor of e (Feng & Tu 2021)
    per_pair: dict[str, np.ndarray]  # of single pairs: places, dl, |dW|^2, leading components

    @property
    def complete(self) -> bool:
        """Whether every direction is listed."""
        return len(self.sigma_g) == self.directions

    @property
    def trusted(self) -> bool:
        """Whether the dual weights stand for the data: activities and losses within 10 %."""
        return self.mean_residual <= TRUSTED and self.loss_defect <= TRUSTED

    def __repr__(self) -> str:
        doubt = "" if self.trusted else ", NO useful dual"
        return (
            f"Decomposition(layer={self.layer!r}, paired_gap={self.paired_gap:.4g}, "
            f"sharp={self.sharp:.4g} in {self.n_sharp} of {self.directions:,} directions, "
            f"flat={self.flat:.4g}, pairs={self.pairs}, excluded={self.excluded}{doubt})"
        )

    def to_dict(self) -> dict[str, object]:
        """The single numbers and texts, ready for JSON."""
        numbers = {
            f.name: getattr(self, f.name)
            for f in fields(self)
            if "ndarray" not in str(f.type)  # arrays, given or not
        }
        for key in ("loss_defect", "unseen_sigma_g"):
            numbers[key] = numbers[key] if math.isfinite(numbers[key]) else None
        return {
            **numbers,
            "intervals": {name: list(ends) for name, ends in self.intervals.items()},
            "complete": self.complete,
            "trusted": self.trusted,
        }

    def arrays(self) -> dict[str, np.ndarray]:
        """The per-direction fields by name, those that were computed."""
        return {
            f.name: value
            for f in fields(self)
            if isinstance(value := getattr(self, f.name), np.ndarray)
        }


class Decompositions(Mapping[str, Decomposition]):
    """The decompositions of several layers by name, in the order of the model."""

    def __init__(self, found: dict[str, Decomposition], skipped: dict[str, str]) -> None:
        self._found = found
        self.skipped = skipped  # layers that have no dual, and why

    def __getitem__(self, name: str) -> Decomposition:
        return self._found[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)

    def __repr__(self) -> str:
        return self.to_frame().to_string(float_format="{:.4g}".format)

    def rows(self) -> list[dict[str, object]]:
        """One row of single numbers for each layer."""
        keys = ("dual_gap", "sharp", "flat", "n_sharp", "weight_norm", "mean_residual")
        more = ("loss_defect", "trusted", "directions", "positions", "rank", "full_rank")
        return [
            {
                "layer": name,
                "explained": found.dual_gap / found.paired_gap if found.paired_gap else 0.0,
                "sigma_g": found.total_g**0.5,
                "sigma_w": found.total_w_data**0.5,
                **{key: found.to_dict()[key] for key in (*keys, *more)},
            }
            for name, found in self.items()
        ]

    def to_frame(self) -> "pd.DataFrame":
        """A table: the gap that each layer explains, its parts, sharpness, size and norm."""
        import pandas as pd

        return pd.DataFrame(self.rows()).set_index("layer")


@overload
def duality(problem: Problem, name: str, **options: object) -> Decomposition: ...
@overload
def duality(
    problem: Problem, name: list[str] | None = None, **options: object
) -> Decompositions: ...
@differentiating()  # type: ignore[misc]
def duality(
    problem: Problem,
    name: str | list[str] | None = None,
    *,
    n_sharp: int | Rule | None = None,
    basis: Kind = "hessian",
    directions: int | None = None,
    pairs: Pairs | None = None,
    gauge: Gauge = "given",
    cut: float | None = None,
    leading_order: bool = False,
    widths: bool | int = False,
    seed: int = 0,
    progress: Callable[[str], None] = lambda stage: None,
) -> Decomposition | Decompositions:
    """Decompose the generalisation gap over directions of a layer's weight space.

    Args:
        problem: with test data.
        name: a dense or convolutional layer; a list of them, or None for every one that the data
            goes through, gives all their decompositions from one pass over the data.
        n_sharp: how many directions count as sharp: a number (10, as in the paper),
            ``"drop"`` where ``sigma_g`` falls steepest, or ``"variance"`` for as many as hold half
            of the total gradient variance.
        basis: ``"hessian"``, ``"ggn"`` or ``"fisher"`` (empirical): whose eigenvectors.
        directions: how many leading ones; by default all of a layer of up to 4,096 weights, and 50
            of a larger one, whose flat part is then the total less the sharp part.
        pairs: other pairs than those of :func:`pair`.
        gauge: ``"balanced"`` first rescales hidden units, without a change of the function, to
            equal norms of incoming and outgoing weights. In this gauge the split depends on the
            function only; in the ``"given"`` one also on how the units happen to be scaled.
        cut: for layers that see several positions, see :func:`dual_shifts`.
        leading_order: also compute the supplement's approximations (Eq. 13-17).
        widths: also compute the flatness F_n: of all directions, or of so many, from the sharpest
            to the flattest evenly on a logarithmic scale.
        seed: of the bootstrap.
        progress: called with the name of each stage as it begins.
    """
    if gauge not in ("given", "balanced"):
        raise InputError(f"gauge must be 'given' or 'balanced'; got {gauge!r}")
    if basis not in ("hessian", "ggn", "fisher"):
        raise InputError(f"basis must be 'hessian', 'ggn' or 'fisher'; got {basis!r}")
    if isinstance(n_sharp, SupportsIndex):
        n_sharp = operator.index(n_sharp)  # NumPy's and PyTorch's whole numbers
    if widths is not True and widths < 0:
        raise InputError(f"widths is True or a number of directions; got {widths}")
    chosen, skipped = _chosen(problem, name)
    for at in chosen:
        _check_n_sharp(n_sharp, at, directions)
    pairs = pair(problem) if pairs is None else pairs
    gap = float(problem.losses("test").double().mean() - problem.losses("train").double().mean())
    if gauge == "balanced":
        problem = balanced(problem)
        chosen = [at for at in map(_matrix_layers(problem).get, [at.name for at in chosen]) if at]

    asked = _Asked(n_sharp, basis, gauge, leading_order, widths, seed, progress)
    found: dict[str, Decomposition] = {}
    for group in _groups(problem, chosen, len(pairs), directions):
        progress(f"duality of {_listed(group)}: dual weights")
        paired = dual_shifts(problem, group, pairs, cut)
        progress(f"duality of {_listed(group)}: directions")
        known = bases(problem, group, basis, directions)
        for at in group:
            try:
                found[at.name] = _decomposed(problem, at, asked, pairs, gap, paired, known[at.name])
            except _NoDual as error:
                if isinstance(name, str):
                    raise InputError(str(error)) from error
                skipped[at.name] = str(error)
    if isinstance(name, str):
        return found[name]
    if not found:
        raise InputError(
            f"no layer has a dual: {'; '.join(skipped.values()) or 'the model has none'}"
        )
    return Decompositions(found, skipped)


class _NoDual(Exception):
    """No pair has a dual shift in this layer."""


@dataclass(frozen=True)
class _Asked:
    """What the caller wants of every layer."""

    n_sharp: int | Rule | None
    basis: str
    gauge: str
    leading_order: bool
    widths: bool | int
    seed: int
    progress: Callable[[str], None]


def _decomposed(
    problem: Problem,
    at: MatrixLayer,
    asked: _Asked,
    pairs: Pairs,
    gap: float,
    paired: Paired,
    known: Basis,
) -> Decomposition:
    began = time.perf_counter()
    every, train_loss, test_loss = paired.shifts[at.name], paired.train_loss, paired.test_loss
    kept = every.size > 0
    if not kept.any():
        raise _NoDual(
            f"no pair has a dual shift in layer {at.name!r}: its inputs are all zero, or equal to "
            "their partners'"
        )
    every_dl = test_loss - train_loss
    shifts, dl = every.where(kept), every_dl[kept]
    ratio = dl / shifts.size  # g_k = ratio_k dW_k, Eq. 7
    if known.complete:
        null = null_directions(known, problem.dtype)
        if int(null.sum()) > 1:
            along = shifts.components(known.vectors[:, null]) * ratio.unsqueeze(1)
            known = canonical(known, along, null)
    found = moments(shifts, ratio, known.vectors)
    order = found.sigma_g.argsort(descending=True)
    n = _n_sharp(asked.n_sharp, found.sigma_g[order], found.total_g)
    if n > len(order):
        raise InputError(
            f"n_sharp is {n}, but only {len(order)} directions of layer {at.name!r} were computed; "
            "pass a smaller n_sharp, or directions= with more"
        )
    vectors = known.vectors[:, order]
    listed = found.contribution[order]
    sharp = float(listed[:n].sum())
    # Basis-free: what the listed directions add up to if they are all there are.
    mean_term = float(found.mean_g @ found.mean_w)
    eq11 = float(listed.sum()) if known.complete else float(dl.mean()) - mean_term
    eq9 = eq11 + (float((found.mu_g * found.mu_w).sum()) if known.complete else mean_term)
    k = max(n, min(len(order), _KEPT // len(dl)))
    if found.components is not None:
        components = found.components[:, order[:k]]
    else:
        components = shifts.components(vectors[:, :k])

    expanded: dict[str, Tensor] = {}
    if asked.leading_order:
        asked.progress(f"layer {at.name!r}: leading-order approximations")
        places = (side[kept.cpu()] for side in (pairs.train, pairs.test))
        expanded = expansion(problem, shifts, vectors, *places)
    if asked.widths:
        ranks = _spread(len(order), asked.widths)
        asked.progress(f"layer {at.name!r}: flatness of {len(ranks):,} directions")
        found_widths = flatness(problem, at, vectors[:, ranks], known.values[order][ranks])
        for key, value in found_widths.items():
            expanded[key] = torch.full_like(known.values, torch.nan)
            expanded[key][ranks] = value
    rest = ("finite", "alone", "linear", "gradient_square", "flatness", "flatness_e")
    arrays = {**found.directions(), "eigenvalue": known.values, "contribution": found.contribution}
    return Decomposition(
        layer=at.name,
        basis=asked.basis,
        gauge=asked.gauge,
        pairing=pairs.rule,
        gap=gap,
        paired_gap=float(dl.mean()),
        dual_gap=float((shifts.dual_loss - train_loss[kept]).mean()),
        target_gap=float((paired.target_loss - train_loss)[kept].mean()),
        eq9=eq9,
        eq11=eq11,
        sharp=sharp,
        flat=eq11 - sharp,
        n_sharp=n,
        directions=at.weight.numel(),
        route=known.route,
        unseen_sigma_g=0.0 if known.complete else unseen_sigma_g(shifts, ratio, vectors),
        weight_norm=float(at.weight.double().norm()),
        total_w=float(found.sigma_w.square().sum()),
        total_w_data=found.total_w,
        total_g=found.total_g,
        intervals=intervals(found, shifts, ratio, dl, components[:, :n], asked.seed),
        pairs=len(dl),
        excluded=int((~kept).sum()),
        excluded_gap=float(every_dl[~kept].sum() / len(every_dl)),
        degenerate=_degenerate(every, pairs),
        positions=shifts.positions,
        rank=float(shifts.rank.double().mean()),
        full_rank=shifts.full_rank,
        cut=shifts.cut,
        duality_residual=float(shifts.residual.max()),
        mean_residual=float(shifts.residual.mean()),
        loss_defect=_share((shifts.dual_loss - test_loss[kept]).abs().mean(), dl.abs().mean()),
        **{key: value[order].cpu().numpy() for key, value in arrays.items()},
        **{key: expanded[key].cpu().numpy() if key in expanded else None for key in rest},  # type: ignore[arg-type]
        per_pair={
            "train": pairs.train[kept.cpu()].numpy(),
            "test": pairs.test[kept.cpu()].numpy(),
            "dl": dl.cpu().numpy(),
            "size": shifts.size.cpu().numpy(),
            "components": components.float().cpu().numpy(),
        },
        seconds=time.perf_counter() - began,
    )


def _spread(n: int, count: bool | int) -> Tensor:
    """All ranks below n, or some of them, evenly on a logarithmic scale."""
    if count is True or count >= n:
        return torch.arange(n)
    return torch.logspace(0, math.log10(n), count, dtype=torch.float64).round().long().unique() - 1


def _share(part: Tensor, whole: Tensor) -> float:
    """part / whole, and 0 where both are 0: no difference is no defect."""
    return float(part / whole) if whole > 0 else (0.0 if part == 0 else float("inf"))


def _degenerate(shifts: Shifts, pairs: Pairs) -> dict[str, int]:
    gone = shifts.size == 0
    still = gone & ~shifts.dead & ~shifts.same
    return {
        "inputs of the layer are all zero": int((gone & shifts.dead).sum()),
        "test sample equal to its partner": int((gone & ~shifts.dead & shifts.same).sum()),
        "no change of the layer's outputs": int(still.sum()),
        "no partner of the same label": pairs.unpaired,
        "positions that are not independent": int(
            ((shifts.rank < shifts.full_rank) & ~shifts.dead).sum()
        ),
    }


def _matrix_layers(problem: Problem) -> dict[str, MatrixLayer]:
    return {name: at for name, at in layers(problem).items() if isinstance(at, MatrixLayer)}


def _chosen(
    problem: Problem, name: str | list[str] | None
) -> tuple[list[MatrixLayer], dict[str, str]]:
    """The layers, and those left out when all were asked for."""
    if name is None:
        found = list(_matrix_layers(problem).values())
        if not found:
            raise InputError(
                "the model has no dense or convolutional layer that is used once, so no layer has "
                "a dual"
            )
        return found, {}
    if not isinstance(name, str) and not name:
        raise InputError("no layer is named; pass None for every layer that has a dual")
    chosen = []
    for one in [name] if isinstance(name, str) else dict.fromkeys(name):
        at = layer(problem, one)
        if not isinstance(at, MatrixLayer):
            raise InputError(
                f"layer {one!r} is {type(at.module).__name__}; the duality is of dense and "
                f"convolutional layers: {', '.join(map(repr, _matrix_layers(problem)))}"
            )
        chosen.append(at)
    return chosen, {}


def _check_n_sharp(n_sharp: int | Rule | None, at: MatrixLayer, directions: int | None) -> None:
    M = at.weight.numel()
    if directions is not None and directions < 1:
        raise InputError(f"directions must be at least 1; got {directions}")
    listed = min(M, directions or (M if M <= ALL_DIRECTIONS else LEADING))
    if isinstance(n_sharp, str):
        if n_sharp not in ("drop", "variance"):
            raise InputError(f"n_sharp is a number, 'drop' or 'variance'; got {n_sharp!r}")
    elif n_sharp is not None and not isinstance(n_sharp, int):
        raise InputError(f"n_sharp is a whole number, 'drop' or 'variance'; got {n_sharp!r}")
    elif n_sharp is not None and not 1 <= n_sharp <= listed:
        of = f"the layer's {M} weights" if listed == M else f"the {listed} directions computed"
        raise InputError(f"n_sharp must be between 1 and {of}; got {n_sharp}")


def _n_sharp(rule: int | Rule | None, sigma_g: Tensor, total_g: float) -> int:
    if rule is not None and not isinstance(rule, str):
        return rule
    n = len(sigma_g)
    if rule is None or n == 1:
        return min(N_SHARP, n)
    held = sigma_g.square().cumsum(0) / max(total_g, torch.finfo(sigma_g.dtype).tiny)
    if rule == "variance":
        return min(n, int((held < 0.5).sum()) + 1)
    # On a logarithmic scale, and not in the tail, where rounding makes the largest steps.
    ahead = sigma_g[1:] > 1e-3 * sigma_g[0]
    drops = torch.where(ahead, (sigma_g[:-1] / sigma_g[1:].clamp_min(1e-300)).log(), -1.0)
    return int(drops[: max(1, n // 2)].argmax()) + 1


def _groups(
    problem: Problem, chosen: list[MatrixLayer], pairs: int, directions: int | None
) -> Iterator[list[MatrixLayer]]:
    """The layers in as few groups as the memory budget allows, in order."""
    T = positions(problem, chosen)
    group: list[MatrixLayer] = []
    held = 0
    for at in chosen:
        M = at.weight.numel()
        listed = min(M, directions or (M if M <= ALL_DIRECTIONS else LEADING))
        need = held_bytes(at, T[at.name], pairs) + 8 * M * listed * 3
        if need > problem.memory:
            raise InputError(
                f"layer {at.name!r} needs {need / 2**20:,.0f} MiB for its {pairs:,} dual shifts "
                f"and {listed:,} directions, but the memory budget is "
                f"{problem.memory / 2**20:,.0f} MiB; pass Problem(memory=...) with more, "
                "fewer directions or fewer test samples"
            )
        if group and held + need > problem.memory:
            yield group
            group, held = [], 0
        group.append(at)
        held += need
    yield group


def _listed(group: list[MatrixLayer]) -> str:
    names = ", ".join(repr(at.name) for at in group[:3])
    return f"layer {names}" if len(group) == 1 else f"layers {names}{', ...' * (len(group) > 3)}"
