"""One network, trained to a given training loss by any of the optimisers."""

import contextlib
import copy
import functools
import itertools
import time
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, Optimizer

from lowland.errors import InputError
from lowland.losses import Loss, LossLike, resolve
from lowland.optim import ASAM, SAM, EntropySGD, ReplicatedSGD
from lowland.training.settings import Epoch, Training, TrainingSettings, over

Data = tuple[Tensor, Tensor]

REPLICAS = 3  # of Replicated SGD
_GAMMA = 0.03  # of Entropy-SGD

# Samples that are evaluated at once.
_CHUNK = 4096


def train(
    model: nn.Module,
    data: Data,
    settings: TrainingSettings | None = None,
    progress: Callable[[int, float], None] = lambda epoch, loss: None,
    *,
    loss: LossLike = "cross_entropy",
) -> Training:
    """Train ``model`` in place until the loss of the whole training set is small.

    The order of the data and all noise are drawn from the settings' seed; the global random state
    is as before. Batch statistics and dropout are those of training while it trains, and frozen
    where the loss is taken; the model's mode is as before.
    """
    trained = run(model, data, settings or TrainingSettings(), resolve(loss).on(data[1]), progress)
    if trained.failure is not None:
        raise InputError(trained.failure)
    return trained


def run(
    model: nn.Module,
    data: Data,
    settings: TrainingSettings,
    loss: Loss,
    progress: Callable[[int, float], None],
) -> Training:
    """As :func:`train`; a training that diverges is returned like any other."""
    check_batch(settings, data)
    modes = [(module, module.training) for module in model.modules()]
    grads = [(p, p.grad) for p in model.parameters()]
    for p, _ in grads:
        p.grad = None
    device = [data[0].device] if data[0].is_cuda else []
    with _threads_that_pay(model), torch.random.fork_rng(device):
        torch.manual_seed(settings.seed)  # for the model's own dropout
        try:
            return _run(model, data, settings, loss, progress)
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
) -> Training:
    began = time.perf_counter()
    X, y = data
    # Replicas differ by the order in which they see the data.
    models = [model]
    if settings.optimizer == "replicated_sgd":
        models = [copy.deepcopy(model) for _ in range(REPLICAS)]
    orders = [torch.Generator().manual_seed(settings.seed + 10**6 * i) for i in range(len(models))]
    optimizer = _optimizer(models, settings)

    def gradients(turns: Iterator[tuple[Tensor, ...]], beta: float) -> Tensor:
        optimizer.zero_grad()
        pairs = zip(models, next(turns), strict=True)
        whole = torch.stack(
            [loss(replica(X[rows]), y[rows]).mean() for replica, rows in pairs]
        ).sum()
        whole.backward()
        for replica in models:
            _penalise(replica, beta, settings.penalty)
        return whole

    # Entropy-SGD goes through several batches in one step; the others see one, SAM twice.
    inner = optimizer.langevin if isinstance(optimizer, EntropySGD) else 1
    epochs: list[Epoch] = []
    while not over(epochs, settings):
        beta = settings.decay_in(len(epochs) + 1)
        for replica in models:
            replica.train()
        shuffled = [torch.randperm(len(X), generator=order).to(X.device) for order in orders]
        batches = list(zip(*(rows.split(settings.batch_size) for rows in shuffled), strict=True))
        for first in range(0, len(batches), inner):
            turns = itertools.cycle(batches[first : first + inner])
            optimizer.step(functools.partial(gradients, turns, beta))  # type: ignore[arg-type]
        if isinstance(optimizer, ReplicatedSGD):
            _settle(model, models, optimizer.mean_weights())
        epochs.append(_evaluated(model, data, loss))
        progress(len(epochs), epochs[-1].loss)
    return Training(settings, epochs, time.perf_counter() - began)


def _optimizer(models: list[nn.Module], settings: TrainingSettings) -> Optimizer:
    params = list(models[0].parameters())
    lr, momentum = settings.learning_rate, settings.momentum
    own = {} if settings.radius is None else {"rho": settings.radius}
    match settings.optimizer:
        case "sgd":
            return SGD(params, lr, momentum, foreach=True)
        case "adam":
            return Adam(params, lr, foreach=True)
        case "sam":
            return SAM(params, SGD, lr=lr, momentum=momentum, **own)
        case "asam":
            return ASAM(params, SGD, lr=lr, momentum=momentum, **own)
        case "entropy_sgd":
            # The rate is that of the inner steps; the centre then moves to their mean. Scoping
            # would carry it beyond.
            return EntropySGD(
                params,
                SGD,
                inner_lr=lr,
                lr=1 / _GAMMA,
                momentum=momentum,
                gamma=_GAMMA,
                scoping=0.0,
                seed=settings.seed,
            )
        case "replicated_sgd":
            replicas = [list(replica.parameters()) for replica in models]
            return ReplicatedSGD(replicas, SGD, lr=lr, momentum=momentum)


@torch.no_grad()
def _penalise(model: nn.Module, beta: float, penalty: str) -> None:
    """Add the gradient of the penalty to that of the loss."""
    if not beta:
        return
    for p in model.parameters():
        if p.grad is not None and p.ndim > 1:
            norm = p.norm().clamp_min(torch.finfo(p.dtype).tiny)
            p.grad.add_(p * (beta / norm if penalty == "norm" else 2 * beta))


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
