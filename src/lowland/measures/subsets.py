"""A measure estimated from some of the training samples, with the error that this makes.

Random groups: the measure is computed on the whole subset of n samples and on G groups of n/G of
them, all drawn alike. The spread of the groups' values gives the variance of the subset's value,
``var / G``, less the share of all N samples that the subset holds. A measure that is no mean over
samples is biased in a part of them, to leading order by b/n: the subset's value against the groups'
mean gives b, and with it the value for N. The correction is part of the error.
"""

import math
import statistics
from dataclasses import dataclass
from functools import cached_property

import torch
from scipy.special import stdtrit
from torch import Tensor

from lowland.errors import InputError
from lowland.measures.planning import Copies
from lowland.measures.registry import Measure, Value
from lowland.problem import Problem

GROUPS = 4
COPIES = Copies(passes=2, flops=1 + GROUPS)
_TWO_SIGMA = 0.97725  # of a normal distribution is below two standard deviations


def stratified(targets: Tensor, count: int, seed: int = 0) -> Tensor:
    """The places of ``count`` samples, drawn from each class in proportion to its size.

    They come class by class, so that every GROUPS-th of them is such a choice again. Targets that
    are no class labels make one class.
    """
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(targets), generator=generator)
    if targets.ndim == 1 and not targets.is_floating_point():
        order = order[targets.cpu()[order].argsort(stable=True)]
    # Evenly through the classes, one after the other, from a random start.
    start = float(torch.rand((), generator=generator, dtype=torch.float64))
    steps = torch.arange(count, dtype=torch.float64) + start
    return order[(steps * (len(order) / count)).long().clamp_max(len(order) - 1)]


@dataclass(frozen=True)
class Subset:
    """Some of the training samples of a problem, and the groups that they are dealt into."""

    problem: Problem
    count: int
    seed: int = 0

    @cached_property
    def places(self) -> Tensor:
        """The places of the subset's samples in the data, class by class."""
        return stratified(self.problem.train.targets, self.count, self.seed)

    @cached_property
    def whole(self) -> Problem:
        """The problem with all samples of the subset."""
        return self.problem.subset(self.places)

    @cached_property
    def groups(self) -> list[Problem]:
        """The problems with every GROUPS-th sample of the subset, one for each start."""
        return [self.problem.subset(self.places[i::GROUPS]) for i in range(GROUPS)]

    @property
    def words(self) -> str:
        """The words that a measure's method describes the subset with."""
        return f"on {self.count:,} of {self.problem.count():,} samples, stratified"

    def value(self, measure: Measure) -> Value:
        """The measure's value on all samples, estimated from this subset."""
        problems = [self.whole, *self.groups]
        if measure.loss is not None:
            problems = [problem.with_loss(measure.loss) for problem in problems]
        whole, *groups = map(measure.function, problems)
        values = [group.value for group in groups]
        if not all(map(math.isfinite, [whole.value, *values])):
            raise InputError(f"it is not finite {self.words}")
        value, error = extrapolated(whole.value, values, self.count / self.problem.count())
        error = math.hypot(error, whole.stderr or 0.0)
        return Value(value, f"{whole.method}; {self.words}", error)


def extrapolated(whole: float, groups: list[float], share: float) -> tuple[float, float]:
    """The value on all samples and its standard error.

    Args:
        whole: the value on a subset.
        groups: the values on G groups that it is dealt into.
        share: of all samples that the subset holds.

    >>> extrapolated(2.0, [2.0, 2.0, 2.0, 2.0], 0.5)
    (2.0, 0.0)
    """
    G, outside = len(groups), 1 - share
    correction = (whole - statistics.fmean(groups)) / (G - 1) * outside
    spread = math.sqrt(statistics.variance(groups) / G * outside)
    # Two errors of a spread from so few numbers hold what two sigma of a normal one do.
    student = float(stdtrit(G - 1, _TWO_SIGMA)) / 2
    return whole + correction, math.hypot(student * spread, correction)
