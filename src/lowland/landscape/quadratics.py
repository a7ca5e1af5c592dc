"""The loss to second order at the centre, by gradient and Hessian, and how far it holds."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product

import numpy as np
import torch
from torch import Tensor

from lowland.errors import InputError
from lowland.findings import HOLDS, Quadratic
from lowland.landscape.points import Weights, dot
from lowland.measures.shared.spectrum import whole_hessian
from lowland.problem import Problem

Losses = Callable[[np.ndarray], np.ndarray]  # at points (points, k)

# The rise of the loss between the points of second differences, as a share of the loss: far above
# rounding, and small enough for the fourth derivative not to show.
_RISE = 1e-2
_LADDER = 12  # distances at which the quadratic is tried, each half of the one before


def quadratic(
    problem: Problem, directions: Sequence[Weights], span: float, losses: Losses
) -> tuple[Quadratic | None, str | None]:
    """The quadratic along one or two directions; None, and why, where there is no Hessian."""
    try:
        slope, curvature = _derivatives(problem, directions)
    except InputError as error:
        return None, f"The quadratic was not computed: {error}."
    centre = float(losses(np.zeros((1, len(directions))))[0])
    entries = _entries(curvature)
    step = _step(span, centre, curvature)
    measured = _second_differences(losses, step, len(directions))
    found = Quadratic(centre, tuple(slope), entries, measured, None)
    digits = 4 * torch.finfo(problem.dtype).eps
    return replace(found, holds=_holds(found, span, losses, digits)), None


def _derivatives(problem: Problem, directions: Sequence[Weights]) -> tuple[list[float], np.ndarray]:
    """``d_i . g`` and ``d_i^T H d_j``, in float64."""
    _, gradient = problem.gradient()
    slope = [dot(gradient, d) for d in directions]
    H = whole_hessian(problem)  # that of the measures, where they are computed as well
    columns = torch.stack([_flat(H.params, d) for d in directions], 1)
    products = (H @ columns.to(H.device, H.dtype)).double()
    return slope, (columns.double().to(products).T @ products).cpu().numpy()


def _flat(params: Weights, direction: Weights) -> Tensor:
    return torch.cat(
        [(direction[n] if n in direction else torch.zeros_like(p)).reshape(-1)
         for n, p in params.items()]
    )  # fmt: skip


def _entries(curvature: np.ndarray) -> tuple[float, ...]:
    """xx, or xx, xy and yy."""
    rows, columns = np.triu_indices(len(curvature))
    sums = (curvature + curvature.T) / 2
    return tuple(float(sums[i, j]) for i, j in zip(rows, columns, strict=True))


def _step(span: float, centre: float, curvature: np.ndarray) -> np.ndarray:
    """How far apart the points of second differences lie along each direction."""
    steps = []
    for bend in np.abs(np.diag(curvature)):
        rise = _RISE * max(abs(centre), 1e-3)
        steps.append(min(span, (2 * rise / bend) ** 0.5) if bend > 0 else span / 10)
    return np.array(steps)


def _second_differences(losses: Losses, step: np.ndarray, k: int) -> tuple[float, ...]:
    """From differences at a step and at half of it, so that the fourth derivative cancels."""
    whole, half = (_differences(losses, h, k) for h in (step, step / 2))
    return tuple(((4 * half - whole) / 3).tolist())


def _differences(losses: Losses, step: np.ndarray, k: int) -> np.ndarray:
    centre = losses(np.zeros((1, k)))[0]
    ends = np.concatenate([np.diag(step), -np.diag(step)])  # (2k, k)
    at_ends = losses(ends)
    bends = [(at_ends[i] + at_ends[i + k] - 2 * centre) / step[i] ** 2 for i in range(k)]
    if k == 1:
        return np.array(bends)
    corners = np.array(list(product((1, -1), repeat=2)))
    mixed = losses(corners * step) @ corners.prod(1) / (4 * step.prod())
    return np.array([bends[0], mixed, bends[1]])


def _holds(q: Quadratic, span: float, losses: Losses, digits: float) -> float | None:
    """The largest distance on a ladder up to which the quadratic is right in all directions tried.

    It is right where it misses the loss by at most a tenth of what its own terms, without their
    signs, change it by. Along a line both ends are tried, on a plane eight directions.
    """
    k = len(q.slope)
    signs = [s for s in product((1, 0, -1), repeat=k) if any(s)]
    rays = np.array([np.array(s) / np.linalg.norm(s) for s in signs])
    reaches = span * 0.5 ** np.arange(_LADDER - 1, -1, -1.0)
    points = np.concatenate([r * rays for r in reaches])
    found = losses(points).reshape(len(reaches), len(rays))
    linear = points @ np.array(q.slope)
    if k == 1:
        bent = q.curvature[0] / 2 * points[:, 0] ** 2
    else:
        x, y = points.T
        bent = (q.curvature[0] * x**2 + 2 * q.curvature[1] * x * y + q.curvature[2] * y**2) / 2
    expected = (q.value + linear + bent).reshape(found.shape)
    # Differences below the rounding of a loss say nothing about its shape.
    allowed = HOLDS * (abs(linear) + abs(bent)) + digits * abs(q.value) + 1e-12
    right = np.abs(found - expected) <= allowed.reshape(found.shape)  # False at holes
    each = right.all(1)
    changes = (abs(linear) + abs(bent)).reshape(found.shape).max(1)
    told = changes > 10 * digits * abs(q.value) + 1e-12
    last = None
    for reach, good, tells in zip(reaches, each, told, strict=True):
        if not good:
            break
        if tells:
            last = float(reach)
    return last
