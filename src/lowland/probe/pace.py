"""When to measure next, so that all measuring takes no more than its share of the time."""

import math
import time

from lowland.distributed import of_first_rank
from lowland.errors import InputError


class Pace:
    """The time of a training and of what is measured in it.

    Args:
        every: steps between two measurements, at least.
        max_overhead: the share of the training's own time that they may take together, or None.
    """

    def __init__(self, every: int, max_overhead: float | None) -> None:
        if not isinstance(every, int) or every < 1:
            raise InputError(f"every is a whole number of steps, at least 1; got {every!r}")
        if max_overhead is not None and not (
            isinstance(max_overhead, (int, float)) and max_overhead > 0
        ):
            raise InputError(
                f"max_overhead is a share of the training's time, such as 0.05, or None; got "
                f"{max_overhead!r}"
            )
        self.every, self.max_overhead = every, max_overhead
        self._next: int | None = None  # the step of the next measurement
        self._cost = 0.0  # of the last one
        self.trained = 0.0  # seconds outside of the probe
        self.spent = 0.0  # and inside
        self._last: int | None = None  # the step that the training has come to
        self._steps = 0  # how many it took until there
        self._since = time.perf_counter()

    @property
    def overhead(self) -> float:
        """What was spent, as a share of the training's own time."""
        return self.spent / self.trained if self.trained else 0.0

    def is_due(self, step: int) -> bool:
        """Whether it is time to measure; it is at the first step, and after going back."""
        return self._next is None or step >= self._next or self._goes_back(step)

    def _goes_back(self, step: int) -> bool:
        """Whether the training went on from an earlier checkpoint."""
        return self._last is not None and step < self._last

    def enter(self, step: int) -> None:
        """The training has come to a step."""
        self.trained += self._lap()
        if self._last is None or self._goes_back(step):
            self._next = None
            self._steps += 1
        else:
            self._steps += step - self._last
        self._last = step

    def leave(self) -> None:
        """The training goes on."""
        self.spent += self._lap()

    def affords(self, step: int) -> bool:
        """Whether a measurement that costs what the last one did keeps to the share of the time.

        If not, it is put off. Steps may have become faster since it was planned.
        """
        if self.max_overhead is None or not self._cost or self._lacking() <= 0:
            return True
        self._put_off(step)
        return False

    def plan(self, step: int, cost: float) -> None:
        """Choose the step of the next measurement, which would cost as much as this one."""
        self._cost = cost
        self._put_off(step)

    def _put_off(self, step: int) -> None:
        wait = 1
        if self.max_overhead is not None:
            # A time that was seen of few steps may be that of the first one: look again soon.
            wait = min(math.ceil(self._lacking() * self._steps), self._steps)
        self._next = -(-(step + max(wait, 1)) // self.every) * self.every

    def _lacking(self) -> float:
        """The time to train before the next measurement, as a share of the time until now.

        All ranks take the first one's clock, so that they measure at the same steps.
        """
        assert self.max_overhead is not None
        trained, spent, cost = of_first_rank((self.trained, self.spent, self._cost))
        return float((spent + cost) / self.max_overhead / max(trained, 1e-9) - 1)

    def _lap(self) -> float:
        before, self._since = self._since, time.perf_counter()
        return self._since - before
