"""Many networks trained at once, each as if it were alone."""

import functools
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, get_args

import torch
from torch import Tensor, nn

from lowland.errors import InputError
from lowland.losses import Loss, LossLike, resolve
from lowland.optim import norms_only
from lowland.training import loop
from lowland.training.descent import Descent, SparseInputs
from lowland.training.loop import Data
from lowland.training.settings import Epoch, Penalty, Training, TrainingSettings, epochs_left, over
from lowland.training.stack import (
    DenseForward,
    Dropouts,
    Forward,
    Weights,
    activity_bytes,
    column,
    kind_of,
    laid_out,
    squares,
    stacked,
    trusted_forward,
)
from lowland.training.stacked_data import SharedData, distinct
from lowland.training.stacked_steps import NOISY, STACKED, Gradients, StackedSteps

# Bytes that weights, gradients and states of a stack may take.
_STACK = 2**30
# Samples times runs that are evaluated at once.
_CHUNK = 16384


@dataclass(frozen=True)
class TrainingProgress:
    """How far a training of many networks is."""

    done: int
    total: int
    epoch: int  # of the runs that are trained now
    losses: dict[int, float]  # of these, by their number
    part: float  # of all the work, from 0 to 1, if losses go on falling as they do
    seconds_left: float


def train_many(
    models: Sequence[nn.Module],
    data: Data | Sequence[Data],
    settings: Sequence[TrainingSettings],
    progress: Callable[[TrainingProgress], None] = lambda now: None,
    *,
    loss: LossLike = "cross_entropy",
    judged: Sequence[int | None] | None = None,
) -> list[Training]:
    """Train every model in place with its own settings, many at a time.

    Models of one architecture with batches of one size are stacked and take their steps together; a
    run leaves the stack when it reaches its goal. Initial weights, the order of the data and
    dropout masks come from the run alone, whichever others share its stack. Models with batch
    statistics, and optimisers without a stacked form (entropy_sgd, replicated_sgd, ivon, those of
    the user), train one after the other; so do dense ReLU networks with plain SGD on sparse inputs,
    by a compiled loop that is faster than a stack. A run that diverges is returned with its
    ``failure``; the rest go on.

    Args:
        models: one for each run.
        data: inputs and targets for all runs, or a pair for each; runs with the same tensors share
            them.
        settings: of each run.
        progress: called after every epoch.
        loss: a name, a torch loss or a function that returns one loss per sample.
        judged: how many leading samples of each run judge it, see :func:`train`; None for all.
    """
    pairs: list[Data] = [data] * len(models) if _is_pair(data) else list(data)  # type: ignore
    judges = [None] * len(models) if judged is None else list(judged)
    if not len(models) == len(pairs) == len(settings):
        raise InputError(
            f"there are {len(models)} models, {len(pairs)} data sets and {len(settings)} settings; "
            "give one of each for every run"
        )
    if len(judges) != len(models):
        raise InputError(f"judged has {len(judges)} numbers for {len(models)} models; give as many")
    for run_settings, pair in zip(settings, pairs, strict=True):
        loop.check_batch(run_settings, pair)
    criterion = resolve(loss)
    each = zip(range(len(models)), models, pairs, settings, judges, strict=True)
    runs = [_Run(*given, criterion.on(given[2][1])) for given in each]
    for run in runs:
        loop.check_goal(run.settings, run.data, run.loss, run.judged)
    watch = _Watch(runs, progress)
    inputs = SparseInputs()
    descents = {run: run.descent(inputs) for run in runs}
    for run, descent in descents.items():
        if descent is not None:
            _compiled(run, descent, watch)
    for group, forward in _groups([run for run in runs if descents[run] is None]):
        if forward is not None:
            _StackedTraining(group, forward).train(watch)
        else:
            for run in group:
                _alone(run, watch)
    return [Training(run.settings, run.epochs, run.seconds) for run in runs]


class _Run:
    """A network that is being trained, with its epochs so far."""

    def __init__(
        self,
        number: int,
        model: nn.Module,
        data: Data,
        settings: TrainingSettings,
        judged: int | None,
        loss: Loss,
    ) -> None:
        self.number, self.model, self.data, self.settings = number, model, data, settings
        self.judged, self.loss = judged, loss
        self.epochs: list[Epoch] = []
        self.seconds = 0.0

    def descent(self, inputs: SparseInputs) -> Descent | None:
        """The compiled loop that trains it, if there is one."""
        return Descent.of(
            self.model, self.data, self.settings, self.loss, self.judged, inputs=inputs
        )

    @property
    def over(self) -> bool:
        return over(self.epochs, self.settings)

    @property
    def part_done(self) -> float:
        n = len(self.epochs)
        if not n or self.over:
            return float(self.over)
        return n / (n + epochs_left([e.loss for e in self.epochs], self.settings))


class _Watch:
    """Calls ``tell`` with the progress of all runs."""

    def __init__(self, runs: Sequence[_Run], tell: Callable[[TrainingProgress], None]) -> None:
        self.runs, self.tell, self.began = runs, tell, time.perf_counter()

    def __call__(self, now: Sequence[_Run]) -> None:
        part = sum(run.part_done for run in self.runs) / len(self.runs)
        elapsed = time.perf_counter() - self.began
        self.tell(
            TrainingProgress(
                done=sum(run.over for run in self.runs),
                total=len(self.runs),
                epoch=max(len(run.epochs) for run in now),
                losses={run.number: run.epochs[-1].loss for run in now},
                part=part,
                seconds_left=elapsed * (1 - part) / part if part else float("inf"),
            )
        )


def _is_pair(data: Data | Sequence[Data]) -> bool:
    return len(data) == 2 and all(isinstance(part, Tensor) for part in data)


def _groups(runs: Sequence[_Run]) -> Iterator[tuple[list[_Run], Forward | None]]:
    """Groups of runs with the forward of their stack; None for runs that train alone."""
    groups: dict[object, list[_Run]] = {}
    for run in runs:
        kind = kind_of(run.model) if run.settings.optimizer in STACKED else None
        X, y = run.data
        its = run.settings
        alike = (X.shape, X.dtype, y.shape, its.batch_size, its.optimizer, run.judged)
        groups.setdefault((kind, *alike) if kind else run, []).append(run)
    for key, group in groups.items():
        some = [run.data[0][:2] for run in group]
        forward = trusted_forward([r.model for r in group], some) if key is not group[0] else None
        if forward is None:
            yield group, None
            continue
        model, batch = group[0].model, group[0].settings.batch_size
        weights = sum(p.nbytes for p in model.parameters())
        most = max(1, _STACK // (8 * weights + 4 * batch * activity_bytes(model, some[0])))
        for first in range(0, len(group), most):
            yield group[first : first + most], forward


def _compiled(run: _Run, descent: Descent, watch: _Watch) -> None:
    """Train by the compiled loop; the model gets its weights then, or at an interrupt."""
    try:
        while not run.over:
            began = time.perf_counter()
            run.epochs.append(descent.epoch(len(run.epochs) + 1))
            run.seconds += time.perf_counter() - began
            watch([run])
    finally:
        descent.hand_over()


def _alone(run: _Run, watch: _Watch) -> None:
    def tell(epoch: int, value: float) -> None:
        run.epochs.append(Epoch(value, None, 0.0))
        watch([run])

    trained = loop.run(run.model, run.data, run.settings, run.loss, tell, run.judged)
    run.epochs, run.seconds = trained.epochs, trained.seconds


class _StackedTraining:
    """The training of runs that take their steps together."""

    def __init__(self, runs: list[_Run], forward: Forward) -> None:
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

    def train(self, watch: _Watch) -> None:
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
                self._let_go()
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

    def _let_go(self) -> None:
        stay = [i for i, run in enumerate(self.runs) if not run.over]
        if len(stay) == len(self.runs):
            return
        self._hand_over([i for i in range(len(self.runs)) if i not in set(stay)])
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

    @torch.no_grad()
    def _hand_over(self, leaving: Sequence[int]) -> None:
        shown = self._shown
        for i in leaving:
            state = dict(self.runs[i].model.named_parameters())
            for name in self.learnt:
                place = (slice(None), self.seen) if name == self.first else ...
                state[name][place] = shown[name][i]


def _steps_of(run: _Run) -> StackedSteps:
    perturbed = dict(run.model.named_parameters())
    if run.settings.optimizer == "sam_on":
        scales = {id(p) for p in norms_only(run.model)[0]["params"]}
        perturbed = {name: p for name, p in perturbed.items() if id(p) in scales}
    return StackedSteps(run.settings.optimizer, perturbed.keys(), len(run.data[0]))


def _wrong(loss: Loss, outputs: Tensor, targets: Tensor) -> Tensor:
    return loss.wrong(outputs, targets)


def _seen_inputs(runs: Sequence[_Run], forward: Forward) -> tuple[str | None, Tensor]:
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
