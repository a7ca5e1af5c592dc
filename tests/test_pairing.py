"""Pairs against brute force: both ways, in input and in feature space, with labels and without."""

import pytest
import torch
from torch import nn

import lowland as ll
from cases import CASES
from lowland.errors import InputError
from lowland.problem import Problem
from test_duality import make_problem


def whole(problem: Problem, split: str) -> torch.Tensor:
    return problem.data(split).take(slice(None)).inputs


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr("lowland.dual.pairing._DISTANCES", 50)


@pytest.mark.parametrize("each", ["test", "train"])
@pytest.mark.parametrize("space", [None, "4"])
def test_pairs_are_the_nearest_of_the_same_label_by_brute_force(each, space):
    problem = make_problem()
    X, Xt = whole(problem, "train"), whole(problem, "test")
    if space is not None:
        X, Xt = (problem.model[:4](t).detach() for t in (X, Xt))
    distance = torch.cdist(Xt, X, compute_mode="donot_use_mm_for_euclid_dist")
    distance[problem.test.targets[:, None] != problem.train.targets[None]] = torch.inf
    found = ll.pair(problem, each=each, space=space)
    if each == "test":
        assert torch.equal(found.test, torch.arange(30))
        assert torch.equal(found.train, distance.argmin(1))
    else:
        assert torch.equal(found.train, torch.arange(60))
        assert torch.equal(found.test, distance.argmin(0))
    assert found.unpaired == 0


def test_a_regression_needs_no_label():
    problem = CASES["mlp-tanh"].problem(n=20, loss="mse")
    found = ll.pair(problem)
    distance = torch.cdist(whole(problem, "test"), whole(problem, "train"))
    assert torch.equal(found.train, distance.argmin(1))
    assert "same label" not in found.rule
    with pytest.raises(InputError, match="same_label=False"):
        ll.pair(problem, same_label=True)


def test_labels_can_be_ignored():
    problem = make_problem()
    distance = torch.cdist(whole(problem, "test"), whole(problem, "train"))
    assert torch.equal(ll.pair(problem, same_label=False).train, distance.argmin(1))


def test_a_class_without_a_partner_is_counted():
    problem = make_problem()
    X, y = whole(problem, "train"), problem.train.targets
    test = whole(problem, "test"), problem.test.targets
    some = Problem(problem.model, train=(X[y < 2], y[y < 2]), test=test)
    found = ll.pair(some)
    assert found.unpaired == int((test[1] == 2).sum())
    assert torch.equal(found.test, (test[1] < 2).nonzero()[:, 0])
    with pytest.raises(InputError, match="none in common"):
        ll.pair(Problem(problem.model, train=(X[y < 1], y[y < 1]), test=(X[y > 1], y[y > 1])))


def test_tokens_are_no_points_in_space_but_what_a_layer_sees_is():
    problem = CASES["transformer"].problem(n=12)
    with pytest.raises(InputError, match=r"inputs are torch.int64 .*space="):
        ll.pair(problem)
    found = ll.pair(problem, space="head")
    assert "layer 'head'" in found.rule
    with pytest.raises(InputError, match="there is no layer 'nowhere'"):
        ll.pair(problem, space="nowhere")
    with pytest.raises(InputError, match="each must be"):
        ll.pair(problem, each="valid")


def test_inputs_of_any_shape_are_compared_as_vectors():
    model = nn.Sequential(nn.Flatten(), nn.Linear(8, 3))
    X, y = torch.randn(9, 2, 4), torch.arange(9) % 3
    problem = Problem(model, train=(X, y), test=(X + 1e-4, y))
    assert torch.equal(ll.pair(problem).train, torch.arange(9))


def test_images_of_bytes_are_points_in_space():
    """Differences of bytes wrap around: 0 is nearer to 3 than to 255."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(2, 2))
    X = torch.tensor([[[255, 0]], [[3, 0]], [[128, 7]]], dtype=torch.uint8)
    Z = torch.tensor([[[0, 0]], [[250, 2]], [[100, 100]]], dtype=torch.uint8)
    y = torch.zeros(3, dtype=torch.long)

    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, x):
            return self.model(x.float() / 255)

    problem = Problem(Scaled(), train=(X, y), test=(Z, y))
    found = ll.pair(problem)
    assert found.train.tolist() == [1, 0, 2]
    as_floats = Problem(model, train=(X.float(), y), test=(Z.float(), y))
    assert torch.equal(found.train, ll.pair(as_floats).train)


def test_data_far_from_the_origin_is_paired_as_near_it():
    """Squared distances once cancelled: at 1e7 four of five partners were wrong."""
    g = torch.Generator().manual_seed(0)
    X, Z = (torch.rand(n, 5, generator=g, dtype=torch.float64) for n in (80, 40))
    y, z = torch.arange(80) % 2, torch.arange(40) % 2
    model = nn.Linear(5, 2).double()
    near, far = (
        ll.pair(Problem(model, train=(X + offset, y), test=(Z + offset, z))).train
        for offset in (0.0, 1e7)
    )
    assert torch.equal(near, far)


def test_labels_are_known_by_the_targets_whatever_the_loss():
    def smoothed(outputs, targets):
        return nn.functional.cross_entropy(outputs, targets, label_smoothing=0.1, reduction="none")

    g = torch.Generator().manual_seed(0)
    X, y = torch.randn(60, 4, generator=g), torch.arange(60) % 3
    problem = Problem(nn.Linear(4, 3), smoothed, (X[:40], y[:40]), (X[40:], y[40:]))
    found = ll.pair(problem)
    assert "of the same label" in found.rule
    assert torch.equal(y[:40][found.train], y[40:][found.test])
