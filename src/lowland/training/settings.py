"""The settings of a training, and its course epoch by epoch."""

import math
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Literal, get_args

from lowland.errors import InputError

if TYPE_CHECKING:
    from lowland.findings import TrainingRecord

Method = Literal["sgd", "adam", "sam", "asam", "entropy_sgd", "replicated_sgd"]
Penalty = Literal["squared", "norm"]


@dataclass(frozen=True)
class TrainingSettings:
    """How a network is trained; the defaults are Feng & Tu's (Methods) for MNIST.

    ``decay`` is the paper's beta. It adds ``beta sum w^2`` to the loss (``penalty="squared"``, as
    the paper says) or ``beta`` times the sum of the layers' norms (``"norm"``, as its authors'
    demo does), over weights with two dimensions or more, in the first ``decay_epochs`` epochs.
    ``radius`` is rho of SAM and ASAM; None is their own default.
    """

    optimizer: Method = "sgd"
    learning_rate: float = 0.1
    momentum: float = 0.0
    batch_size: int = 25
    radius: float | None = None
    decay: float = 0.0
    penalty: Penalty = "squared"
    decay_epochs: int | None = 200
    stop_loss: float = 5e-4
    max_epochs: int = 1000
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("learning_rate", "batch_size", "stop_loss", "max_epochs"):
            if not getattr(self, name) > 0:
                raise InputError(f"{name} must be positive; got {getattr(self, name)}")
        for name, choices in (("optimizer", Method), ("penalty", Penalty)):
            if getattr(self, name) not in get_args(choices):
                raise InputError(
                    f"{name} must be one of {', '.join(get_args(choices))}; got "
                    f"{getattr(self, name)!r}"
                )
        if not 0 <= self.momentum < 1:
            raise InputError(f"momentum must be at least 0 and below 1; got {self.momentum}")
        if self.momentum and self.optimizer == "adam":
            raise InputError("adam has its own momentum; leave momentum at 0")
        if not self.decay >= 0:
            raise InputError(f"decay must not be negative; got {self.decay}")
        if self.radius is not None and not (self.radius > 0 and self.optimizer in ("sam", "asam")):
            raise InputError(
                f"radius must be positive, and belongs to sam and asam; got {self.radius} with "
                f"{self.optimizer}"
            )

    def decay_in(self, epoch: int) -> float:
        """The strength of the penalty in an epoch, counted from 1."""
        return self.decay if self.decay_epochs is None or epoch <= self.decay_epochs else 0.0


@dataclass(frozen=True)
class Epoch:
    """Loss and error on the whole training set after an epoch, and the norm of all weights."""

    loss: float
    error: float | None  # None where the targets are no classes
    weight_norm: float


_CURVES = tuple(f.name for f in fields(Epoch))


@dataclass(frozen=True)
class Training:
    """What a training did, epoch by epoch."""

    settings: TrainingSettings
    epochs: list[Epoch]
    seconds: float  # that of a stack is shared among its runs

    @property
    def losses(self) -> list[float]:
        """The training loss after each epoch."""
        return [epoch.loss for epoch in self.epochs]

    @property
    def converged(self) -> bool:
        """Whether it reached its goal, rather than the limit of epochs."""
        return reached(self.epochs, self.settings)

    @property
    def diverged(self) -> bool:
        """Whether the loss is no number any more."""
        return lost(self.epochs)

    @property
    def failure(self) -> str | None:
        """What went wrong and what to do, or None if the training did not diverge."""
        if not self.diverged:
            return None
        advice = f"use a learning rate below {self.settings.learning_rate:g}"
        if self.settings.decay:
            advice += f", or less decay than {self.settings.decay:g}"
        if len(self.epochs) == 1:
            advice += "; if it is not finite from the start, look at the data and the loss"
        return f"training diverged in epoch {len(self.epochs)}; {advice}"

    def curves(self) -> dict[str, list[float]]:
        """Loss, error and norm over the epochs; without the error where targets are no classes."""
        columns = {name: [getattr(e, name) for e in self.epochs] for name in _CURVES}
        return {name: column for name, column in columns.items() if None not in column}

    def record(self) -> "TrainingRecord":
        """The training as it is saved with an analysis."""
        import numpy as np  # late: the command line reads these settings, and answers at once

        from lowland.findings import TrainingRecord

        return TrainingRecord(
            epochs=len(self.epochs),
            converged=self.converged,
            seconds=self.seconds,
            settings=asdict(self.settings),
            curves={name: np.array(curve) for name, curve in self.curves().items()},
        )


def reached(epochs: list[Epoch], settings: TrainingSettings) -> bool:
    """Whether the last epoch's loss is below the goal."""
    return bool(epochs) and epochs[-1].loss < settings.stop_loss


def lost(epochs: list[Epoch]) -> bool:
    """Whether the last epoch's loss is infinite or no number."""
    return bool(epochs) and not math.isfinite(epochs[-1].loss)


def over(epochs: list[Epoch], settings: TrainingSettings) -> bool:
    """Whether a training has ended: at its goal, at its limit, or without a finite loss."""
    return reached(epochs, settings) or lost(epochs) or len(epochs) >= settings.max_epochs


def epochs_left(losses: list[float], settings: TrainingSettings) -> float:
    """About how many epochs remain, if the loss goes on falling as a power of the epoch.

    The power is that of the second half of the way. A loss that does not fall gets all epochs.
    """
    n = len(losses)
    most = settings.max_epochs - n
    if n < 2 or not losses[-1] > 0:
        return most
    power = math.log(losses[n // 2 - 1] / losses[-1]) / math.log(n / (n // 2))
    if power <= 0:
        return most
    doublings = math.log(max(losses[-1] / settings.stop_loss, 1.0)) / power
    return min(most, n * math.expm1(min(doublings, 50.0)))
