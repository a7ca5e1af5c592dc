"""The noise of SGD against the Hessian, and where other rates, schedules and ends of training lead.

All on 8 x 8 digits: the network is small enough for whole matrices.
"""

import copy
import functools
import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, one_hot

from lowland.curvature import fisher, hessian
from lowland.data import load
from lowland.measures import measure
from lowland.problem import Problem
from lowland.training import TrainingSettings, mlp, train_many

SIZES = 64, 20, 10
PER_CLASS = 50
BATCH = 50
SMALL = 0.05  # the rate that finds sharp minima, and that networks end with
START, END = 0.03, 0.005  # training losses of the sharp minimum, and where sharpness is compared
KICK = 30  # epochs at another rate
SCHEDULED = 30  # epochs of a schedule, with two cycles if it has any
TOP = 10  # leading directions, as many as classes
_MOST = 3000  # epochs on the way to a loss

Data = tuple[Tensor, Tensor]


@functools.lru_cache(maxsize=16)
def _data(seed: int, loss: str) -> Data:
    inputs, labels = load("digits", per_class=PER_CLASS, seed=seed).train
    return inputs, one_hot(labels, SIZES[-1]).float() if loss == "mse" else labels


def _train(model: nn.Module, seed: int, loss: str = "cross_entropy", **settings: Any) -> bool:
    """Train on by plain SGD; whether the loss ``stop_loss`` was reached."""
    chosen = TrainingSettings(**{"batch_size": BATCH, "max_epochs": _MOST, "seed": seed} | settings)
    (training,) = train_many([model], _data(seed, loss), [chosen], loss=loss)
    return training.converged


def _problem(model: nn.Module, seed: int, loss: str = "cross_entropy") -> Problem:
    return Problem(model, loss, train=_data(seed, loss))


def _sharpness(model: nn.Module, seed: int, loss: str = "cross_entropy") -> dict[str, Any]:
    measured = measure(_problem(model, seed, loss), ["largest_eigenvalue", "trace"])
    return {name: measured[name].value for name in measured}


# --- the noise -----------------------------------------------------------------------------------


def covariance(settings: dict[str, Any], seed: int) -> dict[str, Any]:
    """The covariance of single samples' gradients against the Hessian, at a training loss."""
    model = mlp(SIZES, seed=seed)
    _train(model, seed, learning_rate=0.1, stop_loss=settings["stop_loss"])
    inputs, labels = _data(seed, "cross_entropy")
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
    model = copy.deepcopy(_sharp(seed))
    _train(model, seed, learning_rate=settings["rate"], stop_loss=END, max_epochs=KICK)
    numbers = _settled(model, seed)
    return numbers | (
        {"barrier": _barrier(_sharp(seed), model, seed)} if "trace" in numbers else {}
    )


@functools.lru_cache(maxsize=16)  # kicks of all rates start there
def _sharp(seed: int) -> nn.Module:
    model = mlp(SIZES, seed=seed)
    _train(model, seed, learning_rate=SMALL, stop_loss=START)
    return model


def schedule(settings: dict[str, Any], seed: int) -> dict[str, Any]:
    """From the initial weights by a schedule, then at the small rate to a lower loss."""
    model, top = mlp(SIZES, seed=seed), settings["top"]
    _train(
        *(model, seed),
        schedule=settings["schedule"],
        learning_rate=top,
        rate_floor=SMALL / top,
        cycle=SCHEDULED // 2,
        stop_loss=END,
        max_epochs=SCHEDULED,
    )
    return _settled(model, seed)


def _settled(model: nn.Module, seed: int) -> dict[str, Any]:
    """Train on at the small rate; sharpness at the end if there is one."""
    converged = _train(model, seed, learning_rate=SMALL, stop_loss=END)
    return {"settled": float(converged)} | (_sharpness(model, seed) if converged else {})


@torch.no_grad()
def _barrier(first: nn.Module, second: nn.Module, seed: int) -> float:
    """How far the loss on the straight line between networks rises above that of both."""
    inputs, labels = _data(seed, "cross_entropy")
    losses, between = [], copy.deepcopy(first)
    for share in torch.linspace(0, 1, 11).tolist():
        ends = zip(first.parameters(), second.parameters(), strict=True)
        for place, (a, b) in zip(between.parameters(), ends, strict=True):
            place.copy_(torch.lerp(a, b, share))
        losses.append(float(cross_entropy(between(inputs), labels)))
    return max(losses) - max(losses[0], losses[-1])


def stopped(settings: dict[str, Any], seed: int) -> dict[str, Any]:
    """Sharpness where the training loss first is below a value."""
    loss, goal = settings["loss"], settings["stop_loss"]
    model = mlp(SIZES, seed=seed)
    # The square loss is a mean over ten outputs, and its gradients are as much smaller.
    rate = 0.1 if loss == "cross_entropy" else 1.0
    converged = _train(model, seed, loss, learning_rate=rate, stop_loss=goal)
    return _sharpness(model, seed, loss) if converged else {}
