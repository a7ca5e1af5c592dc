"""Which layer is decomposed, and over which pairs, where the caller leaves that open."""

from dataclasses import dataclass, replace

import torch

from lowland.curvature import Layer, layer
from lowland.dual.basis import ALL_DIRECTIONS
from lowland.dual.fit import NoDual, fit
from lowland.dual.pairing import Pairs, pair
from lowland.dual.shifts import dual_shifts, held_bytes, layers_with_dual
from lowland.errors import InputError
from lowland.findings import TRUSTED
from lowland.problem import Problem

_FEW = 32  # pairs


@dataclass(frozen=True)
class Choice:
    """The layer to decompose, the pairs, and notes that say why these are not the usual ones."""

    layer: str
    pairs: Pairs
    notes: tuple[str, ...]


def choose(problem: Problem, name: str | None = None) -> Choice:
    """Choose the layer that stands for the model, unless one is named, and pair the samples.

    It is the dense layer before the last, as in Feng & Tu, of those small enough that all their
    directions are computed, or the only one. If its dual weights do not stand for the data, it is
    the last layer whose do. Samples are paired by the distance of their inputs or, where these are
    no points in space, by what that layer sees.
    """
    first = usual(problem) if name is None else layer(problem, name).name
    notes = []
    try:
        pairs = pair(problem)
    except InputError as error:
        pairs = pair(problem, space=first)
        notes.append(f"Samples were paired by what layer {first!r} sees: {error}.")
    if name is None and (useful := _useful(problem, first, pairs)) != first:
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


def _useful(problem: Problem, first: str, pairs: Pairs) -> str:
    """The usual layer or, if data goes around it, the last one that has a useful dual.

    Some of the pairs show which layers are far from it: a network with a path around all of its
    layers has none to offer, and each would take the time of several gradients.
    """
    every = layers_with_dual(problem)
    for name in (first, *(other for other in reversed(every) if other != first)):
        candidate = every[name]
        if held_bytes(candidate, len(pairs)) > problem.memory:
            if name == first:
                return first  # which the decomposition will refuse, with what it needs
            continue
        try:
            if (
                not far_from_dual(problem, candidate, pairs)
                and fit(dual_shifts(problem, [candidate], pairs), name, pairs).trusted
            ):
                return name
        except NoDual:
            continue
    return first


def far_from_dual(problem: Problem, layer: Layer, pairs: Pairs) -> bool:
    """Whether some of many pairs show that a layer has no useful dual; an error if it has none."""
    if len(pairs) <= _FEW:
        return False
    places = torch.linspace(0, len(pairs) - 1, _FEW).round().long()
    few = replace(pairs, train=pairs.train[places], test=pairs.test[places])
    rough = fit(dual_shifts(problem, [layer], few), layer.name, few)
    return max(rough.mean_residual, rough.loss_defect) > 2 * TRUSTED
