"""Plain stochastic gradient descent to a given training loss."""

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lowland.errors import InputError


@dataclass(frozen=True)
class TrainingSettings:
    """How a network is trained; the defaults are Feng & Tu's (Methods) for MNIST."""

    learning_rate: float = 0.1
    batch_size: int = 25
    stop_loss: float = 5e-4
    max_epochs: int = 1000
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("learning_rate", "batch_size", "stop_loss", "max_epochs"):
            if not getattr(self, name) > 0:
                raise InputError(f"{name} must be positive; got {getattr(self, name)}")


@dataclass(frozen=True)
class Training:
    """What a training did: the loss after each epoch, and whether it reached its goal."""

    settings: TrainingSettings
    losses: list[float]
    converged: bool
    seconds: float

    def to_dict(self) -> dict[str, object]:
        """The single numbers, ready for JSON."""
        return {
            "epochs": len(self.losses),
            "converged": self.converged,
            "seconds": self.seconds,
            "settings": asdict(self.settings),
        }


def train(
    model: nn.Module,
    data: tuple[Tensor, Tensor],
    settings: TrainingSettings | None = None,
    progress: Callable[[int, float], None] = lambda epoch, loss: None,
) -> Training:
    """Train ``model`` in place by SGD on the cross-entropy until the whole training loss is small.

    The order of the data is drawn from the settings' seed; the global generators are not used.
    """
    settings = settings or TrainingSettings()
    with _threads_that_pay(model):
        return _train(model, data, settings, progress)


@contextlib.contextmanager
def _threads_that_pay(model: nn.Module) -> Iterator[None]:
    """One thread for small models: a step of 784-30-30-10 takes twice as long on two."""
    before = torch.get_num_threads()
    if sum(p.numel() for p in model.parameters()) < 1_000_000:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _train(
    model: nn.Module,
    data: tuple[Tensor, Tensor],
    settings: TrainingSettings,
    progress: Callable[[int, float], None],
) -> Training:
    X, y = data
    if settings.batch_size > len(X):
        raise InputError(f"batch_size is {settings.batch_size}, but there are {len(X)} samples")
    began = time.perf_counter()
    order = torch.Generator().manual_seed(settings.seed)
    optimizer = torch.optim.SGD(model.parameters(), settings.learning_rate, foreach=True)
    losses: list[float] = []
    while len(losses) < settings.max_epochs:
        shuffled = torch.randperm(len(X), generator=order)
        for batch in shuffled.split(settings.batch_size):
            optimizer.zero_grad()
            F.cross_entropy(model(X[batch]), y[batch]).backward()
            optimizer.step()
        with torch.no_grad():
            losses.append(float(F.cross_entropy(model(X), y)))
        progress(len(losses), losses[-1])
        if not losses[-1] < float("inf"):
            raise InputError(
                f"training diverged in epoch {len(losses)}; use a learning rate below "
                f"{settings.learning_rate}"
            )
        if losses[-1] < settings.stop_loss:
            break
    return Training(settings, losses, losses[-1] < settings.stop_loss, time.perf_counter() - began)
