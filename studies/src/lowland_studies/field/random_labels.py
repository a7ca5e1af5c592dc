"""Networks fit random labels (Zhang et al., CACM 2021): what tells those minima from the others?

The network, its data and its training are the same, and only the labels differ. Zhang et al. do not
speak of flatness; that every measure is asked here whether it is larger where labels are random, at
equal training loss, is a question of ours.
"""

import functools
import math
import operator
from dataclasses import replace
from typing import Any

from lowland.sweep.grid import Grid
from lowland_studies.claims import Test, between, falls, on, part_between, rises
from lowland_studies.evidence import Runs
from lowland_studies.panels import Against, Panel
from lowland_studies.realisations import realisations
from lowland_studies.study import Claim, Study

# By whether more of it is called sharper, or less; all that one gradient of each sample can tell.
_HIGHER = (
    *("trace", "largest_eigenvalue", "frobenius_norm", "effective_dimension"),
    *("normalized_sharpness", "matrix_normalized_sharpness", "relative_flatness"),
    *("expected_sharpness", "adaptive_average_case", "ball_sharpness", "adaptive_worst_case"),
    *("sam_sharpness", "keskar_sharpness", "keskar_subspace"),
    *("description_length", "pac_bayes", "pac_bayes_magnitude"),
    *("weight_norm", "distance_from_initial", "frobenius_norms", "spectral_norms", "path_norm"),
    *("spectral_complexity", "fisher_rao", "fisher_trace", "gradient_variance"),
    *("sharp_part", "flat_part", "total_sigma_g"),
)
_LOWER = ("near_zero_share", "flat_box", "width", "margin")

_NETWORK: dict[str, Any] = {"network": "784-30-30-10", "bias": True, "stop_loss": 0.01}
_DECAY: dict[str, Any] = {"decay": 2.5e-4, "decay_epochs": None}
_DROPOUT: dict[str, Any] = {"dropout": 0.2}


def _grid(count: int, noises: list[float], **keys: Any) -> Grid:
    common = {**_NETWORK, **keys}
    ends = {**common, "label_noise": [0.0, 1.0]}
    measured = realisations(count, measures=(*_HIGHER, *_LOWER), **ends)
    others = [{**common, "label_noise": noise} for noise in noises]
    others += [{**ends, **_DECAY}, {**ends, **_DROPOUT}]
    return functools.reduce(
        operator.add, (realisations(count, **keys) for keys in others), measured
    )


_PLAIN: dict[str, Any] = {"decay": 0.0, "dropout": 0.0}
_ENDS: dict[str, Any] = {**_PLAIN, "label_noise": [0.0, 1.0]}
_RANDOM: dict[str, Any] = {**_PLAIN, "label_noise": 1.0}


def _random_beside_true(runs: Runs) -> Runs:
    """The networks with random labels, and the epochs of those with true ones."""
    plain = runs.where(**_PLAIN)
    epochs = {row["seed"]: row["epochs"] for row in plain.where(label_noise=0.0).rows}
    rows = [
        row | {"epochs with true labels": epochs.get(row["seed"])}
        for row in plain.where(label_noise=1.0).rows
    ]
    return replace(runs, rows=tuple(rows))


def _regularised_beside_plain(runs: Runs) -> Runs:
    """The networks with decay or dropout and true labels, and how much worse they are for it."""
    true = runs.where(label_noise=0.0)
    plain = {row["seed"]: row["test_error"] for row in true.where(**_PLAIN).rows}
    rows = [
        row | {"added test error": row["test_error"] - plain.get(row["seed"], math.nan)}
        for row in true.rows
        if row["decay"] or row["dropout"]
    ]
    return replace(runs, rows=tuple(rows))


def _fits(**where: Any) -> Test:
    """At most one label in a hundred is not fitted, networks at their limit of epochs included."""
    return on(where, on(Runs.with_left_out, between("train_error", -math.inf, 0.01)))


_CLAIMS = (
    Claim(
        "The network fits random labels, without an error on the training set.",
        "the paper: the training error is 0, or nearly so",
        _fits(**_RANDOM),
    ),
    Claim(
        "With weight decay it still fits random labels.",
        "the paper: networks with weight decay do",
        _fits(label_noise=1.0, dropout=0.0, decay=_DECAY["decay"]),
    ),
    Claim(
        "With dropout it still fits random labels.",
        "the paper: explicit regularisation does not prevent fitting random labels",
        _fits(label_noise=1.0, decay=0.0, dropout=_DROPOUT["dropout"]),
    ),
    Claim(
        "On random labels training takes longer only by a small constant factor.",
        "the paper: by a small constant factor; here up to 3.5",
        on(_random_beside_true, part_between("epochs", "epochs with true labels", 1.0, 3.5)),
    ),
    Claim(
        "The test error rises with the share of random labels.",
        "the paper: it does, up to chance",
        on(_PLAIN, rises("test_error", "label_noise")),
    ),
    Claim(
        "With random labels the test error is that of chance.",
        "the paper: 90 %, of ten classes",
        on(_RANDOM, between("test_error", 0.87, 0.93)),
    ),
    Claim(
        "With true labels, decay and dropout change the test error by less than 3 points.",
        "the paper: explicit regularisation adds little; here at most 3 points",
        on(_regularised_beside_plain, between("added test error", -0.03, 0.03)),
    ),
)


def _question(name: str) -> Claim:
    """Whether a measure calls the minimum sharper where labels are random."""
    words = name.replace("_", " ")
    trend, way = (falls, "smaller") if name in _LOWER else (rises, "larger")
    return Claim(
        f"{words[0].upper()}{words[1:]}: {way} with random labels than with true ones.",
        "not in the paper",
        on(_ENDS, trend(name, "label_noise")),
        kind="ours",
    )


def _panel(columns: dict[str, Any], ylabel: str, **options: Any) -> Panel:
    return Against("label_noise", columns, ylabel, **{"where": _ENDS, **options})


STUDY = Study(
    "random-labels",
    "Networks fit random labels: which measures tell those minima apart?",
    grid=_grid(5, [0.5], per_class=50, max_epochs=1000),
    quick=_grid(3, [], per_class=20, max_epochs=500),
    original=_grid(
        *(5, [0.5]),
        data="cifar10",
        network="3072-512-10",
        learning_rate=0.01,
        momentum=0.9,
        batch_size=128,
        max_epochs=1000,
    ),
    panels=(
        _panel({"test": "test_error", "training": "train_error"}, "error", where=_PLAIN),
        _panel({"": "epochs"}, "epochs", where=_PLAIN),
        _panel({"path norm": "path_norm", "spectral norms": "spectral_norms"}, "norms", log="y"),
        _panel(
            {"trace": "trace", "normalized sharpness": "normalized_sharpness"}, "curvature", log="y"
        ),
        _panel({"ball": "ball_sharpness", "expected": "expected_sharpness"}, "rise of the loss"),
        _panel({"sharp part": "sharp", "flat part": "flat"}, "parts of the gap"),
    ),
    claims=(*_CLAIMS, *map(_question, (*_HIGHER, *_LOWER))),
    differences=(
        "A network 784-30-30-10 on 500 images of MNIST, where the paper has Inception, AlexNet "
        "and MLPs of 512 units on CIFAR-10 and ImageNet. Original: its small MLP, 3072-512-10 on "
        "CIFAR-10, with a rate of 0.01 and a momentum of 0.9; batches of 128 are our choice.",
        "Training ends at a loss of 0.01, so that minima are compared at equal training loss; the "
        "paper trains for fixed epochs.",
        "Shuffled and random pixels and augmentation are left out.",
    ),
)
