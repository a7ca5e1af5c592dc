"""One network, trained to a given training loss by any of the optimisers."""

import contextlib
import copy
import functools
import itertools
import time
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.optim import swa_utils

from lowland.errors import InputError
from lowland.losses import Loss, LossLike, resolve
from lowland.optim import EntropySGD, FunctionalSAM, ReplicatedSGD, WeightAverage
from lowland.training.methods import Scheduled, optimizer_of
from lowland.training.settings import Epoch, Training, TrainingSettings, over

Data = tuple[Tensor, Tensor]

REPLICAS = 3  # of Replicated SGD

# Samples that are evaluated at once.
_CHUNK = 4096


def train(
    model: nn.Module,
    data: Data,
    settings: TrainingSettings | None = None,
    progress: Callable[[int, float], None] = lambda epoch, loss: None,
    *,
    loss: LossLike = "cross_entropy",
    judged: int | None = None,
) -> Training:
    """Train ``model`` in place until the loss of the training set is small.

    Loss and error after each epoch are those of all samples, or of the first ``judged`` ones:
    those with true labels, where others have wrong ones.

    The order of the data and all noise are drawn from the settings' seed; the global random state
    is as before. Batch statistics and dropout are those of training while it trains, and frozen
    where the loss is taken; the model's mode is as before.
    """
    criterion = resolve(loss).on(data[1])
    trained = run(model, data, settings or TrainingSettings(), criterion, progress, judged)
    if trained.failure is not None:
        raise InputError(trained.failure)
    return trained


def run(
    model: nn.Module,
    data: Data,
    settings: TrainingSettings,
    loss: Loss,
    progress: Callable[[int, float], None],
    judged: int | None = None,
) -> Training:
    """As :func:`train`; a training that diverges is returned like any other."""
    check_batch(settings, data)
    check_goal(settings, data, loss, judged)
    modes = [(module, module.training) for module in model.modules()]
    grads = [(p, p.grad) for p in model.parameters()]
    for p, _ in grads:
        p.grad = None
    device = [data[0].device] if data[0].is_cuda else []
    with _threads_that_pay(model), torch.random.fork_rng(device):
        torch.manual_seed(settings.seed)  # for the model's own dropout
        try:
            return _run(model, data, settings, loss, progress, judged)
        finally:
            for module, mode in modes:
                module.training = mode
            for p, grad in grads:
                p.grad = grad


def check_batch(settings: TrainingSettings, data: Data) -> None:
    """Raise if a batch is larger than the data."""
    if settings.batch_size > len(data[0]):
        raise InputError(
            f"batch_size is {settings.batch_size}, but there are {len(data[0])} training samples; "
            "use a smaller batch or more data"
        )


def check_goal(settings: TrainingSettings, data: Data, loss: Loss, judged: int | None) -> None:
    """Raise if the samples that judge a training are not there, or have no accuracy to reach."""
    if judged is not None and not 1 <= judged <= len(data[0]):
        raise InputError(
            f"judged is {judged}, but there are {len(data[0])} training samples; name from 1 to "
            "that many"
        )
    if settings.stop_accuracy and not loss.has_errors(data[1]):
        raise InputError(
            f"stop_accuracy is {settings.stop_accuracy}, but the targets are no classes; leave it "
            "out"
        )


@contextlib.contextmanager
def _threads_that_pay(model: nn.Module) -> Iterator[None]:
    """Let small models train with one thread: a step of 784-30-30-10 gains nothing from two."""
    before = torch.get_num_threads()
    if sum(p.numel() for p in model.parameters()) < 1_000_000:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _run(
    model: nn.Module,
    data: Data,
    settings: TrainingSettings,
    loss: Loss,
    progress: Callable[[int, float], None],
    judged: int | None,
) -> Training:
    began = time.perf_counter()
    X, y = data
    # Replicas differ by the order in which they see the data. What is averaged are copies, too.
    copies = REPLICAS if settings.optimizer == "replicated_sgd" else int(bool(settings.average))
    models = [copy.deepcopy(model) for _ in range(copies)] or [model]
    orders = [torch.Generator().manual_seed(settings.seed + 10**6 * i) for i in range(len(models))]
    optimizer = optimizer_of(models, len(X), settings)
    schedule = Scheduled(optimizer, settings)
    average: WeightAverage | None = None
    # The slope at the outputs is that of the weights below, if they pass through here.
    outputs_of = optimizer.logits if isinstance(optimizer, FunctionalSAM) else lambda z: z

    @torch.enable_grad()
    def gradients(turns: Iterator[tuple[Tensor, ...]], beta: float) -> Tensor:
        optimizer.zero_grad()
        pairs = zip(models, next(turns), strict=True)
        whole = torch.stack(
            [loss(outputs_of(replica(X[rows])), y[rows]).mean() for replica, rows in pairs]
        ).sum()
        whole.backward()
        for replica in models:
            _penalise(replica, beta, settings.penalty)
        return whole

    # Entropy-SGD goes through several batches in one step; the others see one, SAM twice.
    inner = optimizer.langevin if isinstance(optimizer, EntropySGD) else 1
    epochs: list[Epoch] = []
    while not over(epochs, settings):
        epoch = len(epochs) + 1
        beta = settings.decay_in(epoch)
        if settings.average and epoch == settings.first_averaged:
            decay = settings.average_decay if settings.average == "ema" else None
            average = WeightAverage(models[0].parameters(), decay)
        for replica in models:
            replica.train()
        shuffled = [torch.randperm(len(X), generator=order).to(X.device) for order in orders]
        batches = list(zip(*(rows.split(settings.batch_size) for rows in shuffled), strict=True))
        for first in range(0, len(batches), inner):
            schedule.go_to(len(epochs) + first / len(batches))
            turns = itertools.cycle(batches[first : first + inner])
            optimizer.step(functools.partial(gradients, turns, beta))  # type: ignore[arg-type]
            if average is not None and settings.average == "ema":
                average.update()
        if average is not None and settings.collects_after(epoch):
            average.update()
        if isinstance(optimizer, ReplicatedSGD):
            _settle(model, models, optimizer.mean_weights())
        elif average is not None and average.updates:
            _settle(model, models, average.weights)
            with torch.random.fork_rng([X.device] if X.is_cuda else []):
                swa_utils.update_bn(X.split(settings.batch_size), model)
        elif settings.average:
            _settle(model, models, [p.detach() for p in models[0].parameters()])
        epochs.append(_evaluated(model, (X[:judged], y[:judged]), loss))
        progress(len(epochs), epochs[-1].loss)
    return Training(settings, epochs, time.perf_counter() - began)


@torch.no_grad()
def _penalise(model: nn.Module, beta: float, penalty: str) -> None:
    """Add the gradient of the penalty to that of the loss."""
    if not beta:
        return
    weights = [p for p in model.parameters() if p.grad is not None and p.ndim > 1]
    norms = [p.norm() for p in weights]
    if penalty == "global_norm" and norms:
        norms = [torch.stack(norms).norm()] * len(weights)
    for p, norm in zip(weights, norms, strict=True):
        factor = beta / norm.clamp_min(torch.finfo(p.dtype).tiny)
        p.grad.add_(p * (2 * beta if penalty == "squared" else factor))  # type: ignore[union-attr]


@torch.no_grad()
def _settle(model: nn.Module, replicas: list[nn.Module], centre: list[Tensor]) -> None:
    """Put the replicas' centre into the model; buffers are those of the first replica."""
    for p, value in zip(model.parameters(), centre, strict=True):
        p.copy_(value)
    for buffer, value in zip(model.buffers(), replicas[0].buffers(), strict=True):
        buffer.copy_(value)


@torch.no_grad()
def _evaluated(model: nn.Module, data: Data, loss: Loss) -> Epoch:
    model.eval()
    X, y = data
    total, wrong = 0.0, 0.0
    has_errors = loss.has_errors(y)
    for x, target in zip(X.split(_CHUNK), y.split(_CHUNK), strict=True):
        outputs = model(x)
        total += float(loss(outputs, target).sum(dtype=torch.float64))
        if has_errors:
            wrong += float(loss.wrong(outputs, target).sum())
    norms = torch.stack([p.norm() for p in model.parameters()])
    error = wrong / len(X) if has_errors else None
    return Epoch(total / len(X), error, float(norms.norm()))
