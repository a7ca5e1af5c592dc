"""Networks with one part more: what a trial records of them, and the claims about them."""

from pathlib import Path

import numpy as np
import pytest

import lowland as ll
from lowland_studies.evidence import Runs
from lowland_studies.field.architecture.study import STUDY
from lowland_studies.field.architecture.trial import KINDS, N_SHARP, trial
from lowland_studies.field.pictures.trial import trained

SMALL = {
    "data": "digits",
    "per_class": 3,
    "test_per_class": 2,
    "width": 24,
    "depth": 1,
    "skip": False,
    "norm": "none",
    "dropout": 0.0,
    "decay": 0.0,
    "learning_rate": 0.05,
    "batch_size": 10,
    "max_epochs": 400,
    "stop_loss": 0.3,
}


@pytest.mark.slow
def test_a_kind_is_the_plain_network_with_one_change():
    numbers = trial({**SMALL, "kind": "skip"}, 0)
    problem, training = trained({**SMALL, "skip": True}, 0)
    split = ll.duality(problem, "layers.0.0", dual="output", n_sharp=N_SHARP)
    contribution = split.per_direction.contribution
    assert numbers["sharp"] == pytest.approx(contribution[:N_SHARP].sum(), rel=1e-4)
    assert numbers["sharp"] + numbers["flat"] == pytest.approx(numbers["eq11"], rel=1e-4)
    assert numbers["total_g"] == pytest.approx((split.per_direction.sigma_g**2).sum(), rel=1e-4)
    assert numbers["train_loss"] == pytest.approx(training.losses[-1], rel=1e-4)


@pytest.mark.slow
def test_stopping_early_ends_at_ten_times_the_loss():
    losses = [
        trial({**SMALL, "stop_loss": 0.1, "kind": k}, 0)["train_loss"]
        for k in ("plain", "stopped early")
    ]
    assert losses[0] < 0.1 <= losses[1] < 1.0


def verdicts(paper):
    """Where every part does what is said of it, or the reverse."""
    rng, rows = np.random.default_rng(0), []
    for run in STUDY.grid:
        settings = run.to_dict()
        sign = 0 if settings["kind"] == "plain" else 1 if paper else -1
        numbers = dict.fromkeys(("total_g", "eq11", "sharp", "flat", "roughness"), 1 - 0.3 * sign)
        numbers |= {"basin": 1 + 0.3 * sign}
        numbers |= {"total_w": 1 + 0.3 * sign * (1 if settings["kind"] == "dropout" else -1)}
        rows.append(
            {**settings, "key": str(len(rows))}
            | {name: value + 0.01 * rng.normal() for name, value in numbers.items()}
        )
    runs = Runs(tuple(rows), (), Path(), settings=("kind",))
    return {claim.test(runs).verdict for claim in STUDY.claims}


def test_claims_hold_in_a_world_as_said_and_not_in_its_opposite():
    assert {run.to_dict()["kind"] for run in STUDY.grid} == set(KINDS)
    assert verdicts(paper=True) == {"holds"}
    assert verdicts(paper=False) == {"does not hold"}
