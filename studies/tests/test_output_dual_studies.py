"""Studies of the output-level dual: their grids, their networks, and both duals side by side."""

import io

import numpy as np
import pytest
import torch

import lowland as ll
from lowland.sweep import Configuration, key
from lowland.sweep.plan import document
from lowland_studies.evidence import Runs
from lowland_studies.output_dual import STUDIES
from lowland_studies.residual import half_resnet
from lowland_studies.transformer import cifar_rows, mnist_rows

BY_NAME = {study.name.partition(":")[2]: study for study in STUDIES}
OTHERS = ("resnet", "transformer", "transformer-cifar")


@pytest.mark.parametrize("study", STUDIES, ids=BY_NAME)
def test_grids(study):
    assert {run.seed for run in study.grid} == set(range(5))
    assert len(study.quick) <= 32
    texts = [claim.text for claim in study.claims]
    assert len(set(texts)) == len(texts)
    trained = {repr(run.training()) for run in study.grid}
    assert len(trained) == (25 if "fig" in study.name else 45)  # both duals are of one network
    assert all(run.penalty == "squared" for run in study.grid if not run.decay)
    assert (
        "Scaled down" in " ".join(study.differences) or "the paper has ten" in study.differences[0]
    )


@pytest.mark.parametrize("name", OTHERS)
def test_every_setting_has_its_ends_and_a_middle(name):
    grid = BY_NAME[name].grid
    for setting in ("learning_rate", "batch_size", "decay", "init_scale"):
        assert len({getattr(run, setting) for run in grid}) == 3
    assert {run.dual for run in grid} == {"output"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("build", "shape", "study"),
    [
        (half_resnet, (3, 32, 32), "resnet"),
        (mnist_rows, (1, 28, 28), "transformer"),
        (cifar_rows, (3, 32, 32), "transformer-cifar"),
    ],
)
def test_data_goes_around_the_layers(build, shape, study):
    torch.manual_seed(0)
    model = build().double().eval()
    X, y = torch.randn(8, *shape, dtype=torch.float64), torch.arange(4)
    problem = ll.Problem(model, train=(X[:4], y), test=(X[4:], y))
    assert model(X).shape == (8, 10)
    (layers,) = {run.layers for run in BY_NAME[study].grid}
    every = ll.duality(problem, list(layers), basis="ggn")
    for split in every.values():
        assert split.setting.dual == "output"
        assert split.fit.loss_defect < 1e-6


def fill(store, settings, **results):
    run = Configuration(**settings)
    arrays = io.BytesIO()
    np.savez(arrays)
    doc = document(run, None, results={"converged": True, **results})
    store.write(key(run), doc, {"arrays.npz": arrays.getvalue()})
    return run


def test_both_duals_are_compared_network_by_network(store):
    """In a world where the sharp parts agree, the flat ones do not, and T_w is smaller by half."""
    rng = np.random.default_rng(0)
    grid = []
    for rate in (0.005, 0.02, 0.1):
        for seed in range(5):
            sharp, flat, size = rng.uniform(1, 2, 3)
            settings = {"learning_rate": rate, "seed": seed}
            own = {"sharp": sharp, "flat": flat, "total_w_data": size}
            grid.append(fill(store, {**settings, "dual": "activity"}, **own))
            own = {"sharp": 2 * sharp, "flat": -flat, "total_w_data": size / 2}
            grid.append(fill(store, {**settings, "dual": "output"}, **own))
    alone = {"learning_rate": 0.1, "seed": 7, "dual": "output"}  # of which there is no other
    grid.append(fill(store, alone, sharp=9.0, flat=9.0, total_w_data=99.0))
    runs = Runs.of(store.directory, grid)
    *_, sharp, flat, smaller = (claim.test for claim in BY_NAME["fig3"].claims)
    findings = [test(runs) for test in (sharp, flat, smaller)]
    assert [finding.verdict for finding in findings] == ["holds", "does not hold", "holds"]
    assert findings[0].effect == pytest.approx(1)
    assert findings[2].effect == pytest.approx(0.5)
    assert "15 runs of 5 seeds" in findings[0].note
