"""The networks of the league table: a grid of settings on every data set at hand. No torch."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lowland.sweep import Grid
from lowland_studies.study import recording

STOP = 0.02  # the training loss that all of them reach
_DEPTHS, _BATCHES = (1, 2), (10, 25)
# What one network differs in from the plain one beside its learning rate, batch size, width and
# depth. Adam has learning rates of its own.
_CHANGES: tuple[Mapping[str, Any], ...] = (
    {},
    {"seed": 1},
    {"decay": 0.0003},
    {"init_scale": 1.5},
    {"dropout": 0.1},
    {"label_noise": 0.1},
    {"optimizer": "sam"},
    {"optimizer": "adam"},
)


@dataclass(frozen=True)
class DataSet:
    """A data set, how much of it is taken, and the learning rates that networks stand on it."""

    name: str
    inputs: int
    samples: Mapping[str, int]
    rates: tuple[float, float]
    adam: tuple[float, float]
    max_epochs: int
    widths: tuple[int, ...] = (30, 60)
    folder: str | None = None  # within LOWLAND_DATA; without one it comes with a package

    @property
    def at_hand(self) -> bool:
        """Whether it can be read here."""
        root = os.environ.get("LOWLAND_DATA")
        return self.folder is None or (root is not None and (Path(root) / self.folder).is_dir())


_IMAGES: dict[str, Any] = {"inputs": 784, "rates": (0.05, 0.15), "adam": (0.001, 0.003)}
DATA_SETS = (
    DataSet("digits", 64, {"per_class": 20}, (0.07, 0.2), (0.001, 0.003), 800),
    DataSet("mnist5k", samples={"per_class": 20}, max_epochs=800, **_IMAGES),
    DataSet(
        "fashion_mnist",
        samples={"per_class": 20, "test_per_class": 100},
        max_epochs=800,
        folder="FashionMNIST",
        **_IMAGES,
    ),
    DataSet(
        "cifar10",
        inputs=3072,
        samples={"per_class": 10, "test_per_class": 100},
        rates=(0.007, 0.014),
        adam=(0.0003, 0.001),
        max_epochs=1000,
        widths=(30,),  # wider ones with as many inputs would take longer than all the others
        folder="cifar-10-batches-py",
    ),
)


def grid() -> Grid:
    """Every combination of rate, batch size, width and depth, with one further setting changed."""
    whole = Grid.of_runs(())
    for data in DATA_SETS:
        if data.at_hand:
            for change in _CHANGES:
                whole += _networks(data, change)
    return whole


def quick() -> Grid:
    """A small version: the digits alone, shallow networks, and measures that take little time."""
    digits = DATA_SETS[0]
    few: dict[str, Any] = {"batch_size": 10, "network": _sizes(digits)[:2], "measures": _CHEAP}
    whole = Grid.of_runs(())
    for change in _CHANGES[:-1]:
        few["layers"] = _last(few["network"][0], dropout="dropout" in change)
        whole += Grid(**{**_fixed(digits), "learning_rate": list(digits.rates), **few, **change})
    return whole


_CHEAP = [
    *("trace", "gradient_variance", "path_norm", "vc_dimension", "pac_bayes_magnitude"),
    *("normalized_sharpness", "weight_norm", "sam_sharpness"),
]


def _networks(data: DataSet, change: Mapping[str, Any]) -> Grid:
    """The networks on a data set with one setting changed.

    What rescalings do is tried on one plain network of each data set.
    """
    whole = Grid.of_runs(())
    rates = data.adam if change.get("optimizer") == "adam" else data.rates
    for network in _sizes(data):
        for rate in rates:
            for batch in _BATCHES:
                own = {**_fixed(data), "network": network, "learning_rate": rate, **change}
                own["layers"] = _last(network, dropout="dropout" in change)
                if not change and (network, rate, batch) == (
                    _sizes(data)[0],
                    rates[0],
                    _BATCHES[0],
                ):
                    own["details"] = recording("halves", "stressed")
                whole += Grid(batch_size=batch, **own)
    return whole


def _sizes(data: DataSet) -> list[str]:
    """Narrow and wide, shallow and deep; the shallow ones first."""
    return [
        "-".join(map(str, (data.inputs, *[width] * depth, 10)))
        for depth in _DEPTHS
        for width in data.widths
    ]


def _last(network: str, *, dropout: bool) -> str:
    """The last layer, for the duality: others would take eigenvectors of thousands of weights."""
    hidden = network.count("-") - 1
    return str(1 + hidden * (3 if dropout else 2))  # behind inputs, ReLUs and dropout


def _fixed(data: DataSet) -> dict[str, Any]:
    return {
        "data": data.name,
        **data.samples,
        "stop_loss": STOP,
        "max_epochs": data.max_epochs,
        "measures": "default",
        "details": recording("halves"),
    }
