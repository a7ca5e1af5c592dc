"""The settings of a training, and its course epoch by epoch."""

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Literal, get_args

from lowland.errors import InputError

if TYPE_CHECKING:
    from lowland.findings import TrainingRecord

# Those with a radius, and the radius that each has if none is given.
RADII = {
    "sam": 0.05,
    "asam": 0.5,
    "sam_on": 0.05,
    "friendly_sam": 0.05,
    "look_sam": 0.05,
    "functional_sam": 0.05,
}
METHODS = ("sgd", "adam", "rmsprop", *RADII, "entropy_sgd", "replicated_sgd", "ivon")
Penalty = Literal["squared", "norm", "global_norm"]
Schedule = Literal["constant", "cosine", "cyclical", "warm_restarts"]
AverageKind = Literal["swa", "ema"]

# Epochs whose mean accuracy is looked at where the goal has one, as in Feng & Tu's demo.
_ACCURATE = 9


@dataclass(frozen=True)
class TrainingSettings:
    """How a network is trained; the defaults are Feng & Tu's (Methods) for MNIST.

    ``decay`` is the paper's beta. It adds ``beta sum w^2`` to the loss (``penalty="squared"``, as
    the paper says), ``beta`` times the sum of the layers' norms (``"norm"``), or ``beta`` times one
    norm of all weights (``"global_norm"``, as its authors' demo does), over weights with two
    dimensions or more, in the first ``decay_epochs`` epochs.
    ``optimizer`` is a name, or ``pkg.module:factory`` of a function ``(model, settings) -> torch
    optimiser`` whose ``step`` takes a closure. ``radius`` is rho of SAM and its kin; None is their
    own default.

    The goal is a training loss below ``stop_loss``, and, unless ``stop_accuracy`` is 0, a mean
    accuracy of the last nine epochs above that.

    The learning rate changes from step to step: along half a cosine over ``max_epochs``
    (``"cosine"``), along the same in every ``cycle`` epochs (``"warm_restarts"``; Loshchilov &
    Hutter, ICLR 2017), or up and down on straight lines (``"cyclical"``; Smith, WACV 2017), each
    between ``learning_rate`` and ``rate_floor`` times that.

    ``average="swa"`` makes the network the mean of its weights after each epoch from
    ``average_from`` on, with cycles after the last epoch of each; ``"ema"`` makes it the
    exponential mean of its weights after each step, with ``average_decay``. Loss and error of the
    epochs are then those of the mean, and the goal is not reached before there is one.
    """

    optimizer: str = "sgd"
    learning_rate: float = 0.1
    schedule: Schedule = "constant"
    cycle: int = 10
    rate_floor: float = 0.0
    momentum: float = 0.0
    batch_size: int = 25
    radius: float | None = None
    decay: float = 0.0
    penalty: Penalty = "squared"
    decay_epochs: int | None = 200
    average: AverageKind | None = None
    average_from: int | None = None
    average_decay: float = 0.999
    stop_loss: float = 5e-4
    stop_accuracy: float = 0.0
    max_epochs: int = 1000
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("learning_rate", "cycle", "batch_size", "stop_loss", "max_epochs"):
            if not getattr(self, name) > 0:
                raise InputError(f"{name} must be positive; got {getattr(self, name)}")
        for name, choices in (
            ("optimizer", METHODS),
            ("schedule", get_args(Schedule)),
            ("penalty", get_args(Penalty)),
            ("average", (None, *get_args(AverageKind))),
        ):
            value = getattr(self, name)
            if value not in choices and not (name == "optimizer" and ":" in value):
                raise InputError(f"{name} must be one of {_listed(choices)}; got {value!r}")
        for name in ("momentum", "average_decay"):
            if not 0 <= getattr(self, name) < 1:
                raise InputError(
                    f"{name} must be at least 0 and below 1; got {getattr(self, name)}"
                )
        if not 0 <= self.rate_floor <= 1:
            raise InputError(f"rate_floor must be from 0 to 1; got {self.rate_floor}")
        if not 0 <= self.stop_accuracy < 1:
            raise InputError(
                f"stop_accuracy must be at least 0 and below 1; got {self.stop_accuracy}"
            )
        if self.momentum and self.optimizer in ("adam", "ivon"):
            raise InputError(f"{self.optimizer} has its own momentum; leave momentum at 0")
        if not self.decay >= 0:
            raise InputError(f"decay must not be negative; got {self.decay}")
        has_radius = self.optimizer in RADII or ":" in self.optimizer
        if self.radius is not None and not (self.radius > 0 and has_radius):
            raise InputError(
                f"radius must be positive, and belongs to {_listed(RADII)}; got {self.radius} with "
                f"{self.optimizer}"
            )
        if self.average is not None and self.optimizer == "replicated_sgd":
            raise InputError("replicated_sgd is an average already; leave average out")
        if self.least_epochs > self.max_epochs:
            raise InputError(
                f"the average would begin after epoch {self.least_epochs}, but max_epochs is "
                f"{self.max_epochs}; raise max_epochs, or lower average_from or cycle"
            )

    def rate_at(self, epochs: float) -> float:
        """The learning rate after so many epochs, of which the last may be a part."""
        if self.schedule == "constant":
            return self.learning_rate
        length = self.max_epochs if self.schedule == "cosine" else self.cycle
        part = (epochs / length) % 1.0
        if self.schedule == "cyclical":
            height = 1 - abs(1 - 2 * part)
        else:
            height = (1 + math.cos(math.pi * part)) / 2
        return self.learning_rate * (self.rate_floor + (1 - self.rate_floor) * height)

    @property
    def first_averaged(self) -> int:
        """The first epoch, counted from 1, whose weights may be in the average."""
        if self.average_from is not None:
            return self.average_from
        # Three quarters of the budget, as Izmailov et al. have it.
        return 1 + 3 * self.max_epochs // 4 if self.average == "swa" else 1

    def collects_after(self, epoch: int) -> bool:
        """Whether the weights after an epoch go into the plain mean."""
        ends = epoch % self.cycle == 0 if self.schedule in ("cyclical", "warm_restarts") else True
        return self.average == "swa" and epoch >= self.first_averaged and ends

    def average_share(self, epoch: int, *, end: bool) -> float:
        """How far the mean moves to the weights, at each step of an epoch or at its ``end``.

        1 before there is a mean: it is the weights then.
        """
        if self.average is None or epoch < self.first_averaged:
            return 1.0
        if self.average == "ema":
            return 0.0 if end else 1 - self.average_decay
        collected = sum(map(self.collects_after, range(self.first_averaged, epoch + 1)))
        if end and self.collects_after(epoch):
            return 1 / collected
        return 0.0 if collected else 1.0

    @property
    def least_epochs(self) -> int:
        """The epochs after which there is an average, if there shall be one."""
        if self.average is None:
            return 0
        epoch = self.first_averaged
        while self.average == "swa" and not self.collects_after(epoch):
            epoch += 1
        return epoch

    def decay_in(self, epoch: int) -> float:
        """The strength of the penalty in an epoch, counted from 1."""
        return self.decay if self.decay_epochs is None or epoch <= self.decay_epochs else 0.0


@dataclass(frozen=True)
class Epoch:
    """Loss and error on the samples that judge the training, and the norm of all weights."""

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


def _listed(names: Iterable[str | None]) -> str:
    return ", ".join(str(name).lower() for name in names)


def reached(epochs: list[Epoch], settings: TrainingSettings) -> bool:
    """Whether the last epochs are at the goal, and the network is the one asked for."""
    enough = len(epochs) >= max(1, settings.least_epochs)
    return enough and epochs[-1].loss < settings.stop_loss and _accurate(epochs, settings)


def _accurate(epochs: list[Epoch], settings: TrainingSettings) -> bool:
    """Whether the last epochs are as accurate as the goal asks; not where that is not known."""
    if not settings.stop_accuracy:
        return True
    errors = [epoch.error for epoch in epochs[-_ACCURATE:] if epoch.error is not None]
    return bool(errors) and 1 - sum(errors) / len(errors) > settings.stop_accuracy


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
