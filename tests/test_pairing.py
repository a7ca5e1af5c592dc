"""Pairs against brute force: both ways, in input and in feature space, with labels and without."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

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


def test_pairs_do_not_depend_on_how_much_is_in_memory():
    generator = torch.Generator().manual_seed(0)
    draw = lambda n: torch.randint(2, (n, 16), generator=generator).float()  # noqa: E731 - many ties
    train, test = ((draw(n), torch.arange(n) % 2) for n in (90, 41))
    problem = Problem(nn.Linear(16, 2), train=train, test=test)
    whole = ll.pair(problem)
    problem.memory = 16 * 8 * 16 * 7  # seven candidates at once
    parts = ll.pair(problem)
    assert torch.equal(whole.train, parts.train)
    assert torch.equal(whole.test, parts.test)
    streamed = Problem(
        nn.Linear(16, 2), train=TensorDataset(*train), test=TensorDataset(*test), memory=8000
    )
    assert streamed.train.held_bytes == 90 * 8  # the labels
    assert torch.equal(whole.train, ll.pair(streamed).train)


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


# --- labels that are no class numbers ------------------------------------------------------------


def binary_targets(kind: str, n: int, g: torch.Generator) -> torch.Tensor:
    columns = {"single": 1, "column": 1, "multi": 3, "signs": 1, "whole": 3}[kind]
    y = torch.randint(0, 2, (n, columns), generator=g)
    if kind == "signs":
        y = 2 * y - 1
    return y[:, 0].double() if kind == "single" else y if kind == "whole" else y.double()


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", ["single", "column", "multi", "signs", "whole"])
def test_targets_of_two_values_are_labels_whatever_their_type(kind, seed):
    g = torch.Generator().manual_seed(seed)
    X, Z = (torch.randn(n, 4, generator=g, dtype=torch.float64) for n in (60, 30))
    y, z = (binary_targets(kind, n, g) for n in (60, 30))

    def loss(outputs, targets):
        return (outputs.sum(1) - targets.view(len(targets), -1).sum(1)).square()

    problem = Problem(nn.Linear(4, 3).double(), loss, (X, y), (Z, z))
    found = ll.pair(problem)
    assert "of the same label" in found.rule
    assert torch.equal(y[found.train], z[found.test])
    distance = torch.cdist(Z, X)
    distance[(y.view(60, -1)[None] != z.view(30, -1)[:, None]).any(2)] = torch.inf
    assert torch.equal(found.train, distance.argmin(1))
    assert ll.duality(problem, "").totals.target_gap == 0
    near = ll.duality(problem, "", pairs=ll.pair(problem, same_label=False))
    assert near.totals.target_gap != 0


def test_rows_of_many_labels_without_partners_are_none_unless_asked_for():
    g = torch.Generator().manual_seed(0)
    X, Z = (torch.randn(n, 4, generator=g) for n in (40, 20))
    y, z = (torch.randint(0, 2, (n, 30), generator=g).float() for n in (40, 20))
    z[0] = y[7]
    problem = Problem(nn.Linear(4, 30), nn.BCEWithLogitsLoss(), (X, y), (Z, z))
    found = ll.pair(problem)
    assert "label" not in found.rule
    assert (len(found), found.unpaired) == (20, 0)
    asked = ll.pair(problem, same_label=True)
    assert (asked.train.tolist(), asked.test.tolist(), asked.unpaired) == ([7], [0], 19)


# --- ties ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("values", ["binary", "thirds"])
def test_the_order_of_the_data_moves_no_part(values, seed):
    """Of binary inputs most have several nearest partners; sums of thirds tie up to rounding."""
    g = torch.Generator().manual_seed(seed)
    levels = 2 if values == "binary" else 4

    def draw(n):
        X = torch.randint(0, levels, (n, 7), generator=g).double() / max(1, levels - 1)
        return X, (X[:, :3].sum(1) + 0.3 * torch.randn(n, generator=g).double() > 1.4).long()

    train, test = draw(70), draw(40)
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(7, 6), nn.Tanh(), nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 2))
    model = model.double()
    nn.utils.vector_to_parameters(
        3 * nn.utils.parameters_to_vector(model.parameters()), model.parameters()
    )
    before = ll.duality(Problem(model, train=train, test=test), "2", n_sharp=3)
    distance = torch.cdist(test[0], train[0], compute_mode="donot_use_mm_for_euclid_dist")
    distance[test[1][:, None] != train[1][None]] = torch.inf
    ties = (distance <= distance.amin(1, keepdim=True) + 1e-9).sum(1)
    assert (ties > 1).double().mean() > 0.1  # the test has teeth
    for moved in range(3):
        orders = [
            torch.randperm(n, generator=g) if moved != side else torch.arange(n)
            for side, n in enumerate((70, 40))
        ]
        other = Problem(
            model, train=[t[orders[0]] for t in train], test=[t[orders[1]] for t in test]
        )
        pairs = ll.pair(other)
        assert (
            distance[orders[1][pairs.test], orders[0][pairs.train]]
            <= distance.amin(1)[orders[1]] + 1e-9
        ).all()
        after = ll.duality(other, "2", n_sharp=3)
        for key in ("gap", "paired_gap", "eq9", "eq11", "sharp", "flat"):
            assert getattr(after, key) == pytest.approx(
                getattr(before, key), rel=1e-8, abs=1e-10
            ), key
        np.testing.assert_allclose(after.sigma_g, before.sigma_g, rtol=1e-6, atol=1e-10)


def test_ties_are_drawn_evenly():
    """All training samples are equally near, so each should be the partner of about as many."""
    X = torch.eye(8, dtype=torch.float64)
    g = torch.Generator().manual_seed(0)
    Z = torch.randn(800, 1, generator=g, dtype=torch.float64).expand(800, 8)
    problem = Problem(
        nn.Linear(8, 2).double(),
        train=(X, torch.zeros(8).long()),
        test=(Z, torch.zeros(800).long()),
    )
    counts = torch.bincount(ll.pair(problem).train, minlength=8)
    assert counts.min() > 60  # 100 on average, with a standard deviation of 9
    assert counts.max() < 140


def test_a_far_sample_does_not_make_ties_of_others():
    """Rounding is relative to each distance: one outlier must not blur all the rest."""
    g = torch.Generator().manual_seed(0)
    X, Z = (torch.randn(n, 3, generator=g, dtype=torch.float64) for n in (50, 30))
    far = torch.cat([X, torch.full((1, 3), 1e6, dtype=torch.float64)])
    y, z = torch.zeros(51).long(), torch.zeros(30).long()
    found = ll.pair(Problem(nn.Linear(3, 2).double(), train=(far, y), test=(Z, z)))
    distance = torch.cdist(Z, X, compute_mode="donot_use_mm_for_euclid_dist")
    assert torch.equal(found.train, distance.argmin(1))
