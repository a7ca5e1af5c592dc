"""Activity-weight duality: the generalisation gap over the eigen-directions of a layer's curvature.

Y. Feng, W. Zhang and Y. Tu, Nature Machine Intelligence 5, 908-918 (2023); Feng & Tu, 2022. A test
sample that differs from a training sample by ``dx`` in a layer's inputs acts on the network as the
training sample would if the layer's weight were shifted by

    dW = (W dx) x^T / |x|^2                                                        (Eq. 6)

so differences between data become shifts in weight space, where the loss landscape is. Where data
also goes around the layer, the shift that gives the network the same outputs stands in its place
(``output_shifts.py``); Eq. 7-12 hold for either.
"""

import math
import operator
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Literal, SupportsIndex, TypedDict, Unpack, get_args, overload

import torch
from torch import Tensor

from lowland.curvature import Kind, Layer
from lowland.curvature import layer as layer_named
from lowland.dual.basis import Basis, bases, canonical, null_directions, number_listed
from lowland.dual.bootstrap import intervals
from lowland.dual.expansion import expansion
from lowland.dual.fit import NoDual, fit
from lowland.dual.flatness import flatness
from lowland.dual.matching import MATCHED
from lowland.dual.moments import moments, unseen_sigma_g
from lowland.dual.pairing import Pairs, pair
from lowland.dual.reproduced import solved_for_outputs, solving
from lowland.dual.shifts import (
    AskedDual,
    Paired,
    dual_shifts,
    held_bytes,
    layer_with_dual,
    layers_with_dual,
    not_one_matrix,
)
from lowland.errors import InputError
from lowland.findings import (
    Approximations,
    Decomposition,
    Decompositions,
    Directions,
    Gauge,
    PairValues,
    Setting,
    Totals,
    Widths,
)
from lowland.problem import Problem, of_a_problem
from lowland.rescaling import balanced

# The paper draws its line after 10 of the 900 directions of its layer. Rules that read the spectrum
# decide more than they should: "drop" gave 7 to 536 directions over six trained layers, and
# "variance" makes the sharp part about one half of the gap, whatever the network.
PAPER_SHARE = 10 / 900
# Components of single pairs that are kept with a decomposition, for comparisons: 16 MiB.
_KEPT = 1 << 22

Rule = Literal["share", "drop", "variance"]
_RULES = "'share', 'drop' or 'variance'"


class _Options(TypedDict, total=False):
    """The keywords of :func:`duality`, for its two signatures."""

    n_sharp: int | Rule
    basis: Kind
    directions: int | None
    pairs: Pairs | None
    gauge: Gauge
    dual: AskedDual
    joint: bool
    cut: float | None
    matched: int
    curvature: Problem | None
    leading_order: bool
    widths: bool | int
    seed: int
    progress: Callable[[str], None]


@overload
def duality(problem: Problem, name: str, **options: Unpack[_Options]) -> Decomposition: ...
@overload
def duality(
    problem: Problem, name: list[str] | None = None, **options: Unpack[_Options]
) -> Decompositions: ...
@of_a_problem
def duality(
    problem: Problem,
    name: str | list[str] | None = None,
    *,
    n_sharp: int | Rule = "share",
    basis: Kind = "hessian",
    directions: int | None = None,
    pairs: Pairs | None = None,
    gauge: Gauge = "given",
    dual: AskedDual = "auto",
    joint: bool = False,
    cut: float | None = None,
    matched: int = MATCHED,
    curvature: Problem | None = None,
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
        n_sharp: how many directions count as sharp: a number; ``"share"`` (the default) for the
            paper's share of a layer's weights, 10 in 900, but at most half of the directions
            computed; ``"drop"`` where ``sigma_g`` falls steepest; ``"variance"`` for as many as
            hold half of the total gradient variance.
        basis: ``"hessian"``, ``"ggn"`` or ``"fisher"`` (empirical): whose eigenvectors.
        directions: how many leading ones; by default all of a layer of up to 4,096 weights, and 50
            of a larger one, whose flat part is then the total less the sharp part.
        pairs: other pairs than those of :func:`pair`.
        gauge: ``"balanced"`` first rescales hidden units, without a change of the function, to
            equal norms of incoming and outgoing weights. In this gauge the split depends on the
            function only; in the ``"given"`` one also on how the units happen to be scaled.
        dual: what dual weights reproduce. ``"activity"``: what the layer puts out, as Feng & Tu
            have it. ``"output"``: what the network puts out, which also works where data goes
            around the layer. ``"auto"``: the former for a layer where it misses the losses by less
            than a thousandth, the latter for the others; the result says which.
        joint: one shift of all chosen layers together, of least norm, that gives a sample its
            partner's outputs. Each layer then carries a part of the gap (``carried``), and these
            parts add up to it. It needs memory for every weight of every pair.
        cut: for layers that see several positions, see :func:`dual_shifts`.
        matched: how many numbers of a sample's outputs the output-level dual matches; where the
            loss sees more, as many random combinations of them.
        curvature: the problem with the samples whose curvature gives the directions, if these are
            not all: see :meth:`Problem.subset`.
        leading_order: also compute the supplement's approximations (Eq. 13-17).
        widths: also compute the flatness F_n: of all directions, or of so many, from the sharpest
            to the flattest evenly on a logarithmic scale.
        seed: of the bootstrap.
        progress: called with the name of each stage as it begins.
    """
    if gauge not in ("given", "balanced"):
        raise InputError(f"gauge must be 'given' or 'balanced'; got {gauge!r}")
    if dual not in ("auto", "activity", "output"):
        raise InputError(f"dual must be 'auto', 'activity' or 'output'; got {dual!r}")
    if matched < 1:
        raise InputError(f"matched is a number of outputs, at least 1; got {matched}")
    if basis not in ("hessian", "ggn", "fisher"):
        raise InputError(f"basis must be 'hessian', 'ggn' or 'fisher'; got {basis!r}")
    if isinstance(n_sharp, SupportsIndex):
        n_sharp = operator.index(n_sharp)  # NumPy's and PyTorch's whole numbers
    if widths is not True and widths < 0:
        raise InputError(f"widths is True or a number of directions; got {widths}")
    if joint and (isinstance(name, str) or dual == "activity"):
        raise InputError(
            "joint=True is one output-level dual of several layers: name them in a list, or none "
            "for all, with dual='output' or 'auto'"
        )
    chosen = _chosen(problem, name, dual)
    for layer in chosen:
        _check_n_sharp(n_sharp, layer, directions)
    pairs = pair(problem) if pairs is None else pairs
    gap = float(problem.losses("test").double().mean() - problem.losses("train").double().mean())
    if gauge == "balanced":
        problem = balanced(problem)
        curvature = None if curvature is None else balanced(curvature)
        chosen = [layer_named(problem, layer.name) for layer in chosen]

    asked = _Asked(n_sharp, basis, gauge, joint, leading_order, widths, seed, progress)
    decompositions: dict[str, Decomposition] = {}
    skipped: dict[str, str] = {}
    if name is None:
        skipped |= {each: f"it is {why}" for each, why in not_one_matrix(problem).items()}
    groups = [chosen] if joint else _groups(problem, chosen, len(pairs), directions)
    for group in groups:
        progress(f"duality of {_listed(group)}: dual weights")
        seen = [layer for layer in group if not (joint or layer.in_series)]
        paired = dual_shifts(problem, seen, pairs, cut)
        if dual != "activity":
            paired, reasons = solved_for_outputs(
                problem, group, paired, pairs, dual,
                joint=joint, matched=matched, seed=seed, progress=progress,
            )  # fmt: skip
            skipped |= reasons
            group = [layer for layer in group if layer.name not in reasons]
            if isinstance(name, str) and reasons:
                raise NoDual(reasons[chosen[0].name])
        progress(f"duality of {_listed(group)}: directions")
        directions_of = bases(curvature or problem, group, basis, directions)
        if curvature is not None:
            part = f"from {curvature.count():,} of {problem.count():,} samples"
            directions_of = {
                n: replace(b, route=f"{b.route}, {part}") for n, b in directions_of.items()
            }
        for layer in group:
            try:
                decompositions[layer.name] = _decomposed(
                    problem, layer, asked, pairs, gap, paired, directions_of[layer.name]
                )
            except NoDual as error:
                if isinstance(name, str):
                    raise
                skipped[layer.name] = str(error)
    if isinstance(name, str):
        return decompositions[chosen[0].name]
    if not decompositions:
        raise InputError(
            f"no layer has a dual: {'; '.join(skipped.values()) or 'the model has none'}"
        )
    return Decompositions(decompositions, skipped)


@dataclass(frozen=True)
class _Asked:
    """What the caller wants of every layer."""

    n_sharp: int | Rule
    basis: Kind
    gauge: Gauge
    joint: bool
    leading_order: bool
    widths: bool | int
    seed: int
    progress: Callable[[str], None]


def _decomposed(
    problem: Problem,
    layer: Layer,
    asked: _Asked,
    pairs: Pairs,
    gap: float,
    paired: Paired,
    basis: Basis,
) -> Decomposition:
    began = time.perf_counter()
    fitted = fit(paired, layer.name, pairs)
    every = paired.shifts[layer.name]
    kept = every.kept
    shifts, dl = every.where(kept), paired.dl[kept]
    ratio = dl / shifts.whole  # g_k = ratio_k dW_k, Eq. 7
    carried = ratio * shifts.size  # of each pair's gap: all, unless other layers have a part
    if basis.complete:
        null = null_directions(basis, problem.dtype)
        if int(null.sum()) > 1:
            along = shifts.components(basis.vectors[:, null]) * ratio.unsqueeze(1)
            basis = canonical(basis, along, null)
    statistics = moments(shifts, ratio, basis.vectors)
    order = statistics.sigma_g.argsort(descending=True)
    n = _n_sharp(asked.n_sharp, layer.size, statistics.sigma_g[order], statistics.total_g)
    if n > len(order):
        raise InputError(
            f"n_sharp is {n}, but only {len(order)} directions of layer {layer.name!r} were "
            "computed; pass a smaller n_sharp, or directions= with more"
        )
    vectors = basis.vectors[:, order]
    listed = statistics.contribution[order]
    sharp = float(listed[:n].sum())
    # Basis-free: what the listed directions add up to if they are all there are.
    mean_term = float(statistics.mean_g @ statistics.mean_w)
    eq11 = float(listed.sum()) if basis.complete else float(carried.mean()) - mean_term
    eq9 = eq11 + (float((statistics.mu_g * statistics.mu_w).sum()) if basis.complete else mean_term)
    k = max(n, min(len(order), _KEPT // len(dl)))
    if statistics.components is not None:
        components = statistics.components[:, order[:k]]
    else:
        components = shifts.components(vectors[:, :k])

    approximations = widths = None
    if asked.leading_order:
        asked.progress(f"layer {layer.name!r}: leading-order approximations")
        places = (side[kept.cpu()] for side in (pairs.train, pairs.test))
        expanded = expansion(problem, shifts, vectors, *places)
        approximations = Approximations(**{k: v.cpu().numpy() for k, v in expanded.items()})
    if asked.widths:
        ranks = _spread(len(order), asked.widths)
        asked.progress(f"layer {layer.name!r}: flatness of {len(ranks):,} directions")
        widths = _widths(problem, layer, vectors, basis.values[order], ranks)
    arrays = {
        **statistics.directions(),
        "eigenvalue": basis.values,
        "contribution": statistics.contribution,
    }
    return Decomposition(
        totals=Totals(
            gap=gap,
            paired_gap=float(dl.mean()),
            dual_gap=float((shifts.dual_loss - paired.target_loss[kept]).mean()),
            target_gap=float((paired.target_loss - paired.train_loss)[kept].mean()),
            eq9=eq9,
            eq11=eq11,
            sharp=sharp,
            flat=eq11 - sharp,
            intervals=intervals(statistics, shifts, ratio, carried, components[:, :n], asked.seed),
            weight_norm=float(problem.params[layer.parameter].double().norm()),
            total_w=float(statistics.sigma_w.square().sum()),
            total_w_data=statistics.total_w,
            total_g=statistics.total_g,
            unseen_sigma_g=0.0 if basis.complete else unseen_sigma_g(shifts, ratio, vectors),
        ),
        fit=solving(fitted, every, ratio, vectors[:, :n], problem),
        per_direction=Directions(**{k: v[order].cpu().numpy() for k, v in arrays.items()}),
        per_pair=PairValues(
            train=pairs.train[kept.cpu()].numpy(),
            test=pairs.test[kept.cpu()].numpy(),
            dl=dl.cpu().numpy(),
            size=shifts.size.cpu().numpy(),
            components=components.float().cpu().numpy(),
        ),
        approximations=approximations,
        widths=widths,
        setting=Setting(
            layer=layer.name,
            dual=shifts.dual,
            joint=asked.joint,
            basis=asked.basis,
            gauge=asked.gauge,
            pairing=pairs.rule,
            n_sharp=n,
            n_sharp_rule=asked.n_sharp if isinstance(asked.n_sharp, str) else "number",
            directions=layer.size,
            route=basis.route,
            cut=shifts.cut,
            seconds=time.perf_counter() - began,
        ),
    )


def _widths(
    problem: Problem, layer: Layer, vectors: Tensor, values: Tensor, ranks: Tensor
) -> Widths:
    """The widths along the directions of these ranks, NaN along the others."""
    computed = flatness(problem, layer, vectors[:, ranks], values[ranks])
    spread = {name: torch.full_like(values, torch.nan) for name in computed}
    for name, width in computed.items():
        spread[name][ranks] = width
    return Widths(**{name: width.cpu().numpy() for name, width in spread.items()})


def _spread(n: int, count: bool | int) -> Tensor:
    """All ranks below n, or some of them, evenly on a logarithmic scale."""
    if count is True or count >= n:
        return torch.arange(n)
    return torch.logspace(0, math.log10(n), count, dtype=torch.float64).round().long().unique() - 1


def _chosen(problem: Problem, name: str | list[str] | None, dual: AskedDual) -> list[Layer]:
    """The named layers, or all that have a dual; an error if there is none."""
    if name is None:
        every = list(layers_with_dual(problem, dual).values())
        if not every:
            raise InputError(
                "the model has no dense or convolutional layer that can be seen through, so no "
                "layer has a dual"
            )
        return every
    if not isinstance(name, str) and not name:
        raise InputError("no layer is named; pass None for every layer that has a dual")
    names = [name] if isinstance(name, str) else dict.fromkeys(name)
    return [layer_with_dual(problem, each, dual) for each in names]


def _check_n_sharp(n_sharp: int | Rule, layer: Layer, directions: int | None) -> None:
    M = layer.size
    if directions is not None and directions < 1:
        raise InputError(f"directions must be at least 1; got {directions}")
    listed = number_listed(M, directions)
    if isinstance(n_sharp, str):
        if n_sharp not in get_args(Rule):
            raise InputError(f"n_sharp is a number, {_RULES}; got {n_sharp!r}")
    elif not isinstance(n_sharp, int):
        raise InputError(f"n_sharp is a whole number, {_RULES}; got {n_sharp!r}")
    elif not 1 <= n_sharp <= listed:
        of = f"the layer's {M} weights" if listed == M else f"the {listed} directions computed"
        raise InputError(f"n_sharp must be between 1 and {of}; got {n_sharp}")


def _n_sharp(rule: int | Rule, M: int, sigma_g: Tensor, total_g: float) -> int:
    if not isinstance(rule, str):
        return rule
    n = len(sigma_g)
    if rule == "share" or n == 1:
        return max(1, min(round(PAPER_SHARE * M), n // 2))
    held = sigma_g.square().cumsum(0) / max(total_g, torch.finfo(sigma_g.dtype).tiny)
    if rule == "variance":
        return min(n, int((held < 0.5).sum()) + 1)
    # On a logarithmic scale, and not in the tail, where rounding makes the largest steps.
    ahead = sigma_g[1:] > 1e-3 * sigma_g[0]
    drops = torch.where(ahead, (sigma_g[:-1] / sigma_g[1:].clamp_min(1e-300)).log(), -1.0)
    return int(drops[: max(1, n // 2)].argmax()) + 1


def _groups(
    problem: Problem, chosen: list[Layer], pairs: int, directions: int | None
) -> Iterator[list[Layer]]:
    """The layers in as few groups as the memory budget allows, in order."""
    group: list[Layer] = []
    held = 0
    for layer in chosen:
        M = layer.size
        listed = number_listed(M, directions)
        need = held_bytes(layer, pairs) + 8 * M * listed * 3
        if need > problem.memory:
            raise InputError(
                f"layer {layer.name!r} needs {need / 2**20:,.0f} MiB for its {pairs:,} dual shifts "
                f"and {listed:,} directions, but the memory budget is "
                f"{problem.memory / 2**20:,.0f} MiB; pass Problem(memory=...) with more, "
                "fewer directions or fewer test samples"
            )
        if group and held + need > problem.memory:
            yield group
            group, held = [], 0
        group.append(layer)
        held += need
    yield group


def _listed(group: list[Layer]) -> str:
    names = ", ".join(repr(layer.name) for layer in group[:3])
    return f"layer {names}" if len(group) == 1 else f"layers {names}{', ...' * (len(group) > 3)}"
