"""Binary perceptrons: energies and neighbours by brute force, and claims on made-up worlds."""

import itertools
from pathlib import Path

import numpy as np
import pytest

from lowland_studies.evidence import Runs
from lowland_studies.field.dense_clusters.study import STUDY
from lowland_studies.field.dense_clusters.trial import (
    annealed,
    focused,
    share_of_solutions,
    trial,
    violations,
)


def samples(count, size, seed=0):
    random = np.random.default_rng(seed)
    inputs, teacher = random.choice([-1.0, 1.0], (count, size)), random.choice([-1.0, 1.0], size)
    return inputs * np.sign(inputs @ teacher)[:, None], teacher


def test_violations_are_the_least_numbers_of_flips():
    X, teacher = samples(6, 7)
    assert violations((teacher @ X.T)[None]) == 0
    for w in np.random.default_rng(1).choice([-1.0, 1.0], (20, 7)):
        least = 0
        for x in X:
            wrong = int((w * x < 0).sum())
            least += max(0, wrong - 3)  # four of seven must agree with the sample
        assert violations((w @ X.T)[None]) == least


@pytest.mark.parametrize("distance", [1, 3])
def test_the_share_of_solutions_around_a_network_against_all_of_them(distance):
    X, teacher = samples(5, 11, seed=3)
    every = []
    for places in itertools.combinations(range(11), distance):
        w = teacher.copy()
        w[list(places)] *= -1
        every.append(bool((X @ w > 0).all()))
    share = share_of_solutions(X, teacher, distance, np.random.default_rng(0))
    error = 0 if distance == 1 else 4 * np.sqrt(np.mean(every) * (1 - np.mean(every)) / 2000)
    assert share == pytest.approx(np.mean(every), abs=error)
    assert 0 < np.mean(every) < 1


def test_searches_return_solutions_or_nothing():
    X, _ = samples(15, 51)
    random = np.random.default_rng(0)
    for w in (annealed(X, 100, 1, random), annealed(X, 100, 5, random), focused(X, 100, random)):
        assert set(np.unique(w)) == {-1.0, 1.0}
        assert (X @ w > 0).all()
    impossible = np.concatenate([X, -X])
    assert annealed(impossible, 2, 5, random) is None
    assert focused(impossible, 5, random) is None
    settings = {"weights": 51, "load": 0.3, "sweeps": 50, "method": "teacher"}
    assert trial(settings, 0)["test_error"] == 0


def world(better):
    """Replicated and focusing searches end in denser and better places, or in none such."""
    rows = []
    for seed in range(4):
        for method, density in (
            ("teacher", 0),
            ("annealing", 0),
            ("replicated", 1),
            ("focusing", 2),
        ):
            dense = max(0.0, density * better * 0.1)
            row = {"seed": seed, "method": method, "load": 0.4}
            row |= {"one_flip": dense if better > 0 else 0.3 - 0.1 * density}
            row |= {"five_flips": row["one_flip"] / 2}
            rows.append(row | {"test_error": 0.4 - 0.05 * density * better + 0.001 * seed})
    return Runs(tuple(rows), (), Path("nowhere"))


def test_claims_on_a_world_as_the_papers_have_it_and_on_its_reverse():
    assert {claim.test(world(1)).verdict for claim in STUDY.claims} == {"holds"}
    reverse = [claim.test(world(-1)).verdict for claim in STUDY.claims]
    assert reverse[:6] == ["does not hold"] * 6
