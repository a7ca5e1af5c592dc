"""Many networks trained at once, each as if it were alone."""

import time
from collections.abc import Callable, Iterator, Sequence

from torch import Tensor, nn

from lowland.errors import InputError
from lowland.losses import LossLike, resolve
from lowland.training import loop
from lowland.training.descent import Descent, SparseInputs
from lowland.training.loop import Data
from lowland.training.runs import Run, TrainingProgress, Watch
from lowland.training.settings import Epoch, Training, TrainingSettings
from lowland.training.stack import Forward, activity_bytes, kind_of, trusted_forward
from lowland.training.stacked_steps import STACKED
from lowland.training.stacked_training import StackedTraining

_STACK = 2**30  # bytes that weights, gradients and states of a stack may take


def train_many(
    models: Sequence[nn.Module],
    data: Data | Sequence[Data],
    settings: Sequence[TrainingSettings],
    progress: Callable[[TrainingProgress], None] = lambda now: None,
    *,
    loss: LossLike = "cross_entropy",
    judged: Sequence[int | None] | None = None,
    ended: Callable[[int, Training], None] = lambda number, training: None,
) -> list[Training]:
    """Train every model in place with its own settings, many at a time.

    Models of one architecture with batches of one size are stacked and take their steps together; a
    run leaves the stack when it reaches its goal. Initial weights, the order of the data and
    dropout masks come from the run alone, whichever others share its stack. Models with batch
    statistics, and optimisers without a stacked form (replicated_sgd, those of the user), train one
    after the other; so do dense ReLU networks with plain SGD on sparse inputs, by a compiled loop
    that is faster than a stack. A run that diverges is returned with its ``failure``; the rest go
    on.

    Args:
        models: one for each run.
        data: inputs and targets for all runs, or a pair for each; runs with the same tensors share
            them.
        settings: of each run.
        progress: called after every epoch.
        loss: a name, a torch loss or a function that returns one loss per sample.
        judged: how many leading samples of each run judge it, see :func:`train`; None for all.
        ended: called with the number and the training of each run as it ends, others going on.
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
    runs = [Run(*given, criterion.on(given[2][1])) for given in each]
    for run in runs:
        loop.check_goal(run.settings, run.data, run.loss, run.judged)
    watch = Watch(runs, progress, ended)
    inputs = SparseInputs()
    descents = {run: _descent(run, inputs) for run in runs}
    for run, descent in descents.items():
        if descent is not None:
            _compiled(run, descent, watch)
    for group, forward in _groups([run for run in runs if descents[run] is None]):
        if forward is not None:
            StackedTraining(group, forward).train(watch)
        else:
            for run in group:
                _alone(run, watch)
    return [run.result for run in runs]


def _is_pair(data: Data | Sequence[Data]) -> bool:
    return len(data) == 2 and all(isinstance(part, Tensor) for part in data)


def _groups(runs: Sequence[Run]) -> Iterator[tuple[list[Run], Forward | None]]:
    """Groups of runs with the forward of their stack; None for runs that train alone."""
    groups: dict[object, list[Run]] = {}
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


def _descent(run: Run, inputs: SparseInputs) -> Descent | None:
    """The compiled loop that trains a run, if there is one."""
    return Descent.of(run.model, run.data, run.settings, run.loss, run.judged, inputs=inputs)


def _compiled(run: Run, descent: Descent, watch: Watch) -> None:
    """Train by the compiled loop; the model gets its weights then, or at an interrupt."""
    try:
        while not run.over:
            began = time.perf_counter()
            run.epochs.append(descent.epoch(len(run.epochs) + 1))
            run.seconds += time.perf_counter() - began
            watch([run])
    finally:
        descent.hand_over()
    watch.ended(run)


def _alone(run: Run, watch: Watch) -> None:
    def tell(epoch: int, value: float) -> None:
        run.epochs.append(Epoch(value, None, 0.0))
        watch([run])

    trained = loop.run(run.model, run.data, run.settings, run.loss, tell, run.judged)
    run.epochs, run.seconds = trained.epochs, trained.seconds
    watch.ended(run)
