"""Large batches: what claims say of worlds in which the paper is right, and in which it is not."""

import numpy as np
import pytest

from lowland_studies.evidence import Runs
from lowland_studies.field.large_batch import STUDY

COLUMNS = ("keskar_sharpness", "keskar_subspace", "largest_eigenvalue", "effective_dimension")


def world(tmp_path, power):
    """Runs whose sharpness, gap and test error go with a power of the batch size."""
    random = np.random.default_rng(0)
    rows = []
    for seed in range(8):
        for batch in (5, 10, 25, 50, 100):
            size = (batch / 25) ** power
            noise = np.exp(0.05 * random.normal(size=6))
            row = dict(zip((*COLUMNS, "gap", "test_error"), size * noise, strict=True))
            known = {"seed": seed, "batch_size": batch, "train_error": 0.0, "train_loss": 1e-3}
            rows.append(row | known)
    return Runs(tuple(rows), (), tmp_path)


@pytest.mark.parametrize(("power", "verdict"), [(0.5, "holds"), (-0.5, "does not hold")])
def test_claims_about_the_batch_size_follow_the_world(tmp_path, power, verdict):
    runs = world(tmp_path, power)
    about = [c for c in STUDY.claims if "batch size" in c.text]
    assert len(about) == 7
    assert {claim.test(runs).verdict for claim in about} == {verdict}


def test_without_an_effect_nothing_holds(tmp_path):
    runs = world(tmp_path, 0.0)
    counted = [claim.test(runs).verdict for claim in STUDY.claims if claim.kind == "claim"]
    assert "holds" not in counted


def test_batches_are_up_to_a_tenth_of_the_data():
    for reading in STUDY.readings:
        for grid in (reading.grid, reading.quick):
            assert max(run.batch_size for run in grid) == next(iter(grid)).per_class
