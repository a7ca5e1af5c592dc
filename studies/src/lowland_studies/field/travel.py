"""Do the two determinants travel? Feng & Tu's claims of Fig. 3 and 4 on other data and networks.

Every pair of a network and data is a reading: the same claims are judged in each, side by side.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lowland_studies.feng_tu.grids import only
from lowland_studies.feng_tu.patterns import by_sharpness, by_size, three_panels
from lowland_studies.output_dual import (
    FULL_VALUES,
    NORMS,
    QUICK_VALUES,
    SETTINGS,
    one_at_a_time,
)
from lowland_studies.study import Reading, Study

_NETWORKS = "lowland_studies.tower"
_SECOND: dict[str, Any] = {"layers": ("9",)}
_AROUND: dict[str, Any] = {"layers": ("layers.0.0",), "dual": "output"}
_BESIDE = (
    "Data goes around the layer, a residual branch of 30 units, so that the gap is that of the "
    "output-level dual.",
)


_HALVED = (
    "Images are taken at 16 x 16 pixels around 0: of those as they are, dense networks die at a "
    "learning rate of 0.1.",
)
_FOLDERS = {"cifar10": "cifar-10-batches-py", "fashion_mnist": "FashionMNIST"}
_QUICK: dict[str, Any] = {"seed": range(2), "per_class": 6, "max_epochs": 400}


@dataclass(frozen=True)
class _Place:
    """A network with its data, in which the claims are judged."""

    name: str
    suffix: str
    settings: dict[str, Any]
    differences: tuple[str, ...] = ()

    def reading(self) -> Reading:
        """Its runs: one setting at a time, around the plain run."""
        return Reading(
            self.name,
            grid=one_at_a_time(**FULL_VALUES, **self.settings),
            quick=one_at_a_time(**{**QUICK_VALUES, **_QUICK, **self.settings}),
            differences=self.differences,
            suffix=self.suffix,
        )


def _at_hand(place: _Place) -> bool:
    """Whether its data is, in LOWLAND_DATA or by itself. The data room would load torch to say."""
    inside = _FOLDERS.get(place.settings["data"])
    folder = os.environ.get("LOWLAND_DATA", "")
    return inside is None or (bool(folder) and Path(folder, inside).is_dir())


_SMALL = (
    "The layer that is decomposed has 30 x 30 weights everywhere, as the paper's: the second "
    "hidden layer of the MLP, that of LeNet behind its convolutions, the first branch of the "
    "residual network.",
    "Scaled down: 30 images of a class to train on and 10 for the 100 pairs, an end of training at "
    "a loss of 0.01, a range of 4 in learning rate and batch size, decay up to 0.004 times the sum "
    "of squared weights, initial scale from 0.7 to 1.5, five realisations. The paper has 400 "
    "images of a digit, a range of 20 in learning rate and 16 in batch size, scales up to 4, and a "
    "loss of 0.0005: `lowland reproduce feng-tu:fig3 feng-tu:fig4`. Quick: 6 images of a class, "
    "two values of each setting, a loss of 0.1, two realisations.",
    "CIFAR-10 and Fashion-MNIST are taken where LOWLAND_DATA has them.",
)
_PLACES = (
    _Place("MLP, MNIST", "", {"data": "mnist5k", "network": "784-30-30-10"}, _SMALL),
    _Place("MLP, digits", "-mlp-digits", {"data": "digits", "network": "64-30-30-10"}),
    _Place(
        "MLP, CIFAR-10",
        "-mlp-cifar",
        {"data": "cifar10", "network": f"{_NETWORKS}:mlp_cifar", "layers": ("4",)},
        _HALVED,
    ),
    _Place(
        "LeNet, MNIST",
        "-lenet-mnist",
        {"data": "mnist5k", "network": f"{_NETWORKS}:lenet_mnist", **_SECOND},
    ),
    _Place(
        "LeNet, digits",
        "-lenet-digits",
        {"data": "digits", "network": f"{_NETWORKS}:lenet_digits", **_SECOND},
        ("Images of 8 x 8 pixels are padded by 4 on every side.",),
    ),
    _Place(
        "LeNet, CIFAR-10",
        "-lenet-cifar",
        {"data": "cifar10", "network": f"{_NETWORKS}:lenet_cifar", **_SECOND},
    ),
    _Place(
        *("residual, MNIST", "-residual-mnist"),
        {"data": "mnist5k", "network": f"{_NETWORKS}:residual_mnist", **_AROUND},
        _BESIDE,
    ),
    _Place(
        *("residual, digits", "-residual-digits"),
        {"data": "digits", "network": f"{_NETWORKS}:residual_digits", **_AROUND},
        _BESIDE,
    ),
    _Place(
        *("residual, CIFAR-10", "-residual-cifar"),
        {
            "data": "cifar10",
            "network": f"{_NETWORKS}:residual_cifar",
            **_AROUND,
            "layers": ("1.layers.0.0",),
        },
        (*_BESIDE, *_HALVED),
    ),
    _Place("MLP, Fashion", "-mlp-fashion", {"data": "fashion_mnist"}),
    _Place(
        "LeNet, Fashion",
        "-lenet-fashion",
        {"data": "fashion_mnist", "network": f"{_NETWORKS}:lenet_mnist", **_SECOND},
    ),
    _Place(
        *("residual, Fashion", "-residual-fashion"),
        {"data": "fashion_mnist", "network": f"{_NETWORKS}:residual_mnist", **_AROUND},
        _BESIDE,
    ),
)
_FIRST, *_OTHERS = (place.reading() for place in _PLACES if _at_hand(place))

STUDY = Study(
    name="travel",
    title="Do the two determinants travel?",
    grid=_FIRST.grid,
    quick=_FIRST.quick,
    panels=tuple(three_panels(key, only(key))[-1] for key in SETTINGS | NORMS),
    claims=(
        *by_sharpness("learning_rate", "falls", ["3A", "3B", "3C"]),
        *by_sharpness("batch_size", "rises", ["3D", "3E", "3F"]),
        *by_size("decay", "falls", ["4A", "4B", "4C"]),
        *by_size("init_scale", "rises", ["4D", "4E", "4F"]),
    ),
    differences=_FIRST.differences,
    reading=_FIRST.name,
    others=tuple(_OTHERS),
)
