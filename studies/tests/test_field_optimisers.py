"""Optimisers at equal compute: gradients are counted, and claims follow made-up runs."""

import dataclasses

import numpy as np
import pytest

import lowland as ll
from lowland.training import mlp, train
from lowland_studies.evidence import Runs
from lowland_studies.field.optimisers.study import STUDY
from lowland_studies.field.optimisers.trial import METHODS, PLACE, settings_of


@pytest.mark.parametrize("name", METHODS)
def test_every_method_takes_as_many_gradients(name):
    """Passes of batches in training, counted in four epochs and scaled to all."""
    batch, epochs = PLACE["batch_size"], PLACE["epochs"]
    settings, model, passes = settings_of(name, 0, batch, epochs), mlp((64, 30, 10), seed=0), []
    model.register_forward_hook(
        lambda module, inputs, output: passes.append(len(output)) if module.training else None
    )
    data = ll.data.load("digits", per_class=PLACE["per_class"], seed=0).train
    train(model, data, dataclasses.replace(settings, max_epochs=4))
    assert set(passes) == {batch}
    assert len(passes) / 4 * settings.max_epochs == epochs * len(data[0]) / batch


def test_every_method_is_in_the_study():
    assert {run.to_dict()["method"] for run in STUDY.grid} == set(METHODS)


def world(tmp_path, sign):
    """Runs in which every method is better than SGD by all numbers, or worse."""
    random, rows = np.random.default_rng(0), []
    for trial in STUDY.grid:
        method = trial.to_dict()["method"]
        base = 2 - sign * list(METHODS).index(method) / 10
        names = ("largest_eigenvalue", "sam_sharpness", "adaptive_worst_case")
        row = {name: base + 0.01 * random.normal() for name in (*names, "expected_sharpness")}
        other = base if sign > 0 else 4 - base
        row |= dict.fromkeys(("test_error", "calibration_error", "train_loss"), other)
        if sign < 0 and method in ("sam", "average"):
            row["test_error"] = 9.0
        rows.append({"method": method, "seed": trial.seed, **row})
    return Runs(tuple(rows), (), tmp_path)


@pytest.mark.parametrize(("sign", "verdict"), [(1, "holds"), (-1, "does not hold")])
def test_claims_follow_the_world(tmp_path, sign, verdict):
    runs = world(tmp_path, sign)
    verdicts = {c.text: c.test(runs).verdict for c in STUDY.claims if c.kind == "claim"}
    if sign < 0:  # two outliers leave the correlation with the test error open
        verdicts.pop("Over all optimisers, flatter networks have a smaller test error.")
    assert verdicts == dict.fromkeys(verdicts, verdict)
