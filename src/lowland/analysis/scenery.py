"""The landscape of an analysis: a surface and two cuts, on as many samples as time allows."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch.utils.flop_counter import FlopCounterMode

from lowland.budget import Work
from lowland.errors import InputError
from lowland.findings import Landscape
from lowland.landscape import line, surface
from lowland.measures import stratified
from lowland.problem import Problem
from lowland.usercode import described

TITLE = "the loss landscape"
_STEPS = 25  # along each axis of the surface
_CUT = 41
_LADDERS = 5 * 91  # points that choose the spans and try the quadratics
# A recorded forward pass takes this share of the model's own, from an MLP (0.1) to a ResNet (0.7).
_SHARE = 0.4
_PRODUCTS = 20  # with the Hessian, for the leading eigenvector
# Samples of either split: a picture needs no more, and of a model whose forward pass takes many
# operations fewer, so that the surface takes some twenty seconds of two cores.
_LEAST, _MOST = 64, 1024
_FLOPS = 1e13


@dataclass
class Scenery:
    """The landscape that is drawn beside everything else, and why it is not, where it is not."""

    problem: Problem
    seed: int = 0
    landscape: Landscape | None = None
    notes: list[str] = field(default_factory=list)

    @cached_property
    def samples(self) -> int:
        """How many samples of each split are drawn, at most: the same on every machine."""
        counter = FlopCounterMode(display=False)
        try:
            with self.problem.measuring(), torch.no_grad(), counter:
                self.problem.batch_losses(self.problem.first(1))
        except Exception:  # operations that cannot be counted, or an error that the drawing tells
            return _LEAST
        each = 2 * _STEPS**2 * max(counter.get_total_flops(), 1)
        return min(_MOST, max(_LEAST, 2 ** int(math.log2(max(_FLOPS / each, 1)))))

    @property
    def work(self) -> Work:
        """What it takes, in passes over the training data."""
        train, test = self.problem.count(), self.problem.count("test")
        share = min(1.0, self.samples / train)
        both = share + min(test, self.samples) / train
        points = (_STEPS**2 + 2 * _CUT) * both + _LADDERS * share
        return Work(forwards=_SHARE * points, gradients=3 * share, products=_PRODUCTS * share)

    def draw(self, tell: Callable[[str], None]) -> None:
        """Draw, on stratified subsets of the samples where there are many."""
        try:
            with self.problem.measuring():
                self._draw(tell)
        except Exception as error:  # of the user's code, or a defect of ours: the rest stands
            why = error if isinstance(error, InputError) else described(error)
            self.notes.append(f"The landscape was not drawn in full: {why}.")

    def _draw(self, tell: Callable[[str], None]) -> None:
        problem, notes = self._thinned()
        tell(f"{TITLE}: surface")
        drawn = surface(problem, ("random", "random"), "auto", _STEPS, self.seed)
        self.landscape = Landscape((), drawn, notes=tuple(notes))
        for kind in ("random", "hessian"):
            tell(f"{TITLE}: cut, {kind}")
            cut = line(problem, kind, "auto", _CUT, seed=self.seed)
            # After each part: the end of the budget keeps what is drawn by then.
            self.landscape = replace(self.landscape, lines=(*self.landscape.lines, cut))

    def _thinned(self) -> tuple[Problem, list[str]]:
        """The problem with few enough samples, and notes that say so."""
        problem, notes = self.problem, []
        for split in ("train", "test"):
            if self.samples < problem.count(split):
                places = stratified(problem.data(split).targets, self.samples)
                problem = problem.subset(places, split)
                notes.append(f"The landscape's {split} losses are of {self.samples:,} samples.")
        return problem, notes
