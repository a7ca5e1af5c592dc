"""Uniform stability (Hardt, Recht & Singer, ICML 2016): trainings that differ in one sample.

Of MNIST, by logistic regression, which is convex, and by a network with a hidden layer.
"""

import math
from typing import Any

from lowland.sweep.grid import Grid
from lowland.sweep.trial import trials
from lowland_studies.claims import between, correlated, falls, on, rises
from lowland_studies.panels import Against, Panel, Scatter, Spectrum
from lowland_studies.study import Claim, Study

_CONVEX, _NETWORK = "784-10", "784-30-10"
_LARGE = "784-1024-10"  # of the original
_RATES = [0.01, 0.03, 0.1]


def _grid(
    images: list[int], epochs: int, seeds: int, network: str = _NETWORK, **others: Any
) -> Grid:
    def some(**axes: Any) -> Grid:
        function = "lowland_studies.field.uniform_stability.trial:trial"
        common = {"network": [_CONVEX, network], "epochs": epochs, "seed": range(seeds)}
        return trials(function, **common, **others, **axes)

    return some(per_class=images[-1], rate=_RATES) + some(per_class=images, rate=_RATES[-1])


_MOST: dict[str, Any] = {"per_class": [5000, 100, 20]}
_FASTEST: dict[str, Any] = {"rate": _RATES[-1]}


_ONE: dict[str, Any] = {"network": _CONVEX}
_OTHER: dict[str, Any] = {"network": [_NETWORK, _LARGE]}


def _of(own: dict[str, Any], words: str) -> tuple[Claim, ...]:
    """The claims about one network."""
    return (
        Claim(
            f"{words}: weights come farther apart the longer training takes.",
            "the paper: the distance grows with the epochs",
            on(own, between("distance_power", 0.0, math.inf)),
        ),
        Claim(
            f"{words}: no faster than in proportion to the time.",
            "proved: in proportion where it is convex, more slowly where it is not and rates fall",
            on(own, between("distance_power", -math.inf, 1.0)),
        ),
        Claim(
            f"{words}: so do the losses of test samples.",
            "the definition: stability is that of the losses",
            on(own, between("loss_power", 0.0, math.inf)),
        ),
        Claim(
            f"{words}: the distance rises with the learning rate.",
            "the paper: it grows with the step size",
            on({**own, **_MOST}, rises("distance", "rate")),
        ),
        Claim(
            f"{words}: the distance falls with the number of samples.",
            "proved: as 1 / n",
            on({**own, **_FASTEST}, falls("distance", "per_class")),
        ),
        Claim(
            f"{words}: during training, the gap goes with the distance.",
            "the paper: the distance tracks the generalisation error",
            on(own, between("gap_with_distance", 0.8, math.inf)),
        ),
    )


def _course(array: str, label: str, own: dict[str, Any], words: str) -> Panel:
    where = {**own, **_MOST}
    return Spectrum(f"course/{array}", "rate", label, where=where, title=words)


STUDY = Study(
    "uniform-stability",
    "Two trainings that differ in one sample: weights and losses against training time",
    grid=_grid([25, 50, 100], 30, 5),
    quick=_grid([10, 20], 20, 3),
    original=_grid([500, 1500, 5000], 30, 5, _LARGE, data="mnist", batch_size=100),
    panels=(
        _course("distance", "distance of weights", _ONE, "logistic regression"),
        _course("distance", "distance of weights", _OTHER, "one hidden layer"),
        _course("difference", "difference of losses", _OTHER, "one hidden layer"),
        Against(
            "per_class",
            {"": "distance"},
            "distance of weights",
            log="xy",
            where={**_OTHER, **_FASTEST},
            title="one hidden layer",
        ),
        Scatter(
            "distance",
            "gap",
            "distance of weights",
            "gap",
            by="rate",
            log="x",
            where={**_OTHER, **_MOST},
            title="one hidden layer",
        ),
    ),
    claims=(
        *_of(_ONE, "Logistic regression"),
        *_of(_OTHER, "One hidden layer"),
        Claim(
            "Logistic regression with small steps keeps within the bound.",
            "proved, for convex losses",
            on(
                {**_ONE, "rate": _RATES[0]},
                between("share_of_bound", -math.inf, 1.0),
            ),
            kind="check",
        ),
        Claim(
            "Over learning rates and sizes, the gap at the end goes with the distance.",
            "not in the paper",
            on(_OTHER, correlated("distance", "gap", at_least=0.0)),
            kind="ours",
        ),
    ),
    differences=(
        "Logistic regression and 784-30-10 on 250 to 1,000 images of MNIST for 30 epochs; the "
        "paper has larger networks on MNIST, CIFAR-10 and ImageNet, and a recurrent one. Original: "
        "784-1024-10 on up to 50,000 images, where the network's size is our choice.",
        "The losses' difference is the mean over 499 test images, not the supremum over all.",
    ),
)
