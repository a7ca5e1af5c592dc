"""The points of a picture: what they will cost, how far it is, and keeping what is done."""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from lowland.budget import Stage, in_words
from lowland.landscape.evaluation import Evaluator
from lowland.landscape.kept import Kept
from lowland.landscape.points import Frame, Values
from lowland.problem import Problem

Progress = Callable[[str], None]
_FIRST = 2  # points, after which time is taken
_TIMED, _TRIED = 0.2, 100  # seconds that tell the cost of a point, or points if they take less
_BLOCK_SECONDS = 5.0  # between two writings of what is done


def silent(stage: str) -> None:
    """Report nothing."""


@dataclass
class Picture:
    """Points of one frame: evaluated in blocks, told, and kept in a directory if there is one."""

    problem: Problem
    frame: Frame
    title: str
    test: bool = True
    keep: str | Path | None = None
    progress: Progress = silent
    route: str = field(default="", init=False)

    def __post_init__(self) -> None:
        self._evaluator = Evaluator(self.problem, self.frame, test=self.test)
        self._kept: Kept | None = None
        if self.keep is not None:
            self._kept = Kept(self.keep, self.problem, self.frame, self.test)
        self._each: float | None = None  # seconds of a point
        self._told = False  # what all will cost

    def values(self, coefficients: np.ndarray, told: bool = True) -> Values:
        """Losses and errors at points (points, k)."""
        c = np.asarray(coefficients, dtype=np.float64)
        todo = np.arange(len(c))
        if self._kept is not None:
            todo = todo[~self._kept.has(c)]
        if not len(todo):
            assert self._kept is not None
            self.route = self._kept.route
            return self._kept.values(c)
        parts, done = [], 0
        for block in self._blocks(len(todo)):
            chosen = c[todo[block]]
            began = time.monotonic()
            part = self._evaluated(chosen, told, done, len(todo))
            took = time.monotonic() - began
            if done:  # the first also record the forward pass
                self._each = took / len(chosen)
            parts.append(part)
            done += len(chosen)
            timed = took > _TIMED or done >= _TRIED
            if told and self._each and not self._told and timed and done < len(todo):
                self._told = True
                self._tell_cost(len(todo), len(c) - len(todo), (len(todo) - done) * self._each)
        if self._kept is not None:
            return self._kept.values(c)
        return Values.joined(parts)

    def _blocks(self, count: int) -> Iterator[slice]:
        """Ranges of points: a few first, then all, or as many as take some seconds if kept."""
        start, size = 0, min(_FIRST, count)
        while start < count:
            yield slice(start, start + size)
            start += size
            size = min(count - start, 8 * _FIRST if start == _FIRST else _TRIED)
            if self._told:
                size = count - start
            if self._kept is not None and self._each:
                size = min(size, max(1, math.ceil(_BLOCK_SECONDS / self._each)))

    def _evaluated(self, chosen: np.ndarray, told: bool, done: int, total: int) -> Values:
        def tell(share: float) -> None:
            if told and self._each is not None and self._told:
                here = done + share * len(chosen)
                left = (total - here) * self._each
                self.progress(Stage(self.title, here / total, left))

        values = self._evaluator.values(chosen, tell)
        self.route = self._evaluator.route
        if self._kept is not None:
            self._kept.add(chosen, values, self.route)
        return values

    def _tell_cost(self, count: int, before: int, seconds: float) -> None:
        samples = f"{self.problem.count():,}"
        if self.test and self.problem.has_test:
            samples += f" + {self.problem.count('test'):,}"
        again = f" ({before:,} more are done already)" if before else ""
        line = f"{self.title}: {count:,} points{again} of {samples} samples, about "
        self.progress(Stage(line + in_words(seconds), 0.0, seconds, seconds, lasting=True))
