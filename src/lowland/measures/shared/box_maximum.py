"""The sharpness of Keskar et al. (2017): the largest loss within a box."""

from collections.abc import Callable

import numpy as np
import torch
from scipy.optimize import fmin_l_bfgs_b
from torch import Tensor

from lowland.budget import Work
from lowland.errors import InputError
from lowland.measures.registry import Value
from lowland.measures.shared.neighbourhood import Neighbourhood, neighbourhood

EPSILONS = 1e-3, 5e-4  # the paper's, as is the number of iterations
_ITERATIONS = 10
_USUAL = 6  # gradients in each box, as a rule
_GROWTH = 1e-3  # relative; an iteration that raises the loss by less is the last
_VECTORS = 50  # in float64, that L-BFGS-B was seen to take
_STEEPNESS = 100.0  # the mean gradient per half-width of the box, after scaling

BOX_MAXIMUM = Work(gradients=_USUAL * len(EPSILONS), needs=(neighbourhood,))

Map = Callable[[Tensor], Tensor]
# The rise of the loss and its gradient at a point of the box [-1, 1]^p.
Function = Callable[[np.ndarray], tuple[float, np.ndarray]]


def box_sharpness(
    near: Neighbourhood,
    sides: Tensor,
    start: Tensor,
    spread: Map = lambda y: y,
    gathered: Map = lambda v: v,
) -> Value:
    """``max (L(w + A y) - L(w)) / (1 + L(w))`` over ``|y_i| <= eps sides_i``.

    ``spread`` multiplies by A and ``gathered`` by its transpose; A is the identity by default.
    ``start`` is in units of the box: y = 0 would be stationary at a minimum. The smaller box is
    searched from where the maximum of the larger one lies in it.
    """
    loss, _ = near.origin
    y, gradients = start.cpu().numpy(), 0
    values = []
    for eps in EPSILONS:

        def rise(y: np.ndarray, half: Tensor = eps * sides) -> tuple[float, np.ndarray]:
            there, slope = near.gradient(spread(half * torch.from_numpy(y).to(half)))
            return there - loss, (half * gathered(slope)).cpu().numpy()

        highest, y, calls = _maximum(rise, y, near.problem.memory // 2)
        values.append(highest / (1 + loss))
        gradients += calls
    parts = {
        "percent": 100 * values[0],
        "eps_5e-4": values[1],
        "percent_5e-4": 100 * values[1],
    }
    method = f"ascent from a random point, {gradients} gradients; a lower bound"
    return Value(values[0], method, parts=parts)


def _maximum(
    rise: Function, start: np.ndarray, memory: int = 1 << 30
) -> tuple[float, np.ndarray, int]:
    """The largest rise that ten iterations reach, where, and after how many gradients.

    Each goes to the corner that the gradient points to. A convex function lies above its tangents,
    so that it can only rise by that, and near a minimum the loss is nearly convex. Where it falls,
    L-BFGS-B goes on from the highest corner. It finds the same elsewhere, within the growth that
    counts, but SciPy takes seconds for each step with a million weights, and some fifty vectors:
    where they do not fit the memory, the highest corner is the answer.
    """
    _, slope = rise(start)
    size = float(np.abs(slope).mean())
    if not 0 < size < np.inf:
        raise InputError(
            f"the gradient of the training loss beside the weights is {size:g} throughout: there "
            "is nothing to climb"
        )
    highest, corner, y = -np.inf, start, np.sign(slope)
    for calls in range(2, _ITERATIONS + 2):
        value, there = rise(y)
        if value < highest and _VECTORS * start.nbytes > memory:
            break
        if value < highest:
            highest, corner, more = _beside(rise, corner, slope)
            return highest, corner, calls + more
        enough = value < (1 + _GROWTH) * highest
        highest, corner, slope = value, y, there
        y = np.sign(slope)
        if enough or np.array_equal(y, corner):
            break
    return highest, corner, calls


def _beside(rise: Function, start: np.ndarray, slope: np.ndarray) -> tuple[float, np.ndarray, int]:
    """The same by L-BFGS-B.

    It learns no curvature where the function to be maximised is convex: its steps are then as long
    as the gradient. So the loss is scaled such that a step reaches the walls of the box.
    """
    scale = _STEEPNESS / float(np.abs(slope).mean())

    def descent(y: np.ndarray) -> tuple[float, np.ndarray]:
        value, slope = rise(y)
        return -scale * value, -scale * slope

    y, lowest, facts = fmin_l_bfgs_b(
        descent,
        start,
        bounds=[(-1.0, 1.0)] * len(start),  # `minimize` would take twice as long to read them
        maxiter=_ITERATIONS,
        factr=_GROWTH / np.finfo(float).eps,
    )
    return -float(lowest) / scale, y, facts["funcalls"]
