"""Are flat networks more robust? Input noise, shifted images, calibration, federated averaging.

The claims are those of overviews of the field; Dherin et al. (NeurIPS 2022) relate flatness to
geometric complexity, Qu et al. and Caldarola et al. (2022) put SAM into federated averaging.
"""

from typing import Any

import numpy as np

from lowland.sweep import Grid, trials
from lowland_studies.claims import Test, correlated, larger, on, smaller
from lowland_studies.evidence import Column
from lowland_studies.panels import Against, Scatter
from lowland_studies.study import Claim, Study

_MODULE = "lowland_studies.field.robustness.trial"
_TRAINED, _FEDERATED = {"part": "training"}, {"part": "averaging"}


_SMALL: dict[str, Any] = {"batch_size": 20}
# CIFAR-10 among a hundred clients, of which all take part in a round.
_CIFAR: dict[str, Any] = {"data": "cifar10", "per_class": None}
_RESIDUAL: dict[str, Any] = {
    **_CIFAR,
    "network": "lowland_studies.residual:wrn_16_4",
    "batch_size": 128,
}
_CLIENTS: dict[str, Any] = {
    **_CIFAR,
    "network": "lenet",
    "clients": 100,
    "rounds": 500,
    "local_epochs": 1,
    "batch_size": 64,
}


def _grid(
    rates: list[float],
    radii: list[float],
    seeds: int,
    place: dict[str, Any],
    clients: dict[str, Any],
) -> Grid:
    """Networks over rates and radii of SAM (0 is SGD), and federated averaging."""
    single = trials(
        f"{_MODULE}:trained",
        **_TRAINED,
        radius=radii,
        learning_rate=rates,
        **place,
        seed=range(seeds),
    )
    several = trials(
        f"{_MODULE}:federated",
        **_FEDERATED,
        radius=[0.0, 0.1],
        unequal=[0, 1],
        **clients,
        seed=range(seeds),
    )
    return single + several


def _goes_with(column: str, flatness: str = "trace", at_least: float = 0.0) -> Test:
    return on(_TRAINED, correlated(flatness, column, at_least=at_least))


def _panel(column: str, label: str) -> Scatter:
    return Scatter("trace", column, "trace", label, by="radius", log="x", where=_TRAINED)


def _averaged(radius: float) -> Column:
    """The test error of federated averaging by clients with this radius of SAM."""
    return lambda runs: np.where(runs.column("radius") == radius, runs.column("test_error"), np.nan)


_OVERVIEW = "overview, Sec. 3.3: flat minima are less sensitive to input perturbations and shifts"

STUDY = Study(
    name="robustness",
    title="Flatness against input noise, shift, calibration and unequal clients",
    grid=_grid([0.03, 0.1, 0.3], [0.0, 0.1, 0.2], 6, _SMALL, {}),
    quick=_grid([0.1, 0.3], [0.0, 0.2], 2, _SMALL, {}),
    original=_grid([0.03, 0.1, 0.3], [0.0, 0.1, 0.2], 6, _RESIDUAL, _CLIENTS),
    panels=(
        _panel("noise_error", "error with noisy inputs"),
        _panel("calibration_error", "calibration error"),
        _panel("geometric_complexity", "geometric complexity"),
        Against(
            "unequal",
            {"SGD": _averaged(0.0), "SAM": _averaged(0.1)},
            "test error of averaging",
            where=_FEDERATED,
        ),
    ),
    claims=(
        Claim(
            "The flatter by the trace, the fewer errors on noisy inputs.",
            _OVERVIEW,
            _goes_with("noise_error"),
        ),
        Claim(
            "The flatter by normalized sharpness, the fewer errors on noisy inputs.",
            _OVERVIEW,
            _goes_with("noise_error", "normalized_sharpness"),
        ),
        Claim(
            "The flatter by the trace, the fewer errors on images shifted by a pixel.",
            _OVERVIEW,
            _goes_with("shift_error"),
        ),
        Claim(
            "The flatter by the trace, the better calibrated.",
            "overview, Sec. 8: flat minima often have better-calibrated uncertainty",
            _goes_with("calibration_error"),
        ),
        Claim(
            "The flatter by the trace, the smaller the geometric complexity.",
            "Dherin et al.: what makes minima flat makes it small, and the other way round",
            _goes_with("geometric_complexity", at_least=0.5),
        ),
        Claim(
            "SAM with a radius of 0.2 makes fewer errors on noisy inputs than SGD.",
            _OVERVIEW,
            on(_TRAINED, smaller("noise_error", {"radius": 0.2}, {"radius": 0.0})),
        ),
        Claim(
            "Clients that have two classes each make the average of SGD worse.",
            "what federated averaging suffers from",
            on(
                {**_FEDERATED, "radius": 0.0},
                larger("test_error", {"unequal": 1}, {"unequal": 0}),
            ),
            kind="ours",
        ),
        Claim(
            "With such clients, averaging makes fewer errors where they train with SAM.",
            "Qu et al. 2022, Caldarola et al. 2022: SAM helps with unequal data",
            on(
                {**_FEDERATED, "unequal": 1},
                smaller("test_error", {"radius": 0.1}, {"radius": 0.0}),
            ),
        ),
    ),
    differences=(
        "Networks of 64-30-30-10 on 200 digits of 8 x 8 pixels, trained to a loss of 0.05; noise "
        "has a standard deviation of 0.3 of a white pixel.",
        "Five clients of 60 digits, 20 rounds of 4 epochs each; SAM takes twice the gradients of "
        "SGD there. The papers have CIFAR and a hundred clients. Original: a Wide ResNet 16-4 on "
        "CIFAR-10, and LeNet among a hundred clients, all of whom take part in each of 500 rounds.",
    ),
)
