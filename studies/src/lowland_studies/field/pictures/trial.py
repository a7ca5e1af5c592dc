"""Pictures of the loss around trained networks: how wide a basin they show, and how rough."""

from dataclasses import fields
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lowland.data import load
from lowland.findings import Surface
from lowland.landscape import surface
from lowland.measures import measure
from lowland.problem import Problem
from lowland.training import Training, TrainingSettings, train
from lowland_studies.residual import resnet, vgg9
from lowland_studies.tower import Tower

RISE = 1.0  # of the training loss over the centre's: the contour whose width is taken
_STEPS = 21  # points along each axis
_SPANS = {"filter": 1.0, "none": 0.15}  # of the picture, by the directions' normalisation
_OF_TRAINING = {f.name for f in fields(TrainingSettings)}


def trial(settings: dict[str, Any], seed: int) -> dict[str, Any]:
    """Train a network, and draw planes of random directions through its weights.

    One is normalised filter by filter, as Li et al. do, the other not at all.
    """
    problem, training = trained(settings, seed)
    by_filter, plain = (drawn(problem, seed, how) for how in ("filter", "none"))
    values = measure(problem, ["test_error", "test_loss", "train_loss"]).whole()
    return {
        "converged": training.converged,
        **{name: row.value for name, row in values.items()},
        "basin": basin(by_filter),
        "plain_basin": basin(plain),
        "roughness": roughness(by_filter),
        "profile": by_filter.train[_STEPS // 2],
    }


def trained(settings: dict[str, Any], seed: int) -> tuple[Problem, Training]:
    """A trained network as a problem, and its training.

    ``settings`` are ``data``, ``per_class`` and ``test_per_class``; ``network``, by default a
    tower, and of it ``width``, ``depth``, ``skip``, ``norm`` and ``dropout``, where it has them;
    and those of a training.
    """
    own = dict(settings)
    data = load(
        own.pop("data"), per_class=own.pop("per_class"), test_per_class=own.pop("test_per_class")
    )
    of_training = {name: own.pop(name) for name in list(own) if name in _OF_TRAINING}
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = _made(data.train[0][0], **own)
    how = TrainingSettings(**{"decay_epochs": None, **of_training, "seed": seed})
    training = train(model, data.train, how)
    return Problem(model.eval(), train=data.train, test=data.test), training


def _made(image: Tensor, network: str = "tower", **own: Any) -> nn.Module:
    """A tower for images like this one, or a convolutional network of Li et al."""
    if network == "vgg":
        return vgg9()
    if network == "resnet":
        return resnet(own["depth"], skip=own["skip"])
    return Tower(image.numel(), own.pop("width"), own.pop("depth"), **own)


def drawn(problem: Problem, seed: int, how: Any = "filter") -> Surface:
    """The plane of two random directions, normalised in this way."""
    return surface(
        problem, span=_SPANS[how], steps=_STEPS, seed=seed, normalize=how, second_order=False
    )


def basin(picture: Surface) -> float:
    """The radius of a disc as large as what lies below ``RISE`` over the centre's loss.

    The unit is that of the axes. Every point of the grid counts with an equal part of the picture;
    a hole is not below.
    """
    centre = picture.train[len(picture.y) // 2, len(picture.x) // 2]
    share = float(np.mean(picture.train < centre + RISE))
    x0, x1, y0, y1 = picture.spans
    return float(np.sqrt(share * (x1 - x0) * (y1 - y0) / np.pi))


def roughness(picture: Surface) -> float:
    """How far the drawn surface is from convex: the mean of max(0, -l_min) / max(|l_min|, |l_max|).

    l_min and l_max are the eigenvalues of its second differences at the points inside; Li et al.
    (2018, Section 6) take the ratio of those of the Hessian. 0 for a convex surface, 1 for a
    concave one.
    """
    z = picture.train
    h, k = np.diff(picture.x).mean(), np.diff(picture.y).mean()
    xx = (z[1:-1, 2:] - 2 * z[1:-1, 1:-1] + z[1:-1, :-2]) / h**2
    yy = (z[2:, 1:-1] - 2 * z[1:-1, 1:-1] + z[:-2, 1:-1]) / k**2
    xy = (z[2:, 2:] - z[2:, :-2] - z[:-2, 2:] + z[:-2, :-2]) / (4 * h * k)
    mean, turn = (xx + yy) / 2, np.hypot((xx - yy) / 2, xy)
    low, high = mean - turn, mean + turn
    largest = np.maximum(np.abs(low), np.abs(high))
    with np.errstate(invalid="ignore", divide="ignore"):
        shares = np.where(largest == 0, 0.0, np.maximum(0.0, -low) / largest)
    return float(np.nanmean(shares))
