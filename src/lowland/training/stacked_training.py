"""The training of networks of one architecture that take their steps together."""

import functools
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, get_args

import torch
from torch import Tensor, nn

from lowland.losses import Loss
from lowland.optim import norms_only
from lowland.training.runs import Run, Watch
from lowland.training.settings import Epoch, Penalty
from lowland.training.stack import (
    DenseForward,
    Dropouts,
    Forward,
    Weights,
    column,
    laid_out,
    squares,
    stacked,
)
from lowland.training.stacked_data import SharedData, distinct
from lowland.training.stacked_steps import NOISY, Gradients, StackedSteps

_CHUNK = 16384  # samples times runs that are evaluated at once


class StackedTraining:
    """The training of runs that take their steps together."""

    def __init__(self, runs: list[Run], forward: Forward) -> None:
        self.runs, self.forward = runs, forward
        models = [run.model for run in runs]
        self.weights = stacked(models)
        self.learnt = [name for name, _ in models[0].named_parameters()]
        self.steps = _steps_of(runs[0])
        self.first, self.seen = _seen_inputs(runs, forward)
        self.pairs = [run.data for run in runs]
        if self.first is not None:
            cut = {id(X): X.flatten(1)[:, self.seen] for X, _ in self.pairs}
            self.pairs = [(cut[id(X)], y) for X, y in self.pairs]
            whole = self.weights[self.first]
            self.weights[self.first] = laid_out([w[:, self.seen] for w in whole])
        averages = any(run.settings.average for run in runs)
        self.means = {n: self.weights[n].clone() for n in self.learnt} if averages else {}
        self.orders = [torch.Generator().manual_seed(run.settings.seed) for run in runs]
        self.dropouts = Dropouts(models, runs[0].data[0][:1], [run.settings.seed for run in runs])
        self._settle()

    def _settle(self) -> None:
        """Set up what stays the same until a run leaves the stack."""
        settings = [run.settings for run in self.runs]
        self.data = SharedData(self.pairs)
        self.steps.settle(settings, self._each)
        self.still = [_squares_left(run.model, self.first, self.seen) for run in self.runs]

    def train(self, watch: Watch) -> None:
        """Train until all runs are over; each model gets its weights then, or at an interrupt."""
        try:
            while self.runs:
                began = time.perf_counter()
                self._epoch()
                evaluated = self._evaluated()
                share = (time.perf_counter() - began) / len(self.runs)
                for run, epoch in zip(self.runs, evaluated, strict=True):
                    run.epochs.append(epoch)
                    run.seconds += share
                watch(self.runs)
                for run in self._let_go():
                    watch.ended(run)
        finally:
            self._hand_over(range(len(self.runs)))

    def _epoch(self) -> None:
        epoch = len(self.runs[0].epochs) + 1
        settings = [run.settings for run in self.runs]
        decay = {}
        for penalty in get_args(Penalty):
            beta = [s.decay_in(epoch) * (s.penalty == penalty) for s in settings]
            if any(beta):
                decay[penalty] = self._each(beta)
        n = len(self.runs[0].data[0])
        order = torch.stack([torch.randperm(n, generator=g) for g in self.orders])
        batches = order.split(settings[0].batch_size, dim=1)
        changing = any(s.schedule != "constant" for s in settings)
        places = [epoch - 1 + i / len(batches) for i in range(len(batches) if changing else 1)]
        rates = self._each([[s.rate_at(place) for s in settings] for place in places])
        follow = [s.average_share(epoch, end=False) for s in settings]
        inner = self.steps.batches
        for first in range(0, len(batches), inner):
            turns = itertools.cycle(batches[first : first + inner])
            batch = functools.partial(self._batch, turns, decay)
            self.steps.step(self.weights, batch, rates[first % len(rates)])
            if any(0 < share < 1 for share in follow):
                self._average(follow)
        self._average([s.average_share(epoch, end=True) for s in settings])

    def _batch(self, turns: Iterator[Tensor], decay: Weights) -> Gradients:
        """The gradients of the next batch, as a function of the slope at the outputs."""
        rows = next(turns)
        x, y = self.data.rows(rows)
        masks = self.dropouts.draw(rows.shape[1])
        return functools.partial(self._gradients, x, y, masks, decay)

    def _average(self, shares: Sequence[float]) -> None:
        """Move each mean towards the weights by its share of the way."""
        share = self._each(shares)
        for name, mean in self.means.items():
            mean.lerp_(self.weights[name], column(share, mean))

    @property
    def _shown(self) -> Weights:
        """The weights that the runs would end with."""
        return {**self.weights, **self.means}

    def _each(self, values: Sequence[Any]) -> Tensor:
        """One number for each run, or rows of them, in type and device of the weights."""
        return torch.tensor(values, dtype=torch.float64).to(self.weights[self.learnt[0]])

    def _gradients(
        self, x: Tensor, y: Tensor, masks: Weights, decay: Weights, slope: Tensor | None
    ) -> tuple[Weights, Tensor]:
        """The gradients, and the slope of the losses at the outputs, which may be given."""
        leaves = {name: self.weights[name].requires_grad_() for name in self.learnt}
        try:
            outputs = self.forward({**self.weights, **masks}, x, True)
            wanted = list(leaves.values())
            if slope is None:
                mean = self._each_sample(Loss.__call__, outputs, y).mean(1)  # of each run
                *gradients, slope = torch.autograd.grad(
                    mean.sum(), [*wanted, outputs], allow_unused=True
                )
            else:
                gradients = list(torch.autograd.grad(outputs, wanted, slope, allow_unused=True))
        finally:
            for leaf in leaves.values():
                leaf.requires_grad_(False)
        grads = {name: g for name, g in zip(leaves, gradients, strict=True) if g is not None}
        self._penalise(grads, decay)
        return grads, slope

    def _penalise(self, grads: Weights, decay: Weights) -> None:
        """Add the gradients of the penalties to those of the losses."""
        if not decay:
            return
        weights = {name: self.weights[name] for name in grads if self.weights[name].ndim > 2}
        sizes = {name: squares(w) for name, w in weights.items()}
        total = sum(sizes.values(), torch.zeros(()))
        for name, w in weights.items():
            factor = torch.zeros(())
            for penalty, beta in decay.items():
                if penalty == "squared":
                    factor = factor + 2 * beta
                else:
                    size = sizes[name] if penalty == "norm" else total
                    factor = factor + beta / size.sqrt().clamp_min(torch.finfo(w.dtype).tiny)
            # Not in place: two parameters may have been given one tensor.
            grads[name] = torch.addcmul(grads[name], w, column(factor, w))

    def _each_sample(
        self, of: Callable[[Loss, Tensor, Tensor], Tensor], outputs: Tensor, y: Tensor
    ) -> Tensor:
        """What the loss says of every sample of every run, (runs, batch)."""
        loss = self.runs[0].loss
        # Only losses of single samples can take the samples of all runs together.
        if loss.separate and all(run.loss is loss for run in self.runs):
            return of(loss, outputs.flatten(0, 1), y.flatten(0, 1)).unflatten(0, y.shape[:2])
        each = zip(self.runs, outputs, y, strict=True)
        return torch.stack([of(run.loss, z, own) for run, z, own in each])

    @torch.no_grad()
    def _evaluated(self) -> list[Epoch]:
        n = self.runs[0].judged or len(self.runs[0].data[0])
        total = torch.zeros(len(self.runs), dtype=torch.float64)
        wrong = torch.zeros(len(self.runs), dtype=torch.float64)
        has_errors = all(run.loss.has_errors(run.data[1]) for run in self.runs)
        shown = self._shown
        for rows in torch.arange(n).split(max(1, _CHUNK // len(self.runs))):
            x, y = self.data.slices(rows)
            outputs = self.forward(shown, x, False)
            losses = self._each_sample(Loss.__call__, outputs, y)
            total += losses.sum(1, dtype=torch.float64).cpu()
            if has_errors:
                wrong += self._each_sample(_wrong, outputs, y).sum(1).cpu()
        parts = [self._each(self.still), *(squares(shown[n]) for n in self.learnt)]
        norms = torch.stack(parts).sum(0).sqrt()
        return [
            Epoch(float(sum_) / n, float(e) / n if has_errors else None, float(norm))
            for sum_, e, norm in zip(total, wrong, norms, strict=True)
        ]

    def _let_go(self) -> list[Run]:
        """Take the runs that are over out of the stack, each model with its weights."""
        stay = [i for i, run in enumerate(self.runs) if not run.over]
        gone = [i for i, run in enumerate(self.runs) if run.over]
        if not gone:
            return []
        leaving = [self.runs[i] for i in gone]
        self._hand_over(gone)
        if stay:
            self.weights, self.means = (
                {name: laid_out(list(w[stay])) for name, w in part.items()}
                for part in (self.weights, self.means)
            )
            self.steps.keep(stay)
            self.dropouts.keep(stay)
        self.orders = [self.orders[i] for i in stay]
        self.pairs = [self.pairs[i] for i in stay]
        self.runs = [self.runs[i] for i in stay]
        self._settle()
        return leaving

    @torch.no_grad()
    def _hand_over(self, leaving: Sequence[int]) -> None:
        shown = self._shown
        for i in leaving:
            state = dict(self.runs[i].model.named_parameters())
            for name in self.learnt:
                place = (slice(None), self.seen) if name == self.first else ...
                state[name][place] = shown[name][i]


def _steps_of(run: Run) -> StackedSteps:
    perturbed = dict(run.model.named_parameters())
    if run.settings.optimizer == "sam_on":
        scales = {id(p) for p in norms_only(run.model)[0]["params"]}
        perturbed = {name: p for name, p in perturbed.items() if id(p) in scales}
    return StackedSteps(run.settings.optimizer, perturbed.keys(), len(run.data[0]))


def _wrong(loss: Loss, outputs: Tensor, targets: Tensor) -> Tensor:
    return loss.wrong(outputs, targets)


def _seen_inputs(runs: Sequence[Run], forward: Forward) -> tuple[str | None, Tensor]:
    """The weight that sees the inputs, and those of them that are not zero in every sample.

    Weights of the others, such as the pixels in the corners of digits, have no gradient. Without
    decay or noise they stay as they are, and the products can do without them. No name if all are
    seen.
    """
    first = forward.first if isinstance(forward, DenseForward) else None
    inputs, _ = distinct([run.data[0] for run in runs])
    seen = torch.stack([X.flatten(1).any(0) for X in inputs]).any(0)
    still = not any(run.settings.decay or run.settings.optimizer in NOISY for run in runs)
    if seen.all() or not still:
        first = None
    return first, seen.nonzero().flatten()


def _squares_left(model: nn.Module, first: str | None, seen: Tensor) -> float:
    """The sum of squares of the weights of inputs that are not seen."""
    if first is None:
        return 0.0
    W = model.get_parameter(first).detach().double()
    return float(W.square().sum() - W[:, seen].square().sum())
