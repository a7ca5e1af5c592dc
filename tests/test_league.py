"""The league table, from a small sweep that is really run."""

import json

import numpy as np
import pytest
from scipy import stats

from lowland.errors import InputError
from lowland.measures import registered
from lowland.studies.evidence import Runs
from lowland.studies.league import ENDORSED, SETTINGS, document, grid, page, table
from lowland.sweep import Grid, run

MEASURES = ["weight_norm", "trace", "path_norm", "near_zero_share"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    chosen = Grid(
        data="digits",
        per_class=10,
        network=["64-8-10", "64-16-10"],
        learning_rate=[0.05, 0.2],
        batch_size=[5, 20],
        stop_loss=0.1,
        max_epochs=200,
        measures=MEASURES,
    )
    folder = tmp_path_factory.mktemp("league")
    run(chosen, folder, executor="serial")
    return Runs.of(folder, chosen)


def test_every_measure_is_ranked(runs):
    entries = {entry.name: entry for entry in table(runs)}
    recorded = {name for name in registered() if name in runs.rows[0]}
    assert set(MEASURES) <= set(entries) <= recorded
    trace = entries["trace"]
    tau = stats.kendalltau(runs.column("trace"), runs.column("gap"))[0]
    assert trace.ranks["gap"].kendall.value == pytest.approx(tau)
    assert trace.fooled
    assert not entries["path_norm"].fooled
    # a lower share is the sharper one, so that its negative is ranked
    share = entries["near_zero_share"]
    assert share.sign == -1
    finite = np.isfinite(runs.column("near_zero_share"))
    assert share.ranks["gap"].models == finite.sum()
    coefficients = [entry.ranks["gap"].granulated.value for entry in entries.values()]
    finite = [c for c in coefficients if np.isfinite(c)]
    assert finite == sorted(finite, reverse=True)


def test_the_table_can_be_read(runs):
    entries = table(runs)
    text = page(entries, runs)
    assert f"{len(runs)} networks on digits, all trained to a loss of 0.1" in text
    assert "in network, learning_rate, batch_size (" in text
    assert "| Hessian trace |" in text
    assert "Path norm: the larger it is, the larger the gap:" in text
    numbers = json.loads(json.dumps(document(entries, runs), allow_nan=False))
    assert len(numbers["models"]) == len(runs)
    assert numbers["values"]["trace"] == runs.column("trace").tolist()


def test_nothing_is_ranked_without_networks(runs):
    with pytest.raises(InputError, match="0 networks"):
        table(runs.where(seed=7))


def test_the_grid_is_large_enough_and_names_settings_that_are():
    whole = grid(cifar=False)
    assert len(whole) >= 300
    assert set(SETTINGS) - {"seed"} <= set(whole.varied)
    assert set(ENDORSED) <= set(registered())
