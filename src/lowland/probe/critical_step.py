"""How far one can go in a direction before the loss rises."""

import math
from collections.abc import Callable
from dataclasses import dataclass

PASSES = 8  # forward passes of one search; the loss at the start is one more
_TOLERANCE = 0.04  # of the step's size, to either side
_NEAREST, _FARTHEST = 2, 64  # factors of the next step, while all are on one side of the critical
_MARGIN = 1.3  # beyond where a line crosses zero: the loss may be no parabola

Point = tuple[float, float]  # a step, and the rise of the loss over the step


@dataclass(frozen=True)
class Search:
    """The critical step, or None if it was not found; and where the next search should begin."""

    step: float | None
    guess: float


def critical_step(
    rise: Callable[[float], float], guess: float, slope: float | None = None
) -> Search:
    """A step after which the loss is above its start and 8 % below which it is not.

    ``rise(a) / a`` is linear in the step a where the loss is quadratic, and equals the slope at
    ``a = 0``. So two steps give the critical one by a straight line, and two more, just below and
    above it, confirm it. Where they do not, lines and halving go on.

    Args:
        rise: the loss after a step less that before it.
        guess: a step to begin with, such as the last critical one.
        slope: the loss's slope along the direction, if it is known; it saves a pass.

    Returns:
        The step; None if eight passes do not tell it: the loss rises at once, or does not rise
        within a large multiple of the guess, or is not at all like a parabola.
    """
    before = (0.0, slope) if slope is not None and slope < 0 else None
    low, high = before, None
    step, lines = guess, 0
    for _ in range(PASSES):
        change = rise(step)
        point = step, change / step if math.isfinite(change) else math.inf
        if point[1] > 0:
            high = point
        else:
            low = point
        if low is None or high is None:
            if _is_uphill(point, before) and step < guess / _FARTHEST:
                return Search(None, guess)  # the loss rises at once
            step, before = _farther(point, before), point
            continue
        if high[0] * (1 - _TOLERANCE) <= low[0] * (1 + _TOLERANCE) * (1 + 1e-9):
            step = _zero(low, high) if math.isfinite(high[1]) else (low[0] + high[0]) / 2
            return Search(step, step)
        if lines < 2 and math.isfinite(high[1]):
            lines += 1
            zero = _zero(low, high)
            # Beyond the line's zero, as seen from the nearer end: the farther end comes close.
            near_low = zero - low[0] < high[0] - zero
            step = zero * (1 + _TOLERANCE if near_low else 1 - _TOLERANCE)
            if low[0] < step < high[0]:
                continue
        lines = 0
        step = math.sqrt(low[0] * high[0]) if low[0] > 0 else high[0] / 4
    return Search(None, step)


def _zero(a: Point, b: Point) -> float:
    """Where the line through two points crosses zero."""
    return a[0] - a[1] * (b[0] - a[0]) / (b[1] - a[1])


def _is_uphill(point: Point, before: Point | None) -> bool:
    """Whether the line through two points is above zero also for the smallest steps."""
    if before is None or not point[1] > 0 or not math.isfinite(before[1]):
        return False
    return before[1] <= point[1] or _zero(point, before) <= 0


def _farther(point: Point, before: Point | None) -> float:
    """The next step beyond the critical one: by the line through two points, within limits."""
    step, quotient = point
    if before is None or not math.isfinite(before[1]) or not math.isfinite(quotient):
        return step * _NEAREST if quotient <= 0 else step / _NEAREST
    rises = (quotient - before[1]) * (step - before[0]) > 0
    zero = _zero(point, before) if rises else math.nan
    if quotient <= 0:
        wanted = zero * _MARGIN if rises else math.inf
        return min(max(wanted, step * _NEAREST), step * _FARTHEST)
    wanted = zero / _MARGIN if rises else 0.0
    return max(min(wanted, step / _NEAREST), step / _FARTHEST)
