"""What flat networks bear: noise on the inputs, shifted images, and averaging over clients."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lowland.data import load
from lowland.experiment.configuration import Configuration
from lowland.experiment.subject import Subject
from lowland.measures import measure
from lowland.training import TrainingSettings, mlp, train

_MEASURES = ("trace", "normalized_sharpness", "calibration_error", "test_error", "gap")
_NOISE = 0.3  # standard deviation, where pixels go from 0 to 1
_CLIENTS = 5
_ROUNDS = 20
_LOCAL_EPOCHS = 4

Data = tuple[Tensor, Tensor]


def trained(settings: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """A network on digits, by SGD or, with a ``radius``, by SAM: how flat it is, what it bears."""
    radius = settings["radius"]
    configuration = Configuration(
        data="digits",
        per_class=20,
        network="64-30-30-10",
        optimizer="sam" if radius else "sgd",
        radius=radius or None,
        learning_rate=settings["learning_rate"],
        batch_size=settings["batch_size"],
        stop_loss=0.05,
        data_seed=seed,
        seed=seed,
    )
    subject = Subject.of(configuration)
    training = train(subject.model, subject.train, subject.settings, loss=subject.loss)
    values = measure(subject.problem(), list(_MEASURES)).whole()
    X, y = subject.test
    generator = torch.Generator().manual_seed(seed)  # the same noise for all networks of a seed
    noisy = X + _NOISE * torch.randn(X.shape, generator=generator)
    return {
        **{name: row.value for name, row in values.items()},
        "converged": training.converged,
        "noise_error": _error(subject.model, (noisy, y)),
        "shift_error": _error(subject.model, (X.roll(1, dims=-1), y)),
        "geometric_complexity": geometric_complexity(subject.model, subject.train[0]),
    }


def geometric_complexity(model: nn.Module, X: Tensor) -> float:
    """The mean of |d outputs / d input|^2 (Dherin et al., NeurIPS 2022)."""

    def outputs(x: Tensor) -> Tensor:
        return model(x.unsqueeze(0)).squeeze(0)

    with torch.no_grad():
        slopes = torch.func.vmap(torch.func.jacrev(outputs))(X)  # (N, classes, *input)
    return float(slopes.square().flatten(1).sum(1).mean())


def federated(settings: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """Federated averaging of five clients, each with two classes if ``unequal``; SGD or SAM."""
    data = load("digits", per_class=30, seed=seed)
    shares = clients(data.train, bool(settings["unequal"]), seed)
    model = mlp((64, 30, 30, 10), seed=seed)
    radius = settings["radius"]
    for round_number in range(_ROUNDS):
        local = TrainingSettings(
            optimizer="sam" if radius else "sgd",
            radius=radius or None,
            batch_size=20,
            max_epochs=_LOCAL_EPOCHS,
            stop_loss=1e-9,
            seed=1000 * seed + round_number,
        )
        models = [copy.deepcopy(model) for _ in shares]
        for own, share in zip(models, shares, strict=True):
            train(own, share, local)
        average(model, models)
    return {"test_error": _error(model, data.test), "train_error": _error(model, data.train)}


def clients(data: Data, unequal: bool, seed: int) -> list[Data]:
    """The samples in as many equal parts as there are clients: by class, or at random."""
    X, y = data
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(seed))
    if unequal:
        order = order[y[order].argsort(stable=True)]
    return [(X[rows], y[rows]) for rows in order.chunk(_CLIENTS)]


@torch.no_grad()
def average(model: nn.Module, models: Sequence[nn.Module]) -> None:
    """Put the mean of the models' weights into the model."""
    for p, *others in zip(model.parameters(), *(m.parameters() for m in models), strict=True):
        p.copy_(torch.stack(others).mean(0))


@torch.no_grad()
def _error(model: nn.Module, data: Data) -> float:
    return float((model(data[0]).argmax(1) != data[1]).double().mean())
