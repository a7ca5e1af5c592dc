"""Do drawn surfaces tell? Li et al., "Visualizing the loss landscape of neural nets" (2018)."""

from typing import Any

import numpy as np

from lowland.sweep import Grid, trials
from lowland_studies.claims import Test, correlated, falls, larger, on, rises, smaller, stronger
from lowland_studies.evidence import Runs
from lowland_studies.panels import Against, Scatter, Spectrum
from lowland_studies.study import Claim, Study

_TRIAL = "lowland_studies.field.pictures.trial:trial"
_BASE: dict[str, Any] = {
    "data": "mnist5k",
    "per_class": 50,
    "test_per_class": None,
    "width": 32,
    "learning_rate": 0.1,
    "stop_loss": 0.02,
}
# Shallow networks of several batch sizes with and without decay, and deep ones with BatchNorm.
_SHALLOW: dict[str, Any] = {"depth": 2, "skip": False, "norm": "none", "max_epochs": 2000}
_DEEP: dict[str, Any] = {"batch_size": 25, "decay": 0.0, "norm": "batch", "max_epochs": 200}
_DECAY = 5e-4
_CIFAR: dict[str, Any] = {"data": "cifar10", "per_class": None, "max_epochs": 300}


def _grid(batches: list[int], depths: list[int], seeds: int, **others: Any) -> Grid:
    shallow = {**_SHALLOW, "batch_size": batches, "decay": [0.0, _DECAY]}
    deep = {**_DEEP, "depth": depths, "skip": [False, True]}
    return _both(shallow, deep, seeds, **others)


def _both(shallow: dict[str, Any], deep: dict[str, Any], seeds: int, **others: Any) -> Grid:
    common = {**_BASE, "seed": range(seeds)}
    return trials(_TRIAL, **{**common, **shallow, **others}) + trials(
        _TRIAL, **{**common, **deep, **others}
    )


def _original() -> Grid:
    vgg = {"network": "vgg", "batch_size": [128, 8192], "decay": [0.0, _DECAY]}
    deep = {"network": "resnet", "batch_size": 128, "depth": [20, 56, 110], "skip": [False, True]}
    return _both({**_SHALLOW, **vgg, "depth": 9}, {**_DEEP, **deep}, 5, **_CIFAR)


def narrowness(runs: Runs) -> np.ndarray:
    """The width of the drawn basin, with the sign turned."""
    return -runs.column("basin")


def _deepest(runs: Runs) -> Runs:
    """The deepest networks."""
    deep = runs.where(norm="batch")
    return deep.where(depth=max((row["depth"] for row in deep.rows), default=None))


def _batches(decay: float, test: Test) -> Test:
    return on({"norm": "none", "decay": decay}, test)


def _skips(test: Any, column: str) -> Test:
    return on(_deepest, test(column, {"skip": True}, {"skip": False}))


_CLAIMS = (
    Claim(
        "The narrower the drawn basin of filter-normalised directions, the larger the test error, "
        "where batch size and decay vary.",
        "the paper: sharpness correlates well with generalization error",
        on({"norm": "none"}, correlated(narrowness, "test_error", at_least=0.5)),
    ),
    Claim(
        "That goes closer with the test error than the width without normalisation.",
        "the paper: without it, pictures of different minimizers cannot be compared",
        on({"norm": "none"}, stronger("basin", "plain_basin", "test_error")),
    ),
    Claim(
        "Larger batches have the larger test error.",
        "the paper: the premise",
        _batches(0.0, rises("test_error", "batch_size")),
    ),
    Claim(
        "Larger batches have narrower basins, filter-normalised, without decay.",
        "the paper: large batch sharper",
        _batches(0.0, falls("basin", "batch_size")),
    ),
    Claim(
        "Larger batches have narrower basins, filter-normalised, with decay.",
        "the paper: large batch sharper",
        _batches(_DECAY, falls("basin", "batch_size")),
    ),
    Claim(
        "Without normalisation and with decay, pictures mislead: larger batches look wider.",
        "the paper: with weight decay the large-batch minimizer looks flatter",
        _batches(_DECAY, rises("plain_basin", "batch_size")),
    ),
    Claim(
        "Without skip connections the drawn surface becomes rougher with depth.",
        "the paper: a transition to chaos",
        on({"norm": "batch", "skip": False}, rises("roughness", "depth")),
    ),
    Claim(
        "Skip connections smooth the surface of the deepest network.",
        "the paper: skip connections prevent that transition",
        _skips(smaller, "roughness"),
    ),
    Claim(
        "Skip connections widen the basin of the deepest network.",
        "the paper: flatter with skip connections",
        _skips(larger, "basin"),
    ),
    Claim(
        "Skip connections lower the test error of the deepest network.",
        "the paper: landscape geometry affects generalization",
        _skips(smaller, "test_error"),
    ),
)

STUDY = Study(
    name="pictures",
    title="What drawn surfaces tell of the test error",
    grid=_grid([10, 50, 250], [2, 8], 5),
    quick=_grid([10, 200], [2, 12], 2, per_class=20, test_per_class=50),
    original=_original(),
    panels=(
        Scatter(
            *("basin", "test_error", "drawn width, filter-normalised", "test error"),
            by="batch_size",
            where={"norm": "none"},
        ),
        Scatter(
            *("plain_basin", "test_error", "drawn width, not normalised", "test error"),
            by="batch_size",
            where={"norm": "none"},
        ),
        *(
            Against(
                "depth",
                {"roughness": "roughness", "width": "basin", "test error": "test_error"},
                "of the drawn surface",
                where={"norm": "batch", "skip": skip},
                title="skip connections" if skip else "no skip connections",
            )
            for skip in (False, True)
        ),
        *(
            Spectrum(
                *("profile", "depth", "loss on a line of 21 points"),
                log="y",
                where={"norm": "batch", "skip": skip},
                title="skip connections" if skip else "no skip connections",
            )
            for skip in (False, True)
        ),
    ),
    claims=_CLAIMS,
    differences=(
        "Dense networks of 32 units a layer on 500 images of MNIST, trained by SGD to a loss of "
        "0.02, five realisations: two hidden layers behind the first for batches of 10, 50 and 250 "
        "with and without decay; 2 and 8 with BatchNorm, with and without shortcuts (with 16, none "
        "of five without shortcuts reached that loss in 200 epochs, of those with them three did). "
        "Li et al. have VGG-9 and ResNet-20 to 110 on CIFAR-10, batches of 128 and 8,192, "
        "and as many epochs for all. Original: those networks, to a loss of 0.02 in at most 300 "
        "epochs, by plain SGD.",
        "The width is the radius of a disc as large as what lies less than 1 above the loss at the "
        "centre, of 21 x 21 points; the roughness is the mean share of negative curvature in the "
        "drawn surface, where the paper takes that of the Hessian's extreme eigenvalues.",
        "Quick: 200 images, batches of 10 and 200, depths 2 and 12, two realisations.",
    ),
)
