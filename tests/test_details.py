"""What runs record of the papers' equations, against the equations written out."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import lowland as ll
from lowland.dual import pair
from lowland.experiment import Configuration, details
from lowland.experiment.recording import recorded
from lowland.experiment.subject import Subject
from lowland.studies.evidence import Runs
from lowland.sweep import Grid, run
from lowland.training import Training, TrainingSettings, train
from lowland.training.settings import Epoch

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
    numbers = details.activity(subject, split_of(subject))
    assert numbers["active"] == pytest.approx(float((every > 0).double().mean()))
    apart = (after - before).square().sum(1) / before.square().sum(1)
    assert numbers["relative_shift"] == pytest.approx(float(apart.mean()), rel=1e-5)
    assert numbers["eq6_residual"] < 1e-5
    assert not subject.model.training or all(m.training for m in subject.model.modules())


def test_no_numbers_for_what_is_not_dense():
    subject = Subject.of(Configuration(network="lenet", per_class=3, test_per_class=2))
    split = ll.duality(subject.problem(), "3", n_sharp=4, dual="activity", directions=5)
    assert details.activity(subject, split) == {}


def test_the_leading_order_by_hand(trained):
    """Eq. 13 is the paired gap, and Eq. 17 the gradients at the training samples times shifts."""
    configuration, subject, _ = trained
    parts, numbers = details.leading_order(subject.problem(), "3", configuration)
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
    configuration, subject, _ = trained
    numbers = details.reverse_pairs(subject.problem(), "3", configuration)
    problem = subject.problem()
    pairs = pair(problem, each="train")
    assert len(pairs) == 60
    losses = problem.losses("test")[pairs.test] - problem.losses("train")[pairs.train]
    assert numbers["paired_gap"] == pytest.approx(float(losses.double().mean()), rel=1e-5)
    assert numbers["eq9"] == pytest.approx(numbers["paired_gap"], rel=1e-6)


def test_rescaled_networks_keep_the_total_and_move_what_is_inside(trained):
    configuration, subject, _ = trained
    numbers = details.rescaled_gap(subject, "3", configuration)
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
    _, subject, _ = trained
    numbers = details.algorithm_1(subject)
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


def test_what_decay_left_behind():
    epochs = [Epoch(0.5, 0.1, 4.0), Epoch(0.3, 0.1, 2.0), Epoch(0.01, 0.0, 5.0)]
    its = TrainingSettings(decay=0.1, decay_epochs=2)
    numbers = details.after_decay(Training(its, epochs, 0.0))
    assert numbers == {"loss_after_decay": 0.3, "norm_growth": 2.5}
    never = TrainingSettings(decay_epochs=None)
    assert details.after_decay(Training(never, epochs, 0.0))["norm_growth"] == 1.0
    assert details.after_decay(Training(TrainingSettings(), epochs, 0.0))["norm_growth"] == 1.0


def test_a_sweep_keeps_the_details_of_its_runs(tmp_path):
    names = ("leading_order", "reverse_pairs", "rescaled_gap")
    grid = Grid(**SMALL, details=names)
    run(grid, tmp_path, executor="serial")
    runs = Runs.of(tmp_path, grid)
    for column in ("eq9", "eq13", "eq17", "active", "reverse.eq11", "after.units.sharp"):
        assert np.isfinite(runs.column(column)).all()
    assert runs.array("duality/gradient_square").shape == (1, 72)
    assert runs.column("total_w") == pytest.approx(runs.column("total_w_data"), rel=1e-4)
    assert runs.column("loss_defect") < 1e-3


def test_what_is_not_asked_for_is_not_computed(trained):
    numbers = recorded(*trained).numbers
    assert not {"eq13", "reverse", "after", "algorithm_1"} & numbers.keys()
    assert {"active", "relative_shift", "norm_growth", "eq9", "total_w"} <= numbers.keys()
