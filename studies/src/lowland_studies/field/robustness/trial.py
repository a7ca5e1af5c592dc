"""What flat networks bear: noise on the inputs, shifted images, and averaging over clients."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lowland.experiment.configuration import Configuration
from lowland.experiment.subject import Subject
from lowland.measures import measure
from lowland.training import TrainingSettings, train

_MEASURES = ("trace", "normalized_sharpness", "calibration_error", "test_error", "gap")
_NOISE = 0.3  # standard deviation, where pixels go from 0 to 1
# What trials have where their settings do not say otherwise.
_PLACE: dict[str, Any] = {"data": "digits", "network": "64-30-30-10"}
_TRAINED: dict[str, Any] = {**_PLACE, "per_class": 20, "stop_loss": 0.05}
_FEDERATED: dict[str, Any] = {
    **_PLACE,
    "per_class": 30,
    "clients": 5,
    "rounds": 20,
    "local_epochs": 4,
    "batch_size": 20,
}

Data = tuple[Tensor, Tensor]


def trained(settings: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """A network by SGD or, with a ``radius``, by SAM: how flat it is, and what it bears.

    The other settings are those of a sweep.
    """
    own = {name: v for name, v in {**_TRAINED, **settings}.items() if name != "part"}
    radius = own.pop("radius")
    configuration = Configuration(
        **own,
        optimizer="sam" if radius else "sgd",
        radius=radius or None,
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
        slopes = torch.func.vmap(torch.func.jacrev(outputs), chunk_size=256)(
            X
        )  # (N, classes, *input)
    return float(slopes.square().flatten(1).sum(1).mean())


def federated(settings: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """Federated averaging of clients, by SGD or SAM; five with two classes each if ``unequal``."""
    own = {**_FEDERATED, **settings}
    place = {name: own[name] for name in ("data", "network", "per_class")}
    subject = Subject.of(Configuration(**place, seed=seed, data_seed=seed))
    shares = clients(subject.train, own["clients"], bool(own["unequal"]), seed)
    model, radius = subject.model, own["radius"]
    for round_number in range(own["rounds"]):
        local = TrainingSettings(
            optimizer="sam" if radius else "sgd",
            radius=radius or None,
            batch_size=own["batch_size"],
            max_epochs=own["local_epochs"],
            stop_loss=1e-9,
            seed=1000 * seed + round_number,
        )
        models = [copy.deepcopy(model) for _ in shares]
        for client, share in zip(models, shares, strict=True):
            train(client, share, local)
        average(model, models)
    return {
        "test_error": _error(model, subject.test),
        "train_error": _error(model, subject.train),
    }


def clients(data: Data, count: int, unequal: bool, seed: int) -> list[Data]:
    """The samples in as many equal parts as there are clients: by class, or at random."""
    X, y = data
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(seed))
    if unequal:
        order = order[y[order].argsort(stable=True)]
    return [(X[rows], y[rows]) for rows in order.chunk(count)]


@torch.no_grad()
def average(model: nn.Module, models: Sequence[nn.Module]) -> None:
    """Put the mean of the models' weights into the model."""
    states = [other.state_dict() for other in models]
    for name, tensor in model.state_dict().items():  # the statistics of BatchNorm as well
        if tensor.is_floating_point():
            tensor.copy_(torch.stack([state[name] for state in states]).mean(0))


@torch.no_grad()
def _error(model: nn.Module, data: Data) -> float:
    model.eval()
    return float((model(data[0]).argmax(1) != data[1]).double().mean())
