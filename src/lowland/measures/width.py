"""The widths of the valley along its sharpest directions."""

import math
from functools import cache

from scipy.optimize import brentq
from torch import Tensor

from lowland.budget import Work
from lowland.errors import InputError
from lowland.measures.registry import Value, register
from lowland.measures.shared.neighbourhood import Neighbourhood, neighbourhood
from lowland.measures.shared.ray import Ray
from lowland.measures.shared.spectrum import LEADING, leading
from lowland.problem import Problem

_GROWTH, _EXPANSIONS = 1.5, 30  # from the quadratic guess to 2e5 times it
_EVALUATIONS = 4  # of the loss on each side, as a rule
# What counts as the crossing: the distance is then off by as much on a parabola around its minimum,
# and by twice that on a straight line.
_CLOSE = 5e-4
_STEEPEST = 1e3  # the loss over twice itself counts as at most this, also where it overflows


@register(
    title="Width",
    family="volume",
    formula="geometric mean over n = 1..3 of F_n = t_+ + t_-, L(w +- t_+- e_n) = 2 L(w), e_n the "
    "leading Hessian eigenvectors",
    definition="How far one can go along the sharpest directions, both ways together, until the "
    "training loss has doubled.",
    citation="Feng & Tu, PNAS 2021; Feng & Tu, 2022, Fig. S4",
    sharper="lower",
    cost=Work(forwards=2 * LEADING * _EVALUATIONS, needs=(neighbourhood, leading)),
)
def width(problem: Problem) -> Value:
    """The mean width along leading directions of all parameters; the papers take one layer's.

    The first crossing is that between the centre and the first point with twice the loss, outwards
    from where a parabola would have it, and is found to 0.1 %.
    """
    near = neighbourhood(problem)
    loss, _ = near.origin
    if not loss > 0:
        raise InputError("the training loss is zero and cannot double; measure with another loss")
    eigenpairs = leading(problem)
    k = len(eigenpairs.values)
    if not eigenpairs.converged:
        raise InputError(
            "the Lanczos iteration has a residual of "
            f"{float(eigenpairs.residuals.max()):.1e} after {eigenpairs.matvecs} products"
        )
    vectors, values = eigenpairs.vectors.T.double(), eigenpairs.values.tolist()
    widths = [_width(near, e, value) for e, value in zip(vectors, values, strict=True)]
    parts = {f"F_{n}": value for n, value in enumerate(widths, 1)}
    mean = math.exp(sum(map(math.log, widths)) / k)
    return Value(mean, f"{k} Lanczos directions, {eigenpairs.matvecs} products", parts=parts)


def _width(near: Neighbourhood, e: Tensor, curvature: float) -> float:
    """The distances along e and against it at which the loss has doubled, together."""
    loss, gradient = near.origin
    slope, ray = float(gradient @ e), Ray(near, e)
    return sum(_distance(ray, sign, loss, sign * slope, curvature) for sign in (1, -1))


def _distance(ray: Ray, sign: int, loss: float, slope: float, curvature: float) -> float:
    """The distance along a direction at which the loss has doubled."""

    @cache
    def over(t: float) -> float:
        """Negative before the crossing, and linear in t on a parabola around its minimum."""
        rise = ray.loss(sign * t) / loss - 1 if t else 0.0
        if not rise < _STEEPEST:
            rise = _STEEPEST
        height = math.copysign(math.sqrt(abs(rise)), rise) - 1
        return height if abs(height) > _CLOSE else 0.0

    if curvature > 0:
        # where slope t + 1/2 curvature t^2 = loss, in a form without cancellation
        inner, outer = 0.0, 2 * loss / (slope + math.hypot(slope, math.sqrt(2 * curvature * loss)))
        for _ in range(_EXPANSIONS):
            if over(outer) >= 0:
                return float(brentq(over, inner, outer, rtol=1e-3))
            inner, outer = outer, outer * _GROWTH
    raise InputError(
        f"the training loss does not double along a leading direction (curvature {curvature:.1e}); "
        "the width needs curvature in each of them"
    )
