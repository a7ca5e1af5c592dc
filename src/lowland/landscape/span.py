"""How far a picture goes: so that the basin fills it; and where more points are needed."""

from collections.abc import Callable
from numbers import Integral, Real

import numpy as np

from lowland.errors import InputError
from lowland.measures import constant_prediction
from lowland.problem import Problem

Losses = Callable[[np.ndarray], np.ndarray]  # at points (points, k)

_WIDEST, _NARROWEST = 64.0, 2.0**-14  # units of an axis
_FARTHEST = 1e300  # beyond it, places themselves overflow
_BEND = 0.02  # of the range of losses: a curve that bends less between points is well drawn


def checked(span: float | str, steps: int, refine: int = 0) -> None:
    """An error unless they are a range, a number of points and one of more points."""
    number = isinstance(span, Real) and not isinstance(span, bool)
    if span != "auto" and not (number and 0 < float(span) < _FARTHEST):
        raise InputError(
            f"span is a positive number, below {_FARTHEST:.0e}, or 'auto'; got {span!r}"
        )
    if not isinstance(steps, Integral) or isinstance(steps, bool) or steps < 3:
        raise InputError(f"steps is the number of points along an axis, at least 3; got {steps!r}")
    if not isinstance(refine, Integral) or isinstance(refine, bool) or refine < 0:
        raise InputError(f"refine is a number of more points, 0 for none; got {refine!r}")


def basin(problem: Problem, losses: Losses, k: int, axis: int) -> float:
    """The distance along an axis at which the loss, on average of both sides, leaves the basin.

    It leaves it where it is that of a model that has learned nothing, the best constant outputs,
    and at least twice the centre's. Where the loss never rises so far it is the distance at which
    it is highest.
    """
    reaches = np.geomspace(_NARROWEST, _WIDEST, 45)
    direction = np.zeros(k)
    direction[axis] = 1.0
    ray = reaches[:, None] * direction
    points = np.concatenate([np.zeros((1, k)), ray, -ray])
    found = losses(points)
    centre, sides = found[0], found[1:].reshape(2, -1)
    finite = np.isfinite(sides).all(0)
    mean = np.where(finite, sides.mean(0), np.inf)
    target = _edge(problem, float(centre))
    beyond = np.flatnonzero(mean >= target)
    if len(beyond) and beyond[0] > 0:
        high = beyond[0]
        low = high - 1
        if not np.isfinite(mean[high]):
            return float(reaches[low])
        share = (target - mean[low]) / max(mean[high] - mean[low], 1e-300)
        return float(reaches[low] * (reaches[high] / reaches[low]) ** np.clip(share, 0, 1))
    if len(beyond):
        return float(reaches[0])
    return float(reaches[np.argmax(np.where(finite, mean, -np.inf))])


def _edge(problem: Problem, centre: float) -> float:
    try:
        constant, _ = constant_prediction(problem)
    except InputError:  # targets that are too large to hold
        constant = None
    if constant is None:
        return centre + max(1.0, abs(centre))
    return max(constant, centre + abs(centre))


def grid(low: float, high: float, steps: int) -> np.ndarray:
    """Evenly spaced points with both ends; 0 is exactly 0 if it is among them."""
    points = np.linspace(low, high, steps)
    if low == -high:
        points = (points - points[::-1]) / 2
    return points


def midpoints(x: np.ndarray, values: np.ndarray, count: int) -> np.ndarray:
    """Up to ``count`` points half way between two of ``x``, where the curves bend most.

    ``values`` is (n,) or (rows, n): the bend of all rows counts. Holes count as bends beside them,
    since that is where the picture is least known.
    """
    rows = np.atleast_2d(values)
    finite = rows[np.isfinite(rows)]
    if len(x) < 3 or not len(finite) or not np.ptp(finite) > 0:
        return np.array([])
    spacing = np.diff(x)
    slopes = np.diff(rows, axis=1) / spacing
    bend = np.abs(np.diff(slopes, axis=1)) * (spacing[1:] + spacing[:-1]) / 2  # (rows, n - 2)
    bend = np.where(np.isfinite(bend), bend, np.ptp(finite)).max(0)
    of_interval = (np.append(bend, 0) + np.insert(bend, 0, 0)) * spacing / spacing.max()
    order = np.argsort(-of_interval)[:count]
    chosen = order[of_interval[order] > _BEND * np.ptp(finite)]
    return np.sort((x[chosen] + x[chosen + 1]) / 2)
