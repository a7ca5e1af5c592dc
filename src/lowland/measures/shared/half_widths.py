"""How precisely each weight must be known for the training loss to stay where it is."""

from dataclasses import dataclass

import torch
from torch import Tensor

from lowland.budget import Work
from lowland.curvature import opaque
from lowland.errors import InputError
from lowland.measures.shared.diagonals import gauss_newton_diagonal
from lowland.measures.shared.neighbourhood import neighbourhood
from lowland.measures.sharing import once
from lowland.problem import Problem

# The rise that is allowed, as a share of the loss; of a loss below 1e-3, as a share of 1e-3, so
# that a perfect fit still has a box.
SHARE, LEAST = 0.1, 1e-3


@dataclass(frozen=True)
class HalfWidths:
    """Half-widths ``d`` of the box and the weights ``w`` at its centre, where d is finite."""

    d: Tensor  # (n,), float64
    w: Tensor  # (n,), float64
    free: int  # parameters without curvature, to which the box sets no limit
    epsilon: float


@once(Work(needs=(gauss_newton_diagonal, neighbourhood)))
def half_widths(problem: Problem) -> HalfWidths:
    """``d_i = sqrt(2 epsilon / (n h_ii))`` with the exact Gauss-Newton diagonal h.

    Every parameter takes an equal share of the second-order rise, ``1/2 sum_i h_ii d_i^2 =
    epsilon``; n counts those with ``h_ii > 0``.
    """
    h = gauss_newton_diagonal(problem)
    unknown = [name for name in problem.params if name not in h]
    if unknown:
        why = opaque(problem).get(unknown[0], "cannot be seen through")
        raise InputError(
            "the box needs the exact Gauss-Newton diagonal of every parameter, which is not known "
            f"of {', '.join(map(repr, unknown[:3]))}{', ...' * (len(unknown) > 3)}: the first {why}"
        )
    near = neighbourhood(problem)
    curvature = torch.cat([h[name].flatten() for name in problem.params])
    bound = curvature > 0
    n = int(bound.sum())
    if n == 0:
        raise InputError("the training loss has no curvature along any parameter: the box is open")
    epsilon = SHARE * max(near.origin[0], LEAST)
    d = (2 * epsilon / n / curvature[bound]).sqrt()
    return HalfWidths(d, near.w[bound], len(near.w) - n, epsilon)
