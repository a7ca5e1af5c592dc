"""Runs that are a function's numbers: called, kept and told apart as other runs are."""

import numpy as np
import pytest

from lowland.errors import InputError
from lowland.results import ARRAYS
from lowland.sweep import Grid, Store, Trial, key, run, trials
from lowland.sweep.source import digest
from lowland.sweep.trial import run_of

MODULE = """
import numpy as np

def trial(settings, seed):
    if settings["width"] == 3 and seed == 1:
        raise ValueError("an odd one")
    curve = np.arange(settings["width"]) + seed
    return {"total": float(curve.sum()), "count": np.int64(len(curve)), "curve": curve}

def listed(settings, seed):
    return [1, 2]

def titled(settings, seed):
    return {"length": 1.0}
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A module of the user's, in the current directory."""
    monkeypatch.chdir(tmp_path)
    name = f"own_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(MODULE)
    return name


@pytest.mark.parametrize("executor", ["serial", "processes"])
def test_numbers_and_arrays_are_kept_and_failures_told(module, tmp_path, executor):
    grid = trials(f"{module}:trial", width=[2, 3], seed=range(2))
    summary = run(grid, tmp_path / "store", executor=executor, workers=1)
    assert summary.fresh == 4
    assert [reason for reason in summary.failed.values() if "an odd one" in reason]
    assert "width" in grid.varied
    store = Store(tmp_path / "store")
    found = {}
    for row in store.rows():
        if row["status"] == "done":
            with np.load(store.path(row["key"]) / ARRAYS) as arrays:
                found[row["width"], row["seed"]] = (row["total"], arrays["curve"].tolist())
    assert found == {(2, 0): (1.0, [0, 1]), (2, 1): (3.0, [1, 2]), (3, 0): (3.0, [0, 1, 2])}
    assert run(grid, tmp_path / "store", executor="serial").fresh == 0


def test_a_changed_function_is_another_run(module, tmp_path, monkeypatch):
    grid = trials(f"{module}:trial", width=2)
    before = key(next(iter(grid)))
    assert before != key(Trial(f"{module}:trial", (("width", 3),)))
    (tmp_path / f"{module}.py").write_text(MODULE + "changed = True\n")
    digest.cache_clear()
    assert key(next(iter(grid))) != before


def test_trials_and_configurations_share_a_grid_and_are_told_apart(module):
    grid = trials(f"{module}:trial", width=[2, 3]) + Grid(learning_rate=[0.1, 0.2])
    assert len(grid) == 4
    assert [run_of(single.to_dict()) for single in grid] == list(grid)
    assert "width" in grid.varied
    assert "learning_rate" in grid.varied


def test_what_is_no_trial_is_refused(module, tmp_path):
    with pytest.raises(InputError, match="must be a number"):
        trials("m:f", width=[{}])
    with pytest.raises(InputError, match="rename it"):
        trials("m:f", status=1)
    with pytest.raises(InputError, match="there is no module"):
        run(trials("not_there_at_all:f"), tmp_path / "store")
    summary = run(trials(f"{module}:listed"), tmp_path / "store", executor="serial")
    (reason,) = summary.failed.values()
    assert "must return a dictionary" in reason
    assert Store(tmp_path / "store").rows()[0]["status"] == "failed"


def test_settings_of_other_runs_do_not_take_the_names_of_results(module, tmp_path):
    store = tmp_path / "store"
    own, other = trials(f"{module}:trial", width=2), trials(f"{module}:titled", total=7)
    run(own + other, store, executor="serial")
    for grid, total in ((own, 1.0), (other, 7.0)):
        (row,) = Store(store).rows(among=[key(single) for single in grid])
        assert row["total"] == total
    assert "results.total" in Store(store).rows()[0]
