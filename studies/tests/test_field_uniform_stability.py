"""The study of uniform stability: against trainings of its own, and claims in made-up worlds."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from lowland.data import load
from lowland.errors import InputError
from lowland.training import TrainingSettings, mlp, train
from lowland_studies.evidence import Runs
from lowland_studies.field.uniform_stability.study import STUDY
from lowland_studies.field.uniform_stability.trial import convex_bound, power, trial

SETTINGS = {"network": "784-10", "per_class": 5, "rate": 0.01, "epochs": 4}


def test_a_trial_is_two_trainings_whose_first_samples_differ():
    numbers = trial(SETTINGS, seed=3)
    digits = load("mnist5k", per_class=5, test_per_class=50, seed=3)
    X, y = (tensor.clone() for tensor in digits.train)
    models = []
    for _ in range(2):
        model = mlp((784, 10), seed=3)
        goal = TrainingSettings(learning_rate=0.01, stop_loss=1e-12, max_epochs=4, seed=3)
        train(model, (X, y), goal)
        models.append(model)
        X[0], y[0] = digits.test[0][0], digits.test[1][0]
    w, v = (model[1].weight.detach().double() for model in models)
    expected = float((w - v).norm() / (w.square().sum() + v.square().sum()).sqrt())
    assert numbers["distance"] == pytest.approx(expected, rel=1e-9)
    losses = [
        torch.nn.functional.cross_entropy(
            m(digits.test[0][1:]), digits.test[1][1:], reduction="none"
        )
        for m in models
    ]
    difference = float((losses[0] - losses[1]).detach().abs().mean())
    assert numbers["loss_difference"] == pytest.approx(difference, rel=1e-5)
    assert len(numbers["course/distance"]) == 4


def test_the_convex_bound_holds_and_is_not_idle():
    shares = [trial(SETTINGS, seed)["share_of_bound"] for seed in range(3)]
    assert max(shares) <= 1
    assert min(shares) > 0.01


def test_bounds_and_powers_in_closed_form():
    x, other = torch.tensor([3.0, 4.0]), torch.tensor([0.0, 2.0])
    assert convex_bound(x, other, 10, 0.5 / 25) == pytest.approx(10 * 0.5 / 25 * math.sqrt(2) * 7)
    assert power(3 * torch.arange(1, 9).double() ** 0.7) == pytest.approx(0.7)


def test_a_trial_is_of_the_data_that_is_named():
    settings = {"data": "nowhere", "network": "64-10", "per_class": 5, "rate": 0.1, "epochs": 2}
    with pytest.raises(InputError, match="nowhere"):
        trial(settings, 0)


def world(sign):
    """Distances as the paper has them, or the other way round."""
    random = np.random.default_rng(0)
    rows = []
    for run in STUDY.grid:
        own = dict(run.settings)
        distance = (own["rate"] / own["per_class"]) ** sign * (1 + 0.01 * random.normal())
        rows.append(
            own
            | {
                "seed": run.seed,
                "distance": distance,
                "gap": 2 * distance,
                "distance_power": 0.5 if sign > 0 else -0.5,
                "loss_power": 0.5 * sign,
                "gap_with_distance": 0.95 * sign,
                "share_of_bound": 0.5,
            }
        )
    return Runs(tuple(rows), (), Path("nowhere"))


def test_claims_follow_the_world():
    claims = [claim for claim in STUDY.claims if claim.kind == "claim"]
    assert {claim.test(world(1)).verdict for claim in claims} == {"holds"}
    reverse = [c.test(world(-1)).verdict for c in claims if "no faster" not in c.text]
    assert set(reverse) == {"does not hold"}
