"""The worst perturbation of the weights within a ball."""

from torch import Tensor

from lowland.budget import Work
from lowland.errors import InputError
from lowland.measures.registry import Value
from lowland.measures.shared.neighbourhood import Neighbourhood, neighbourhood

_MOST = 25  # gradients
_USUAL = 8  # of them, as a rule
_GROWTH = 1e-4  # relative; below it the rise has stopped growing


WORST_RISE = Work(gradients=_USUAL, needs=(neighbourhood,))


def uphill(slope: Tensor) -> Tensor:
    """The unit vector along a gradient."""
    norm = slope.norm()
    if not norm > 0:
        raise InputError(
            "the gradient of the training loss is zero to the last digit and names no direction to "
            "climb; measure in float64, if it is not yet (Problem(dtype=torch.float64)), or by "
            "expected_sharpness"
        )
    return slope / norm


def worst_rise(near: Neighbourhood, scale: Tensor | float, rho: float) -> Value:
    """``max L(w + scale * u) - L(w)`` over ``|u| <= rho``, from below.

    Starts from the step of SAM (of ASAM, if scaled) and goes again and again to the point of the
    sphere that the gradient there points to. Where the loss is convex no step lowers it.
    """
    loss, slope = near.origin
    best, grows = -float("inf"), True
    steps = 0
    while grows and steps < _MOST:
        there, slope = near.gradient(scale * (rho * uphill(scale * slope)))
        rise = there - loss
        grows = rise - best > _GROWTH * abs(rise)
        best = max(best, rise)
        steps += 1
    state = ", still growing" if grows else ""
    return Value(best, f"gradient ascent on the sphere, {steps} steps{state}; a lower bound")
