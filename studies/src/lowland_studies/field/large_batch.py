"""Do larger batches end in sharper minima, with a larger gap? Keskar et al. (ICLR 2017)."""

import math
from typing import Any

import numpy as np

from lowland.sweep.grid import Grid
from lowland_studies.claims import between, correlated, rises
from lowland_studies.evidence import Runs
from lowland_studies.panels import Against, Scatter
from lowland_studies.study import Claim, Reading, Study

_SETTINGS: dict[str, Any] = {
    "data": "mnist5k",
    "network": "784-30-30-10",
    "stop_loss": 1e-3,
    "max_epochs": 1500,
    "measures": (
        *("keskar_sharpness", "keskar_subspace"),
        *("largest_eigenvalue", "trace", "effective_dimension"),
    ),
}
_FULL: dict[str, Any] = {
    **_SETTINGS,
    "per_class": 100,
    "batch_size": [5, 10, 25, 50, 100],
    "seed": range(8),
}
_QUICK: dict[str, Any] = {
    **_SETTINGS,
    "per_class": 50,
    "batch_size": [5, 15, 50],
    "stop_loss": 1e-2,
    "seed": range(3),
}
_F1: dict[str, Any] = {
    **_SETTINGS,
    "data": "mnist",
    "network": "784-512-512-512-512-512-10",
    "batch_size": [256, 6000],
    "seed": range(8),
}
_ADAM = {"optimizer": "adam", "learning_rate": 0.001}


def train_accuracy(runs: Runs) -> np.ndarray:
    """The training accuracy."""
    return 1 - runs.column("train_error")


def largest_eigenvalue_per_loss(runs: Runs) -> np.ndarray:
    """The largest eigenvalue over the training loss.

    A cross-entropy's curvature falls with the loss, and trainings end somewhat below their goal.
    """
    return runs.column("largest_eigenvalue") / runs.column("train_loss")


_CLAIMS = (
    Claim(
        "The box measure over all weights rises with the batch size.",
        "the paper: larger for large batches, in all six networks",
        rises("keskar_sharpness", "batch_size"),
    ),
    Claim(
        "The box measure in a random subspace of 100 directions rises with the batch size.",
        "the paper: larger for large batches, in all six networks",
        rises("keskar_subspace", "batch_size"),
    ),
    Claim(
        "The largest eigenvalue of the Hessian rises with the batch size.",
        "the paper: sharp minimisers have large positive eigenvalues",
        rises("largest_eigenvalue", "batch_size"),
    ),
    Claim(
        "More eigenvalues are large: the effective dimension rises with the batch size.",
        "the paper: a significant number of large positive eigenvalues",
        rises("effective_dimension", "batch_size"),
    ),
    Claim(
        "The gap between test and training loss rises with the batch size.",
        "the paper: large batches generalise worse",
        rises("gap", "batch_size"),
    ),
    Claim(
        "The test error rises with the batch size.",
        "the paper: the testing accuracy falls",
        rises("test_error", "batch_size"),
    ),
    Claim(
        "Sharpness by the box measure goes with the gap.",
        "the paper: the testing accuracy falls where the sharpness rises",
        correlated("keskar_sharpness", "gap", at_least=0.0),
    ),
    Claim(
        "All networks fit their training data.",
        "the paper: training accuracies above 99 % with either batch, but for one network",
        between(train_accuracy, 0.99, math.inf),
        kind="check",  # training ends when the loss is small
    ),
    Claim(
        "The largest eigenvalue in units of the training loss rises with the batch size.",
        "not in the paper: whether the loss at which trainings end explains it",
        rises(largest_eigenvalue_per_loss, "batch_size"),
        kind="ours",
    ),
)

_SIZES = (
    "1,000 images of MNIST, 784-30-30-10 without biases or batch normalisation, and batches of 0.5 "
    "to 10 % of the data; the paper's F1 has five hidden layers of 512 with batch normalisation, "
    "60,000 images, and batches of 256 and 6,000. Original: that, but for the normalisation.",
    "Training ends at a training loss of 0.001 (0.01 in the quick version), whatever the batch; "
    "the paper trains until the loss no longer falls.",
)

STUDY = Study(
    name="large-batch",
    title="Batch size, sharpness and the gap (Keskar et al. 2017)",
    grid=Grid(**_FULL),
    quick=Grid(**_QUICK),
    original=Grid(**_F1),
    panels=(
        Against(
            "batch_size",
            {"all weights": "keskar_sharpness", "random subspace": "keskar_subspace"},
            "sharpness in a box",
            log="xy",
        ),
        Against("batch_size", {"": "largest_eigenvalue"}, "largest eigenvalue", log="xy"),
        Against("batch_size", {"": "effective_dimension"}, "effective dimension", log="x"),
        Against("batch_size", {"": "gap"}, "gap of the loss", log="x"),
        Against("batch_size", {"": "test_error"}, "test error", log="x"),
        Scatter(
            *("keskar_sharpness", "gap", "sharpness in a box", "gap of the loss"),
            by="batch_size",
            log="x",
        ),
    ),
    claims=_CLAIMS,
    reading="plain SGD",
    differences=(*_SIZES, "Plain SGD at a rate of 0.1; the paper uses Adam."),
    others=(
        Reading(
            "Adam, as in the paper",
            Grid(**_FULL, **_ADAM),
            Grid(**_QUICK, **_ADAM),
            (*_SIZES, "The rate is 0.001; the paper does not give its own."),
            suffix="-adam",
            original=Grid(**_F1, **_ADAM),
        ),
    ),
)
