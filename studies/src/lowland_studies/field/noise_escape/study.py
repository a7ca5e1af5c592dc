"""Noise that knows the Hessian, rates and schedules that leave sharp minima, and stopping early.

Sec. 5.1 and 8 of the overview of flat and sharp minima, and Seong et al. (2018).
"""

import math
from typing import Any

import numpy as np

from lowland.sweep.grid import Grid
from lowland.sweep.trial import trials
from lowland_studies.claims import Test, between, falls, on, smaller
from lowland_studies.evidence import Runs
from lowland_studies.panels import Against, Kinds
from lowland_studies.study import Claim, Study

_TRIALS = "lowland_studies.field.noise_escape.trial"
_NOISE, _KICK = f"{_TRIALS}:covariance", f"{_TRIALS}:kick"
_SCHEDULE, _STOPPED = f"{_TRIALS}:schedule", f"{_TRIALS}:stopped"
_RATES = [0.05, 0.2, 0.8, 3.2]
_USUAL = _RATES[:-1]  # at which training is thought to converge
_SCHEDULES = ["cosine", "cyclical", "warm_restarts"]
_ENDS = {
    "cross_entropy": [0.3, 0.1, 0.03, 0.01],
    "mse": [0.05, 0.02, 0.01],
}


# Residual networks on CIFAR-10, as Seong et al. have them.
_RESIDUAL: dict[str, Any] = {
    "data": "cifar10",
    "network": "lowland_studies.residual:wrn_16_4",
    "per_class": None,
    "batch_size": 128,
}


def _grid(seeds: int, rates: list[float], ends: int, **place: Any) -> Grid:
    """The covariance is that of the small network everywhere: it takes whole matrices."""
    own = {**place, "seed": range(seeds)}
    grid = trials(_NOISE, stop_loss=[0.3, 0.03], seed=range(seeds))
    grid += trials(_KICK, rate=rates, **own)
    grid += trials(_SCHEDULE, schedule=_SCHEDULES, top=0.5, **own)
    for loss, losses in _ENDS.items():
        grid += trials(_STOPPED, loss=loss, stop_loss=losses[:ends], **own)
    return grid


def cosine_beyond_isotropic(runs: Runs) -> np.ndarray:
    """The cosine of noise and Hessian less that of noise without a direction."""
    return runs.column("cosine") - runs.column("isotropic_cosine")


def _flatter(schedule: str) -> Test:
    test = smaller("largest_eigenvalue", {"schedule": schedule}, {"schedule": "cosine"})
    return on({"function": _SCHEDULE}, test)


def _early(loss: str, words: str) -> Claim:
    return Claim(
        f"{words}: networks that stop earlier, at a larger loss, are flatter.",
        "overview, Sec. 8: stopping before convergence may land in flatter regions",
        on({"function": _STOPPED, "loss": loss}, falls("largest_eigenvalue", "stop_loss")),
    )


_OVERVIEW = "overview, Sec. 5.1: the noise covariance is related to the Hessian"
_RATE = "overview, Sec. 8, and Seong et al.: large rates leave sharp minima"
_NON_MONOTONE = "Seong et al.: schedules that rise again end flatter than monotone ones"

STUDY = Study(
    name="noise-escape",
    title="Gradient noise, large rates, schedules and stopping early",
    grid=_grid(4, _RATES, 4),
    quick=_grid(2, [_RATES[0], *_RATES[2:]], 2),
    original=_grid(4, _RATES, 4, **_RESIDUAL),
    panels=(
        Against(
            "stop_loss",
            {"SGD": "cosine", "isotropic": "isotropic_cosine"},
            "cosine of noise and Hessian",
            log="x",
            where={"function": _NOISE},
        ),
        Against(
            "rate",
            {"": "largest_eigenvalue"},
            "largest eigenvalue",
            log="x",
            where={"function": _KICK},
            title="after a kick",
        ),
        Against(
            "rate",
            {"": "settled"},
            "share that settles again",
            log="x",
            where={"function": _KICK},
            title="after a kick",
        ),
        Kinds(
            *("schedule", "largest_eigenvalue", "largest eigenvalue"),
            where={"function": _SCHEDULE},
        ),
        Against(
            "stop_loss",
            {"": "largest_eigenvalue"},
            "largest eigenvalue",
            log="x",
            where={"function": _STOPPED, "loss": "cross_entropy"},
            title="stopped, cross-entropy",
        ),
        Against(
            "stop_loss",
            {"": "largest_eigenvalue"},
            "largest eigenvalue",
            log="x",
            where={"function": _STOPPED, "loss": "mse"},
            title="stopped, square loss",
        ),
    ),
    claims=(
        Claim(
            "The covariance of gradient noise is aligned with the Hessian: their cosine is above "
            "0.5.",
            _OVERVIEW,
            on({"function": _NOISE}, between("cosine", 0.5, math.inf)),
        ),
        Claim(
            "It is aligned more than noise without a direction would be.",
            _OVERVIEW,
            on({"function": _NOISE}, between(cosine_beyond_isotropic, 0.0, math.inf)),
            kind="restated",  # by a cosine that is above 0.5
        ),
        Claim(
            "More than half of the noise is in the ten leading of 1,480 directions.",
            _OVERVIEW,
            on({"function": _NOISE}, between("leading_part", 0.5, math.inf)),
        ),
        Claim(
            "After some epochs at a larger rate, networks from the same sharp minimum are flatter "
            "at the same loss.",
            _RATE,
            on({"function": _KICK, "rate": _USUAL}, falls("largest_eigenvalue", "rate")),
        ),
        Claim(
            "At a rate of 0.8 they leave its basin: the loss on the straight line rises by 0.1 or "
            "more.",
            _RATE,
            on({"function": _KICK, "rate": 0.8}, between("barrier", 0.1, math.inf)),
        ),
        Claim(
            "After a rate of 3.2 most do not settle again.",
            "overview, Sec. 8: but may prevent convergence",
            on({"function": _KICK, "rate": 3.2}, between("settled", -math.inf, 0.5)),
        ),
        Claim(
            "A cyclical rate ends flatter than half a cosine between the same rates.",
            _NON_MONOTONE,
            _flatter("cyclical"),
        ),
        Claim(
            "Warm restarts end flatter than half a cosine between the same rates.",
            _NON_MONOTONE,
            _flatter("warm_restarts"),
        ),
        _early("cross_entropy", "Cross-entropy"),
        _early("mse", "Square loss"),
    ),
    reason="The Hessian of a cross-entropy falls with its loss once samples are fitted: whoever "
    "stops later is flatter by eigenvalues.",
    differences=(
        "64-20-10 without biases on 500 digits of 8 x 8 pixels, plain SGD, batches of 50. Seong "
        "et al. train residual networks on CIFAR-10 and CIFAR-100; the overview has no numbers. "
        "Original: a Wide ResNet 16-4 on CIFAR-10, but for the covariance, with our rates, losses "
        "and epochs.",
        "A sharp minimum is where a rate of 0.05 has a loss of 0.03. From there 30 epochs at "
        "another rate (kick), then again at 0.05 to a loss of 0.005, where networks are compared.",
        "Schedules take 30 epochs between rates of 0.5 and 0.05, with two cycles or none; all then "
        "go on at 0.05 to a loss of 0.005.",
    ),
)
