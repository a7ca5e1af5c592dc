"""Which layer is decomposed, and over which pairs, where the caller leaves that open."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from lowland.curvature import Layer, layer
from lowland.dual.basis import ALL_DIRECTIONS
from lowland.dual.fit import NoDual, fit
from lowland.dual.pairing import Pairs, pair
from lowland.dual.reproduced import is_bottleneck
from lowland.dual.shifts import AskedDual, dual_shifts, held_bytes, layers_with_dual
from lowland.errors import InputError
from lowland.findings import TRUSTED, DualKind
from lowland.problem import Problem

_FEW = 32  # pairs that tell whether a layer has a useful dual,
_FEWEST = 4  # and whether all data passes through it, as far as a plan needs to know


@dataclass(frozen=True)
class Choice:
    """The layer to decompose, the pairs, and notes that say why these are not the usual ones."""

    layer: str
    pairs: Pairs
    notes: tuple[str, ...]


def choose(problem: Problem, name: str | None = None, dual: AskedDual = "auto") -> Choice:
    """Choose the layer that stands for the model, unless one is named, and pair the samples.

    It is the dense layer before the last, as in Feng & Tu, of those small enough that all their
    directions are computed, or the only one. If its activities do not stand for the data, but those
    of the last layer do, it is that one; ``dual`` is what dual weights are to reproduce, as in
    :func:`duality`. Samples are paired by the distance of their inputs or, where these are no
    points in space, by what that layer sees.
    """
    first = usual(problem) if name is None else layer(problem, name).name
    notes = []
    try:
        pairs = pair(problem)
    except InputError as error:
        pairs = pair(problem, space=first)
        notes.append(f"Samples were paired by what layer {first!r} sees: {error}.")
    if name is None and (useful := _useful(problem, first, pairs, dual)) != first:
        notes.append(f"Layer {first!r} has no useful dual, so {useful!r} was decomposed.")
        return Choice(useful, pairs, tuple(notes))
    return Choice(first, pairs, tuple(notes))


def usual(problem: Problem) -> str:
    """The dense layer before the last of those whose directions can all be computed."""
    dense = [
        candidate
        for candidate in layers_with_dual(problem).values()
        if candidate.operation == "dense"
    ]
    if not dense:
        raise InputError("the model has no dense layer that can be seen through")
    small = [candidate for candidate in dense if candidate.size <= ALL_DIRECTIONS] or dense
    return small[-2].name if len(small) > 1 else small[0].name


def _useful(problem: Problem, first: str, pairs: Pairs, dual: AskedDual) -> str:
    """The usual layer or, if data goes around it, the last one, where all of it meets again.

    If the activities of neither stand for the data, or are not asked for, it is the usual one: its
    output-level dual is then solved for, which takes too long to be tried on other layers first.
    """
    every, few = layers_with_dual(problem), _few(pairs, _FEW)
    for name in (first, list(every)[-1]):
        candidate = every[name]
        if held_bytes(candidate, len(pairs)) > problem.memory:
            if name == first:
                return first  # which the decomposition will refuse, with what it needs
            continue
        try:
            if dual != "output" and fit(dual_shifts(problem, [candidate], few), name, few).trusted:
                return name
        except NoDual:
            continue
    return first


def far_from_dual(problem: Problem, layer: Layer, pairs: Pairs) -> bool:
    """Whether some of many pairs show that a layer has no useful dual; an error if it has none."""
    if len(pairs) <= _FEW:
        return False
    few = _few(pairs, _FEW)
    rough = fit(dual_shifts(problem, [layer], few), layer.name, few)
    return max(rough.mean_residual, rough.loss_defect) > 2 * TRUSTED


def expected_duals(
    problem: Problem, chosen: Sequence[Layer], pairs: Pairs, dual: AskedDual
) -> dict[str, DualKind]:
    """Which dual each layer will have, by its name, as some of the pairs show."""
    if dual != "auto" or not chosen:
        return {layer.name: "output" if dual == "output" else "activity" for layer in chosen}
    few = _few(pairs, _FEWEST)
    paired = dual_shifts(problem, [layer for layer in chosen if not layer.in_series], few)
    return {
        layer.name: "output"
        if layer.in_series or not is_bottleneck(paired, layer.name, few)
        else "activity"
        for layer in chosen
    }


def _few(pairs: Pairs, count: int) -> Pairs:
    """Some of the pairs, evenly."""
    places = torch.linspace(0, len(pairs) - 1, min(count, len(pairs))).round().long()
    return replace(pairs, train=pairs.train[places], test=pairs.test[places])
