"""Are independently trained minima apart? Straight lines, curves, and lines after alignment."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from lowland.sweep import Grid, trials
from lowland_studies.claims import Test, at_least, between, falls, on, smaller_part
from lowland_studies.evidence import Runs
from lowland_studies.panels import Against, Spectrum
from lowland_studies.study import Claim, Study

_FULL: dict[str, Any] = {
    "data": "mnist5k",
    "inputs": 784,
    "per_class": 100,
    "learning_rate": 0.1,
    "batch_size": 25,
    "stop_loss": 0.01,
    "max_epochs": 200,
    "iterations": 1500,
}
_QUICK: dict[str, Any] = {
    **_FULL,
    "data": "digits",
    "inputs": 64,
    "per_class": 30,
    "iterations": 400,
}
_ORIGINAL: dict[str, Any] = {**_FULL, "data": "mnist", "per_class": None, "batch_size": 128}
_WIDTHS = [16, 64, 256]
_MIDDLE = 64

_OWN: dict[str, Any] = {"common": None}
_WAYS = {
    "straight": "straight_barrier",
    "aligned": "aligned_barrier",
    "aligned, renormalised": "renormalised_barrier",
    "curve": "curve_barrier",
}


def _grid(base: dict[str, Any], widths: list[int], seeds: int) -> Grid:
    """Networks of their own starts at all widths, and of common ones at one of them."""
    name = "lowland_studies.field.mode_connectivity.trial:trial"
    apart = trials(name, **base, common=None, width=widths, seed=range(seeds))
    return apart + trials(name, **base, common=0, width=_MIDDLE, seed=range(seeds))


def shortening(runs: Runs) -> np.ndarray:
    """The distance of the networks after alignment, over that before."""
    return runs.column("aligned_distance") / runs.column("distance")


def _widest(runs: Runs) -> Runs:
    """The widest networks of starts of their own."""
    apart = runs.where(**_OWN)
    return apart.where(width=max((row["width"] for row in apart.rows), default=None))


Select = dict[str, Any] | Callable[[Runs], Runs]


def _claim(text: str, paper: str, test: Test, where: Select = _OWN) -> Claim:
    return Claim(text, paper, on(where, test))


_CLAIMS = (
    _claim(
        "The straight line between two independently trained minima crosses a barrier: 5 % or more "
        "of the training samples are wrong on it, at every width.",
        "Garipov et al. (2018); Frankle et al. (2020): not connected by a line",
        at_least("straight_train_error", 0.05),
    ),
    _claim(
        "A quadratic Bezier curve of low loss joins them: its barrier is below a twentieth of the "
        "line's.",
        "Garipov et al. (2018); Draxler et al. (2018): practically no barrier",
        smaller_part("curve_barrier", "straight_barrier", 0.05),
    ),
    _claim(
        "The test error rises by less than two points along the curve.",
        "Garipov et al. (2018): nearly constant",
        between("curve_test_error_rise", -math.inf, 0.02),
    ),
    _claim(
        "Alignment of the hidden units lowers the barrier of the straight line at least by half.",
        "Ainsworth et al. (2023): weight matching",
        smaller_part("aligned_barrier", "straight_barrier", 0.5),
    ),
    _claim(
        "After alignment the barrier falls with the width.",
        "Ainsworth et al. (2023): wider networks align better",
        falls("aligned_barrier", "width"),
    ),
    _claim(
        "After alignment wide networks are connected by a line: at the largest width the barrier "
        "is below a twentieth of that before.",
        "Ainsworth et al. (2023): zero barrier, MLP on MNIST",
        smaller_part("aligned_barrier", "straight_barrier", 0.05),
        _widest,
    ),
    _claim(
        "Statistics of activities put right on the aligned line (REPAIR) lower its barrier.",
        "Jordan et al. (2023): it removes most of it",
        smaller_part("renormalised_barrier", "aligned_barrier", 1.0),
    ),
    _claim(
        "Without alignment the barrier falls with the width.",
        "Entezari et al. (2022): falls beyond the width that fits the data",
        falls("straight_barrier", "width"),
    ),
    _claim(
        "Networks of the same initial weights, which see the data in other orders, are connected "
        "by a straight line: the test error rises by less than two points.",
        "Frankle et al. (2020): LeNet on MNIST is stable from initialisation on",
        between("straight_test_error_rise", -math.inf, 0.02),
        {"common": 0},
    ),
    Claim(
        "Alignment does nothing for networks of common initial weights.",
        "ours: their units already correspond",
        on({"common": 0}, between(shortening, 0.99, math.inf)),
        "ours",
    ),
)


STUDY = Study(
    name="mode-connectivity",
    title="Ways between independently trained minima",
    grid=_grid(_FULL, _WIDTHS, 5),
    quick=_grid(_QUICK, [16, 64], 3),
    original=_grid(_ORIGINAL, [16, _MIDDLE, 512], 5),
    panels=(
        Against(
            "width", _WAYS, "barrier of the training loss", log="xy", where=_OWN, title="own starts"
        ),
        Spectrum("straight", "width", "training loss", log="", where=_OWN, title="straight line"),
        Spectrum("aligned", "width", "training loss", log="", where=_OWN, title="after alignment"),
        Spectrum("curve", "width", "training loss", log="", where=_OWN, title="Bezier curve"),
    ),
    claims=_CLAIMS,
    differences=(
        "Networks of three hidden layers of 16, 64 or 256 units on 1,000 images of MNIST, trained "
        "by SGD to a loss of 0.01, five pairs each; Garipov et al. have VGG-16 and residual "
        "networks on CIFAR-10 and 100, Ainsworth et al. three hidden layers of 512 units on all of "
        "MNIST. Original: the latter. Others: `lowland landscape --path`, or `lowland.path`.",
        "The curve is trained for 1,500 batches of 128, longer than the networks; barriers "
        "are largest heights over the chord, at 25 points. In the figure, n counts these points on "
        "the way.",
        "Quick: 300 digits of 8 x 8 pixels, widths 16 and 64, three pairs, 400 batches.",
    ),
)
