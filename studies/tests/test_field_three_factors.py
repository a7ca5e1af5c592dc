"""Three factors: worlds in which the ratio decides, and in which the learning rate does."""

import numpy as np
import pytest

from lowland_studies.evidence import Runs
from lowland_studies.field.three_factors import STUDY


def world(tmp_path, of_rate, of_batch):
    """Runs whose widths and errors go with powers of the learning rate and the batch size."""
    random = np.random.default_rng(1)
    rows = []
    for run in STUDY.grid:
        size = run.learning_rate**of_rate * run.batch_size**of_batch
        noise = np.exp(0.02 * random.normal(size=3))
        names = ("largest_eigenvalue", "frobenius_norm", "test_error")
        row = dict(zip(names, size * noise, strict=True))
        settings = {n: getattr(run, n) for n in ("seed", "learning_rate", "batch_size")}
        rows.append(
            row | settings | {"learning_rate_over_batch": run.learning_rate / run.batch_size}
        )
    return Runs(tuple(rows), (), tmp_path)


@pytest.mark.parametrize(("powers", "falls_short"), [((-0.5, 0.5), ()), ((-1, 0), ("batch", "B"))])
def test_only_where_the_ratio_decides_all_claims_hold(tmp_path, powers, falls_short):
    runs = world(tmp_path, *powers)
    verdicts = {claim.text: claim.test(runs).verdict for claim in STUDY.claims}
    if not falls_short:
        assert set(verdicts.values()) == {"holds"}
        return
    assert verdicts["The largest eigenvalue falls with the learning rate, at B = 20."] == "holds"
    equal = [v for text, v in verdicts.items() if text.startswith("At equal")]
    assert equal == ["does not hold"] * 3
    closer = "The largest eigenvalue follows alpha / B more closely than alpha."
    assert verdicts[closer] == "does not hold"


def test_three_pairs_have_the_same_ratio():
    pairs = {(r.learning_rate, r.batch_size) for r in STUDY.grid}
    assert sum(abs(rate / batch - 0.01) < 1e-9 for rate, batch in pairs) == 3
