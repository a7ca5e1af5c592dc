"""What an experiment is about: the data and the network that a configuration names."""

import contextlib
import functools
import os
import random
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from lowland.batches import Batches
from lowland.data import load
from lowland.errors import InputError
from lowland.experiment.configuration import SETTINGS, Configuration
from lowland.losses import LossLike
from lowland.problem import Problem
from lowland.training import TrainingSettings, lenet, mlp
from lowland.usercode import called, loss_named

Data = tuple[Tensor, Tensor]  # inputs and targets


@dataclass(frozen=True)
class Subject:
    """A network with its data, its loss and the settings of its training."""

    model: nn.Module
    initial: dict[str, Tensor]  # the weights before training
    train: Data
    test: Data
    data: str  # the data set in words
    loss: LossLike
    settings: TrainingSettings
    judged: int | None = None  # leading training samples with true labels, where others are wrong

    @classmethod
    def of(cls, configuration: Configuration, data_dir: Path | None = None) -> Self:
        """Read the data and build the network that a configuration names.

        ``data_dir`` is the folder of data sets, by default the environment variable LOWLAND_DATA.
        """
        train, test, judged, description = _data(
            configuration.data,
            configuration.per_class,
            configuration.test_per_class,
            configuration.label_noise,
            configuration.noise_kind,
            configuration.data_seed,
            data_dir,
        )
        if configuration.batch_size > len(train[0]):
            raise InputError(
                f"batch_size is {configuration.batch_size}, but there are {len(train[0])} training "
                "samples; use a smaller batch or more data"
            )
        device = _device()
        model = _network(configuration, train).to(device)
        _check_layers(configuration, model)
        train, test = ((X.to(device), y.to(device)) for X, y in (train, test))
        names = [field.name for field in fields(TrainingSettings)]
        return cls(
            model=model,
            initial={name: p.detach().clone() for name, p in model.named_parameters()},
            train=train,
            test=test,
            data=description,
            loss=loss_named(configuration.loss, "loss"),
            settings=TrainingSettings(**{name: getattr(configuration, name) for name in names}),
            judged=judged,
        )

    def problem(self) -> Problem:
        """The model as it is now, with all that measures may ask for.

        Its training data are the samples with true labels, where others were added to them.
        """
        X, y = self.train
        return Problem(
            self.model,
            self.loss,
            train=(X[: self.judged], y[: self.judged]),
            test=self.test,
            initial=self.initial,
            training={
                "learning_rate": self.settings.learning_rate,
                "batch_size": self.settings.batch_size,
            },
        )


def _device() -> torch.device:
    """Where this process computes: the environment variable LOWLAND_DEVICE, or the CPU."""
    name = os.environ.get("LOWLAND_DEVICE", "cpu")
    try:
        return torch.zeros(1, device=name).device
    except (RuntimeError, AssertionError) as error:  # the latter where torch was built without it
        why = str(error).partition("\n")[0]
        raise InputError(
            f"LOWLAND_DEVICE is {name!r}, but torch cannot compute there: {why}"
        ) from error


def _check_layers(configuration: Configuration, model: nn.Module) -> None:
    """Raise if a layer to decompose is not in the network, or has no matrix."""
    parameters = dict(model.named_parameters())
    for name in configuration.layers:
        weight = parameters.get(f"{name}.weight")
        if weight is None or weight.ndim < 2:
            matrices = [n.removesuffix(".weight") for n, p in parameters.items() if p.ndim > 1]
            raise InputError(
                f"layers names {name!r}, but the matrices of {configuration.network!r} are in "
                f"{', '.join(map(repr, matrices))}"
            )


@functools.lru_cache(maxsize=8)  # the runs of a stack share their data
def _data(
    name: str,
    per_class: int | None,
    test_per_class: int | None,
    label_noise: float,
    noise_kind: str,
    seed: int,
    data_dir: Path | None,
) -> tuple[Data, Data, int | None, str]:
    """Training data, test data, how many of the first judge, and the data set in words."""
    if ":" not in name:
        dataset = load(
            name,
            per_class=per_class,
            test_per_class=test_per_class,
            label_noise=label_noise,
            noise_kind=noise_kind,  # type: ignore[arg-type]
            seed=seed,
            data_dir=data_dir,
        )
        judged = dataset.clean if dataset.clean < len(dataset.train[1]) else None
        return dataset.train, dataset.test, judged, dataset.description
    if per_class is not None or test_per_class is not None or label_noise:
        raise InputError(
            f"per_class, test_per_class and label_noise are for named data sets; {name} decides "
            "itself what it returns"
        )
    with _seeded(seed):
        both = called(name, "data")
    if not isinstance(both, tuple | list) or len(both) != 2:
        raise InputError(f"data {name} must return (train, test); it returned {type(both)}")
    train, test = (
        Batches(part, split, 1024).take(slice(None))
        for part, split in zip(both, ("train", "test"), strict=True)
    )
    for batch in (train, test):
        if not isinstance(batch.inputs, Tensor):
            raise InputError(f"data {name} must have single tensors as inputs to be trained on")
    return (train.inputs, train.targets), (test.inputs, test.targets), None, name


def _network(configuration: Configuration, train: Data) -> nn.Module:
    """The network with its initial weights; an error if it does not fit the data."""
    X, y = train
    network, data, sizes = configuration.network, configuration.data, configuration.sizes
    classes = y.shape[1] if y.ndim > 1 else 1 if y.is_floating_point() else int(y.max()) + 1
    options: dict[str, Any] = {
        "bias": configuration.bias,
        "scale": configuration.init_scale,
        "dropout": configuration.dropout,
        "dropout_layers": configuration.dropout_layers,
        "init": configuration.init,
        "seed": configuration.seed,
    }
    if sizes is not None:
        if sizes[0] != X[0].numel():
            raise InputError(
                f"network {network!r} takes {sizes[0]} inputs, but {data} has {X[0].numel()}; let "
                "its first size be that"
            )
        if sizes[-1] < classes:
            raise InputError(
                f"network {network!r} has {sizes[-1]} outputs, but {data} needs {classes}; let its "
                "last size be that"
            )
        return mlp(sizes, **options)
    if network in ("lenet", "cnn"):
        if X.ndim != 4:
            raise InputError(f"{network} takes images, but {data} has inputs of {X.ndim - 1} sizes")
        if network == "cnn":  # Feng & Tu's
            options |= {"hidden": (120, 25), "padding": 0}
        return lenet((X.shape[1], X.shape[2], X.shape[3]), classes, **options)
    for name in ("bias", "dropout", "dropout_layers", "init"):
        if getattr(configuration, name) != SETTINGS[name].default:
            raise InputError(f"{name} is for named networks; {network} builds its own")
    with _seeded(configuration.seed):
        model = called(network, "network")
    if not isinstance(model, nn.Module):
        raise InputError(
            f"network {network} must return a torch.nn.Module; it returned {type(model).__name__}"
        )
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:  # matrices and kernels; biases and norms are left alone
                parameter.mul_(configuration.init_scale)
    return model


@contextlib.contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Whatever a user's function draws comes from the seed, and leaves no trace."""
    before = random.getstate(), np.random.get_state()  # noqa: NPY002
    with torch.random.fork_rng():
        random.seed(seed)
        np.random.seed(seed % 2**32)  # noqa: NPY002  (the user's function may use it)
        torch.manual_seed(seed)
        try:
            yield
        finally:
            random.setstate(before[0])
            np.random.set_state(before[1])  # noqa: NPY002
