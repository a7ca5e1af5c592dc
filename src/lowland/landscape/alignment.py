"""Alignment by weight matching (Ainsworth et al., Git Re-Basin, 2023)."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from lowland.landscape.units import Place, Units, permuted, units
from lowland.problem import Problem

_SWEEPS = 100  # over all groups, at most


@dataclass(frozen=True)
class Aligned:
    """The second model's state with its units in the order that fits the first model's best."""

    state: dict[str, Tensor]
    groups: tuple[Units, ...]
    orders: list[Tensor]  # unit i of a group is the second model's unit order[i]

    @property
    def words(self) -> tuple[str, ...]:
        """What was permuted; groups that were in order already are not named."""
        moved = (not torch.equal(o, torch.arange(len(o))) for o in self.orders)
        return tuple(str(g) for g, m in zip(self.groups, moved, strict=True) if m)


def align(
    problem: Problem, a: Mapping[str, Tensor], b: Mapping[str, Tensor], seed: int = 0
) -> Aligned:
    """Permute the hidden units of b so that its weights lie as near to those of a as can be found.

    One group of units after the other gets the permutation that is best while the others stay: a
    linear assignment problem. That is repeated, in random order, until nothing changes; the
    distance falls with every step, and ends in a local minimum. Only parameters count, and the
    statistics of normalisations move with them.
    """
    groups = units(problem)
    params = [n for n, _ in problem.model.named_parameters()]
    orders = [torch.arange(group.size) for group in groups]
    generator = np.random.default_rng(seed)
    for _ in range(_SWEEPS):
        changed = False
        for i in generator.permutation(len(groups)):
            current = permuted(b, groups, orders)
            order = _best(groups[i], a, current, params)
            if not torch.equal(order, torch.arange(len(order))):
                orders[i] = orders[i][order]
                changed = True
        if not changed:
            break
    return Aligned(permuted(b, groups, orders), groups, orders)


def _best(
    group: Units, a: Mapping[str, Tensor], b: Mapping[str, Tensor], params: list[str]
) -> Tensor:
    """The permutation of b's units of one group that brings it nearest to a."""
    gain = torch.zeros(group.size, group.size, dtype=torch.float64)
    for place in group.places:
        twice = sum(p.name == place.name for p in group.places) > 1
        if place.name in params and not twice:  # a layer from a group to itself is not linear in it
            gain += _rows(a[place.name], place) @ _rows(b[place.name], place).T
    identity = float(gain.diagonal().sum())
    rows, columns = linear_sum_assignment(gain.numpy(), maximize=True)
    better = float(gain[rows, columns].sum()) - identity
    if better <= 1e-9 * max(1.0, abs(identity)):  # else two that are equally good take turns
        return torch.arange(group.size)
    return torch.as_tensor(columns)


def _rows(t: Tensor, place: Place) -> Tensor:
    """One row of numbers for each unit, in float64."""
    return (
        t.detach()
        .cpu()
        .double()
        .movedim(place.dimension, 0)
        .reshape(t.shape[place.dimension] // place.block, -1)
    )
