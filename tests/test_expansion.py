"""The supplement's approximations and the flatness, against their definitions written out."""

import numpy as np
import pytest
import torch
from torch import nn

import lowland as ll
from cases import CASES
from lowland.curvature import layers
from lowland.dual import Pairs, dual_shifts
from lowland.dual import expansion as expansion_module
from lowland.dual.expansion import expansion
from lowland.dual.flatness import flatness
from lowland.problem import Problem
from test_duality import make_problem


@pytest.mark.parametrize(
    ("name", "layer"),
    [
        ("mlp-relu", "2"),
        ("lenet", "3"),
        ("conv1d", "0"),
        ("resnet", "conv"),
        ("transformer", "qkv"),
    ],
)
def test_every_form_is_its_definition(name, layer, monkeypatch):
    monkeypatch.setattr(expansion_module, "_OUTPUTS", 500)
    monkeypatch.setattr(expansion_module, "_GRADIENTS", 3)
    problem = CASES[name].problem(n=8)
    at = layers(problem)[layer]
    pairs = Pairs(torch.tensor([0, 2, 5, 7]), torch.tensor([1, 0, 4, 3]), 0, "by hand")
    shifts = dual_shifts(problem, [at], pairs).shifts[layer]
    M = at.size
    E = torch.linalg.qr(torch.randn(M, M, dtype=torch.float64))[0][:, :12]
    found = expansion(problem, shifts, E, pairs.train, pairs.test)
    rows = torch.cat(list(shifts.written_out()))
    train = problem.train.take(slice(None))
    sums = {key: np.zeros(12) for key in ("finite", "alone", "linear", "gradient_square")}

    def loss(k, delta):
        old = problem.params[at.parameter]
        weight = old + delta.view_as(old)
        i, j = pairs.train[k], pairs.test[k]
        z = problem.outputs(train.inputs[i][None], {at.parameter: weight})
        return problem.loss(z, problem.test.targets[j][None])[0]

    with problem.measuring():
        for k in range(4):
            zero = torch.zeros(M, dtype=torch.float64, requires_grad=True)
            (gradient,) = torch.autograd.grad(loss(k, zero), zero)
            walked = torch.zeros(M, dtype=torch.float64)
            for n in range(12):
                step = (rows[k] @ E[:, n]) * E[:, n]
                sums["finite"][n] += float(loss(k, walked + step) - loss(k, walked)) / 4
                walked = walked + step
                sums["alone"][n] += float(loss(k, step) - loss(k, zero.detach())) / 4
                along = float(gradient @ E[:, n])
                sums["linear"][n] += along * float(rows[k] @ E[:, n]) / 4
                sums["gradient_square"][n] += along**2 / 4
    for key, value in sums.items():
        np.testing.assert_allclose(found[key], value, rtol=1e-8, atol=1e-12, err_msg=key)


def test_one_after_the_other_adds_up_to_the_gap():
    found = ll.duality(make_problem(), "2", leading_order=True)
    assert found.approximations.finite.sum() == pytest.approx(found.paired_gap, rel=1e-9)
    # and in the order of the directions: each is a step from where the last one ended
    assert found.approximations.alone.sum() != pytest.approx(found.paired_gap, rel=1e-3)
    assert found.approximations.linear.sum() != pytest.approx(
        found.approximations.alone.sum(), rel=1e-3
    )
    assert ll.duality(make_problem(), "2").approximations is None


def test_in_a_linear_regression_widths_are_those_of_parabolas():
    g = torch.Generator().manual_seed(0)
    X, Y = torch.randn(50, 3, generator=g).double(), torch.randn(50, 2, generator=g).double()
    model = nn.Linear(3, 2, bias=False).double()
    with torch.no_grad():
        model.weight.copy_(torch.linalg.lstsq(X, Y).solution.T)
    problem = Problem(model, "mse", (X, Y), (X + 0.1, Y))
    found = ll.duality(problem, "", widths=True)
    loss = float(problem.losses().mean())
    for factor, width in ((2, found.widths.flatness), (np.e, found.widths.flatness_e)):
        expected = 2 * np.sqrt(2 * (factor - 1) * loss / found.eigenvalue)
        np.testing.assert_allclose(width, expected, rtol=1e-3)


@pytest.mark.slow
def test_widths_end_where_the_loss_has_doubled():
    problem = make_problem()
    at = layers(problem)["2"]
    H = ll.layer_hessian(problem, "2")
    values, E = torch.linalg.eigh(H)
    loss = float(problem.losses().mean())
    found = flatness(problem, at, E, values)

    def at_distance(n, t):
        centre = problem.params["2.weight"]
        weight = centre + t * E[:, n].view_as(centre)
        return float(problem.at({"2.weight": weight}).losses().mean())

    for n in (0, 10, 20, 29):
        sides = []
        for sign in (1, -1):
            ts = np.geomspace(1e-3, 1000, 4000)
            grown = np.array([at_distance(n, sign * t) for t in ts[::40]]) >= 2 * loss
            first = ts[::40][np.argmax(grown)]
            fine = np.linspace(first / 1.5, first, 100)
            grown = np.array([at_distance(n, sign * t) for t in fine]) >= 2 * loss
            sides.append(fine[np.argmax(grown)])
        assert float(found["flatness"][n]) == pytest.approx(sum(sides), rel=0.01)
    assert (found["flatness"] < found["flatness_e"]).all()


def test_a_direction_that_the_loss_does_not_see_has_no_width():
    problem = make_problem()
    with torch.no_grad():
        problem.model[4].weight[:, 0] = 0  # unit 0 of the layer goes nowhere
    found = ll.duality(problem, "2", widths=True)
    assert np.isinf(found.widths.flatness).sum() == 6
    still = Problem(
        nn.Linear(2, 1, bias=False).double(), "mse",
        (torch.zeros(3, 2).double(), torch.zeros(3, 1).double()),
    )  # fmt: skip
    none = flatness(still, layers(still)[""], torch.eye(2).double(), torch.ones(2).double())
    assert all(widths.isnan().all() for widths in none.values())  # of a loss of 0 no factor
