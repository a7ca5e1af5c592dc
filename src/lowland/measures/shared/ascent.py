"""The worst perturbation of the weights within a ball."""

from torch import Tensor

from lowland.budget import Work
from lowland.errors import InputError
from lowland.measures.registry import Value
from lowland.measures.shared.neighbourhood import Neighbourhood, neighbourhood

_MOST = 25  # gradients
_USUAL = 10  # of them, as a rule
_GROWTH = 1e-4  # relative; below it the rise has stopped growing
_FARTHEST = 8.0  # steps that a point is beyond the last one at most


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
    sphere that the gradient there points to. Where the loss is convex no step lowers it. Two steps
    in a row that shrink alike tell where such steps lead to; the next point is beyond them by that,
    unless the last one of these was lower.
    """
    loss, slope = near.origin
    best, steps, grows, leaps = -float("inf"), 0, True, True
    u = uphill(scale * slope)
    move: Tensor | None = None  # the last step, unless u lies beyond it
    beyond: Tensor | None = None  # the point that u is beyond, if it is
    while grows and steps < _MOST:
        there, slope = near.gradient(scale * (rho * u))
        rise = there - loss
        steps += 1
        lower = rise <= best
        if beyond is not None and lower:
            u, move, beyond, leaps = beyond, None, None, False
            continue
        grows = beyond is not None or rise - best > _GROWTH * abs(rise)
        best = max(best, rise)
        following = uphill(scale * slope)
        last, move, beyond = move, following - u, None
        shrunk = float(move @ last / (last @ last)) if leaps and last is not None else 0.0
        if 0 < shrunk < 1:
            beyond = following
            following = uphill(following + move * min(shrunk / (1 - shrunk), _FARTHEST))
            move = None
        u = following
    state = ", still growing" if grows else ""
    return Value(best, f"gradient ascent on the sphere, {steps} steps{state}; a lower bound")
