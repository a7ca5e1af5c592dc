"""What runs record of the papers' equations, against the equations written out."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import lowland as ll
from lowland.dual import pair
from lowland.experiment import Configuration
from lowland.experiment.recording import recorded
from lowland.experiment.subject import Subject
from lowland.sweep import Grid, run
from lowland.training import Epoch, Training, TrainingSettings, train
from lowland_studies import details
from lowland_studies.evidence import Runs
from lowland_studies.study import recording

SMALL = {
    "data": "digits",
    "per_class": 6,
    "test_per_class": 4,
    "network": "64-9-8-10",
    "n_sharp": 4,
    "stop_loss": 0.05,
}


@pytest.fixture(scope="module")
def trained():
    """A small network in double precision, with its configuration and its training."""
    configuration = Configuration(**SMALL)
    subject = Subject.of(configuration)
    training = train(subject.model, subject.train, subject.settings)
    assert training.converged
    return configuration, subject, training


def detailed(made, *names, **settings):
    """The record of a trained network, with these details."""
    configuration, subject, training = made
    return recorded(
        replace(configuration, details=recording(*names), **settings), subject, training
    )


def split_of(subject):
    return ll.duality(subject.problem(), "3", n_sharp=4, dual="activity")


def pairs_by_hand(subject):
    """What the second layer sees of each pair: of the training sample, and of the test sample."""
    (X, y), (X_test, y_test) = subject.train, subject.test
    partners = [
        int(torch.where(y == label, (X - x).flatten(1).norm(dim=1), torch.inf).argmin())
        for x, label in zip(X_test, y_test, strict=True)
    ]
    with torch.no_grad():
        hidden = [subject.model[:3](inputs).double() for inputs in (X, X_test)]
    return hidden[0], hidden[0][partners], hidden[1], X[partners]


def test_active_units_and_distances_by_hand(trained):
    _, subject, _ = trained
    every, before, after, _ = pairs_by_hand(subject)
    numbers = detailed(trained, "activity").numbers
    assert numbers["active"] == pytest.approx(float((every > 0).double().mean()))
    apart = (after - before).square().sum(1) / before.square().sum(1)
    assert numbers["relative_shift"] == pytest.approx(float(apart.mean()), rel=1e-5)
    assert numbers["eq6_residual"] < 1e-5
    assert not subject.model.training or all(m.training for m in subject.model.modules())


def test_no_numbers_for_what_is_not_dense():
    """Nor for a record without a decomposition."""
    configuration = Configuration(
        network="lenet", per_class=3, test_per_class=2, max_epochs=1, layers=("3",), n_sharp=4
    )
    subject = Subject.of(configuration)
    made = configuration, subject, train(subject.model, subject.train, subject.settings)
    assert not {"active", "relative_shift"} & detailed(made, "activity").numbers.keys()
    record = detailed(made)
    results = replace(record.analysis.results, duality=None)
    without = replace(record, analysis=replace(record.analysis, results=results))
    assert details.activity(without) is without


def test_the_leading_order_by_hand(trained):
    """Eq. 13 is the paired gap, and Eq. 17 the gradients at the training samples times shifts."""
    _, subject, _ = trained
    record = detailed(trained, "leading_order")
    parts, numbers = record.analysis.results.duality.approximations, record.numbers
    assert numbers["eq13"] == pytest.approx(split_of(subject).paired_gap, rel=1e-4)
    _, before, after, inputs = pairs_by_hand(subject)
    W = subject.model[3].weight
    linear = []
    for i, (x, label) in enumerate(zip(inputs, subject.test[1], strict=True)):
        loss = F.cross_entropy(subject.model(x[None]), label[None])
        (gradient,) = torch.autograd.grad(loss, W)
        dx, h = after[i] - before[i], before[i]
        dW = torch.outer(W.detach().double() @ dx, h) / h.square().sum()
        linear.append(float((gradient.double() * dW).sum()))
    assert numbers["eq17"] == pytest.approx(np.mean(linear), rel=1e-4)
    assert parts.linear.sum() == pytest.approx(numbers["eq17"])


def test_reverse_pairs_are_those_of_each_training_sample(trained):
    _, subject, _ = trained
    numbers = detailed(trained, "reverse_pairs").numbers["reverse"]
    problem = subject.problem()
    pairs = pair(problem, each="train")
    assert len(pairs) == 60
    losses = problem.losses("test")[pairs.test] - problem.losses("train")[pairs.train]
    assert numbers["paired_gap"] == pytest.approx(float(losses.double().mean()), rel=1e-5)
    assert numbers["eq9"] == pytest.approx(numbers["paired_gap"], rel=1e-6)


def test_rescaled_networks_keep_the_total_and_move_what_is_inside(trained):
    numbers = detailed(trained, "rescaled_gap").numbers["after"]
    before, layers, units = (numbers[by] for by in ("as_trained", "layers", "units"))
    for after in (layers, units):
        assert after["eq9"] == pytest.approx(before["eq9"], rel=1e-9)
    p = layers["norm"] / before["norm"]
    assert abs(np.log10(p)) == pytest.approx(2, abs=1e-6)  # it has a rescaled layer on either side
    assert layers["eq11"] == pytest.approx(before["eq11"], rel=1e-6)
    assert layers["sharp"] == pytest.approx(before["sharp"], rel=1e-6)
    assert layers["total_g"] * p**2 == pytest.approx(before["total_g"], rel=1e-6)
    assert layers["total_w_data"] / p**2 == pytest.approx(before["total_w_data"], rel=1e-6)
    assert layers["trace"] * p**2 == pytest.approx(before["trace"], rel=1e-6)
    assert units["sharp"] != pytest.approx(before["sharp"], rel=1e-2)


@pytest.mark.slow
def test_algorithm_1_from_the_exact_diagonal_and_from_draws(trained):
    numbers = detailed(trained, "algorithm_1").numbers["algorithm_1"]
    assert numbers["descended"] == pytest.approx(numbers["exact"], rel=0.01)
    assert abs(numbers["deviation"]) < 4
    assert numbers["correlation"] > 0.3
    # Noise that is clipped at zero does not average out: from draws it is larger.
    assert numbers["sharpness"] > numbers["exact"]


def test_draws_of_eq_61_average_to_the_diagonal():
    """On a quadratic loss, where differences are exact, within their own standard error."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 3, bias=False)).double()
    X, y = torch.randn(30, 4).double(), torch.randn(30, 3).double()
    problem = ll.Problem(model, "mse", train=(X, y))
    draws = details._eq61(problem, {"0.weight": model[0].weight.detach()})
    exact = ll.diagonal(problem)["0.weight"].flatten()
    deviations = (draws.mean(0) - exact) / (draws.std(0) / len(draws) ** 0.5)
    assert deviations.abs().max() < 4


def test_what_decay_left_behind(trained):
    configuration, subject, _ = trained
    epochs = [Epoch(0.5, 0.1, 4.0), Epoch(0.3, 0.1, 2.0), Epoch(0.01, 0.0, 5.0)]

    def numbers(settings):
        record = recorded(configuration, subject, Training(settings, epochs, 0.0))
        return details.after_decay(record).numbers

    after = numbers(TrainingSettings(decay=0.1, decay_epochs=2))
    assert (after["loss_after_decay"], after["norm_growth"]) == (0.3, 2.5)
    assert numbers(TrainingSettings(decay_epochs=None))["norm_growth"] == 1.0
    assert numbers(TrainingSettings())["norm_growth"] == 1.0


def test_a_sweep_keeps_the_details_of_its_runs(tmp_path):
    names = ("activity", "leading_order", "reverse_pairs", "rescaled_gap")
    grid = Grid(**SMALL, details=recording(*names))
    run(grid, tmp_path, executor="serial")
    runs = Runs.of(tmp_path, grid)
    for column in ("eq9", "eq13", "eq17", "active", "reverse.eq11", "after.units.sharp"):
        assert np.isfinite(runs.column(column)).all()
    assert runs.array("duality/gradient_square").shape == (1, 72)
    assert runs.column("total_w") == pytest.approx(runs.column("total_w_data"), rel=1e-4)
    assert runs.column("loss_defect") < 1e-3


def test_what_is_not_asked_for_is_not_computed(trained):
    numbers = recorded(*trained).numbers
    assert not {"eq13", "reverse", "after", "algorithm_1", "active", "norm_growth"} & numbers.keys()
    assert {"eq9", "total_w"} <= numbers.keys()
