"""The study of description length: its claims in made-up worlds."""

from pathlib import Path

import numpy as np

from lowland_studies.evidence import Runs
from lowland_studies.field.description_length import STUDY


def world(sign):
    """Runs whose bits and share of near-zero eigenvalues follow the gap, or go against it."""
    random = np.random.default_rng(4)
    rows = []
    for run in STUDY.grid:
        entropy = run.optimizer == "entropy_sgd"
        gap = 1 + random.uniform() - 0.5 * entropy
        follows = 5 + sign * (gap + 0.1 * random.normal())
        rows.append(
            run.to_dict()
            | {
                "gap": gap,
                "test_error": follows,
                "description_length": follows,
                "near_zero_share": 1 - follows / 100,
                "effective_dimension": follows,
                "trace": follows,
                "largest_eigenvalue": follows,
            }
        )
    return Runs(tuple(rows), (), Path("nowhere"))


def test_claims_hold_where_measures_follow_the_gap_and_fail_where_they_go_against_it():
    assert {claim.test(world(1)).verdict for claim in STUDY.claims} == {"holds"}
    assert {claim.test(world(-1)).verdict for claim in STUDY.claims} == {"does not hold"}
