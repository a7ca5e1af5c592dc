"""The study of the optimised PAC-Bayes bound: its data, and its claims in made-up worlds."""

from pathlib import Path

import numpy as np
import pytest

import lowland as ll
from lowland_studies.evidence import Runs
from lowland_studies.field.pac_bayes import trial as pac_bayes
from lowland_studies.field.pac_bayes.study import STUDY


def test_random_labels_are_coins_and_true_ones_halves_of_the_digits():
    X, y = pac_bayes.labelled("mnist5k", 5, "true", seed=2)[0]
    digits = ll.data.load("mnist5k", per_class=5, seed=2).train
    assert (y == (digits[1] >= 5)).all()
    assert (digits[0] == X).all()
    coins = pac_bayes.labelled("mnist5k", 100, "random", seed=2)[0][1]
    assert set(coins.tolist()) == {0, 1}
    assert abs(float(coins.double().mean()) - 0.5) < 0.07  # 4.4 standard deviations
    assert len(coins) == 1000


def test_images_are_those_of_the_data_that_is_named():
    X, y = pac_bayes.labelled("digits", 3, "true", seed=0)[0]
    assert X.flatten(1).shape == (30, 64)
    assert set(y.tolist()) == {0, 1}


@pytest.mark.slow
def test_a_trial_has_the_bound_of_the_formula_from_its_parts():
    """By a search over all p: the largest with a kl(q || p) that KL and the union bound allow."""
    numbers = pac_bayes.trial({"width": 4, "per_class": 20, "labels": "true"}, seed=0)
    m, draws = numbers["samples"], 1000
    assert (m, numbers["converged"]) == (200, True)

    def inverse(q, c):
        grid = np.linspace(q, 1 - 1e-9, 2_000_001)
        kl = q * np.log(q / grid) + (1 - q) * np.log((1 - q) / (1 - grid))
        return grid[kl <= c][-1]

    q = inverse(numbers["posterior_train_error"], np.log(2 / 0.01) / draws)
    j = 100 * np.log(0.1 / numbers["prior_variance"])
    cost = numbers["kl"] + 2 * np.log(j) + np.log(np.pi**2 * m / (6 * 0.025))
    cost /= m - 1
    assert numbers["pac_bayes_optimised"] == pytest.approx(inverse(q, cost), abs=1e-5)
    assert numbers["relaxed"] == pytest.approx(q + np.sqrt(cost / 2), abs=1e-5)


def world(true=0.4, random=1.2, kl=(500, 2000)):
    """Runs of the study's grid with such bounds."""
    chance = np.random.default_rng(1)
    rows = []
    for run in STUDY.grid:
        own = dict(run.settings)
        is_random = own["labels"] == "random"
        bound = (random if is_random else true + 5 / own["per_class"]) + 0.01 * chance.normal()
        rows.append(
            own
            | {
                "seed": run.seed,
                "relaxed": bound,
                "pac_bayes_optimised": min(bound, 1.0),
                "pac_bayes": 1.5,
                "kl": kl[is_random] * (1 + 0.01 * chance.normal()),
                "posterior_train_error": 0.05,
                "vc_dimension": 1e6,
                "samples": 10 * own["per_class"],
                "test_error": 0.02,
            }
        )
    return Runs(tuple(rows), (), Path("nowhere"))


def verdicts(**numbers):
    return [claim.test(world(**numbers)).verdict for claim in STUDY.claims]


def test_claims_follow_the_world():
    assert set(verdicts()) == {"holds"}
    assert verdicts(true=1.5)[0] == "does not hold"
    assert verdicts(random=0.45)[1] == "does not hold"
    assert verdicts(random=0.2)[2] == "does not hold"
    assert verdicts(kl=(500, 100))[3] == "does not hold"
