"""The noise of SGD against the Hessian, and where other rates, schedules and ends of training lead.

On 8 x 8 digits unless settings say otherwise: the network is small enough for whole matrices.
"""

import copy
import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, one_hot

from lowland.curvature import fisher, hessian
from lowland.experiment import Configuration
from lowland.experiment.subject import Subject
from lowland.measures import measure
from lowland.problem import Problem
from lowland.training import TrainingSettings, train_many

SMALL = 0.05  # the rate that finds sharp minima, and that networks end with
START, END = 0.03, 0.005  # training losses of the sharp minimum, and where sharpness is compared
KICK = 30  # epochs at another rate
SCHEDULED = 30  # epochs of a schedule, with two cycles if it has any
TOP = 10  # leading directions, as many as classes
_MOST = 3000  # epochs on the way to a loss

Data = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Place:
    """A network with its data, as a sweep names them."""

    data: str = "digits"
    network: str = "64-20-10"
    per_class: int | None = 50
    batch_size: int = 50

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Self:
        """What the settings of a trial say of it."""
        names = {field.name for field in fields(cls)}
        return cls(**{name: value for name, value in settings.items() if name in names})

    def subject(self, seed: int) -> Subject:
        """The network at its initial weights."""
        place = {field.name: getattr(self, field.name) for field in fields(self)}
        return Subject.of(Configuration(**place, seed=seed, data_seed=seed))

    @functools.lru_cache(maxsize=16)  # noqa: B019  (places are few)
    def samples(self, seed: int, loss: str = "cross_entropy") -> Data:
        """The training data; of the square loss with a target for every class."""
        inputs, labels = self.subject(seed).train
        return inputs, one_hot(labels).float() if loss == "mse" else labels

    def train(
        self, model: nn.Module, seed: int, loss: str = "cross_entropy", **settings: Any
    ) -> bool:
        """Train on by plain SGD; whether the loss ``stop_loss`` was reached."""
        common = {"batch_size": self.batch_size, "max_epochs": _MOST, "seed": seed}
        chosen = TrainingSettings(**common | settings)
        (training,) = train_many([model], self.samples(seed, loss), [chosen], loss=loss)
        model.eval()
        return training.converged

    def sharpness(self, model: nn.Module, seed: int, loss: str = "cross_entropy") -> dict[str, Any]:
        """Largest eigenvalue and trace."""
        problem = Problem(model, loss, train=self.samples(seed, loss))
        measured = measure(problem, ["largest_eigenvalue", "trace"]).whole()
        return {name: measured[name].value for name in measured}


# --- the noise -----------------------------------------------------------------------------------


def covariance(settings: dict[str, Any], seed: int) -> dict[str, Any]:
    """The covariance of single samples' gradients against the Hessian, at a training loss."""
    place = Place.of(settings)
    model = place.subject(seed).model
    place.train(model, seed, learning_rate=0.1, stop_loss=settings["stop_loss"])
    inputs, labels = place.samples(seed)
    model.double()
    problem = Problem(model, "cross_entropy", train=(inputs.double(), labels))
    H, F = (_whole(operator(problem)) for operator in (hessian, fisher))
    slopes = torch.autograd.grad(
        cross_entropy(model(inputs.double()), labels), list(model.parameters())
    )
    mean = torch.cat([slope.flatten() for slope in slopes])
    return compared(F - torch.outer(mean, mean), H)


def compared(noise: Tensor, H: Tensor) -> dict[str, float]:
    """The cosine of two symmetric matrices, and the part of noise in the Hessian's leading space.

    Each also for noise of the same size in all directions.
    """
    leading = torch.linalg.eigh(H).eigenvectors[:, -TOP:]
    return {
        "cosine": float((noise * H).sum() / noise.norm() / H.norm()),
        "isotropic_cosine": float(H.trace() / math.sqrt(len(H)) / H.norm()),
        "leading_part": float((leading * (noise @ leading)).sum() / noise.trace()),
        "isotropic_part": TOP / len(H),
    }


def _whole(operator: Any) -> Tensor:
    return operator @ torch.eye(operator.size, dtype=torch.float64)


# --- rates, schedules and ends of training -------------------------------------------------------


def kick(settings: dict[str, Any], seed: int) -> dict[str, Any]:
    """From a sharp minimum some epochs at another rate, then at the small one to a lower loss."""
    place = Place.of(settings)
    sharp = _sharp(place, seed)
    model = copy.deepcopy(sharp)
    place.train(model, seed, learning_rate=settings["rate"], stop_loss=END, max_epochs=KICK)
    numbers = _settled(place, model, seed)
    if "trace" in numbers:
        numbers["barrier"] = _barrier(sharp, model, place.samples(seed))
    return numbers


@functools.lru_cache(maxsize=16)  # kicks of all rates start there
def _sharp(place: Place, seed: int) -> nn.Module:
    model = place.subject(seed).model
    place.train(model, seed, learning_rate=SMALL, stop_loss=START)
    return model


def schedule(settings: dict[str, Any], seed: int) -> dict[str, Any]:
    """From the initial weights by a schedule, then at the small rate to a lower loss."""
    place, top = Place.of(settings), settings["top"]
    model = place.subject(seed).model
    place.train(
        *(model, seed),
        schedule=settings["schedule"],
        learning_rate=top,
        rate_floor=SMALL / top,
        cycle=SCHEDULED // 2,
        stop_loss=END,
        max_epochs=SCHEDULED,
    )
    return _settled(place, model, seed)


def _settled(place: Place, model: nn.Module, seed: int) -> dict[str, Any]:
    """Train on at the small rate; sharpness at the end if there is one."""
    converged = place.train(model, seed, learning_rate=SMALL, stop_loss=END)
    return {"settled": float(converged)} | (place.sharpness(model, seed) if converged else {})


@torch.no_grad()
def _barrier(first: nn.Module, second: nn.Module, data: Data) -> float:
    """How far the loss on the straight line between networks rises above that of both.

    The statistics of BatchNorm are on the line as well.
    """
    inputs, labels = data
    losses, between = [], copy.deepcopy(first)
    a, b = first.state_dict(), second.state_dict()
    for share in torch.linspace(0, 1, 11).tolist():
        for name, tensor in between.state_dict().items():
            if tensor.is_floating_point():
                tensor.copy_(torch.lerp(a[name], b[name], share))
        losses.append(float(cross_entropy(between(inputs), labels)))
    return max(losses) - max(losses[0], losses[-1])


def stopped(settings: dict[str, Any], seed: int) -> dict[str, Any]:
    """Sharpness where the training loss first is below a value."""
    loss, goal = settings["loss"], settings["stop_loss"]
    place = Place.of(settings)
    model = place.subject(seed).model
    # The square loss is a mean over ten outputs, and its gradients are as much smaller.
    rate = 0.1 if loss == "cross_entropy" else 1.0
    converged = place.train(model, seed, loss, learning_rate=rate, stop_loss=goal)
    return place.sharpness(model, seed, loss) if converged else {}
