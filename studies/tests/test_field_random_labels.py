"""The study of random labels: its claims in made-up worlds."""

from pathlib import Path

import numpy as np
import pytest

from lowland.measures import registered
from lowland_studies.evidence import Runs
from lowland_studies.field.random_labels import STUDY


def world(*, fits=True, slow=2.0, chance=0.9, worse=0.0, sharper=1.0):
    """Runs of the study's grid with the numbers that claims ask for."""
    random = np.random.default_rng(0)
    higher = {name: m.sharper == "higher" for name, m in registered().items()}
    rows = []
    for run in STUDY.grid:
        noise, regularised = run.label_noise, bool(run.decay or run.dropout)
        change = sharper * (1 + 0.01 * random.normal()) * noise
        row = run.to_dict() | {
            "key": str(len(rows)),
            "train_error": 0.0 if fits or noise < 1 else 0.3,
            "test_error": 0.1 + (chance - 0.1) * noise + worse * regularised,
            "epochs": 100 * (1 + (slow - 1) * noise) + random.integers(3),
        }
        row |= {name: 2 + (change if higher[name] else -change) for name in run.measures}
        rows.append(row)
    return Runs(tuple(rows), (), Path("nowhere"))


def verdicts(kind, **numbers):
    return [c.test(world(**numbers)).verdict for c in STUDY.claims if c.kind == kind]


def test_all_claims_hold_in_a_world_as_the_paper_says():
    assert set(verdicts("claim")) == {"holds"}
    assert set(verdicts("ours")) == {"holds"}
    assert set(verdicts("ours", sharper=-1.0)) == {"does not hold"}


@pytest.mark.parametrize(
    ("numbers", "failing"),
    [({"fits": False}, 3), ({"slow": 9.0}, 1), ({"chance": 0.05}, 2), ({"worse": 0.2}, 1)],
)
def test_claims_fail_where_the_world_is_another(numbers, failing):
    assert verdicts("claim", **numbers).count("does not hold") == failing


def test_networks_at_their_limit_of_epochs_count_against_the_fit():
    bad = world(fits=False)
    left_out = Runs(
        tuple(r for r in bad.rows if not r["train_error"]),
        tuple(r for r in bad.rows if r["train_error"]),
        bad.folder,
    )
    assert STUDY.claims[0].test(left_out).verdict == "does not hold"
