"""Rescalings keep the function; the balanced gauge takes them out of the split."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

import lowland as ll
from cases import CASES
from lowland.problem import Problem
from lowland.rescaling import balanced, joints
from test_duality import make_problem

# Where units can be rescaled, by source and target: between a layer, or the scale of a norm, and
# the next layer. Tanh and GELU are not homogeneous, and what a residual connection carries cannot
# be scaled at one of its ends.
EXPECTED = {
    "mlp-relu": [("0", "2"), ("2", "4")],
    "mlp-tanh": [],
    "lenet": [("0", "3"), ("3", "6"), ("6", "8")],
    "conv1d": [("2", "5")],
    "resnet": [],
    "transformer": [("norm1", "qkv"), ("norm2", "up")],
    "lstm": [],
}


@pytest.mark.parametrize("name", EXPECTED)
def test_joints_are_found_by_what_the_function_allows(name):
    found = joints(CASES[name].problem(n=12))
    assert [(j.source.name, j.target.name) for j in found] == EXPECTED[name]


class Block(nn.Module):
    """A residual block whose inner channels are free, and whose outer ones are not."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(2, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.second = nn.Conv2d(4, 2, 3, padding=1)
        self.head = nn.Linear(50, 3)

    def forward(self, x):
        return self.head((x + self.second(torch.relu(self.norm(self.first(x))))).flatten(1))


def test_units_inside_a_residual_block_are_scaled_at_the_norm():
    torch.manual_seed(0)
    X = torch.randn(20, 2, 5, 5).double()
    problem = Problem(Block().double(), train=(X, torch.arange(20) % 3))
    assert [(j.source.name, j.target.name) for j in joints(problem)] == [("norm", "second")]


def stretched(problem: Problem) -> Problem:
    """Every hidden unit rescaled by a factor of its own, between 1e-3 and 1e3."""
    generator = torch.Generator().manual_seed(1)
    params = dict(problem.params)
    for joint in joints(problem):
        scale = 10 ** (6 * torch.rand(joint.units, generator=generator).double() - 3)
        params = joint.rescaled(params, scale)
    return problem.at(params)


@pytest.mark.parametrize("name", ["mlp-relu", "lenet"])
def test_balancing_keeps_the_function_and_equals_norms(name):
    problem = CASES[name].problem(n=12)
    before = copy.deepcopy(problem.model.state_dict())
    other = stretched(problem)
    torch.testing.assert_close(other.losses(), problem.losses(), rtol=1e-9, atol=1e-12)
    for given in (problem, other):
        found = balanced(given)
        torch.testing.assert_close(found.losses(), problem.losses(), rtol=1e-9, atol=1e-12)
        params = {name: p.double() for name, p in found.params.items()}
        for joint in joints(found):
            torch.testing.assert_close(joint.incoming(params), joint.outgoing(params))
    for key, value in balanced(problem).params.items():  # one representative for all
        torch.testing.assert_close(value, balanced(other).params[key], rtol=1e-8, atol=1e-10)
    for key, value in problem.model.state_dict().items():
        assert torch.equal(value, before[key])


def test_dead_units_are_left_alone():
    problem = CASES["mlp-relu"].problem(n=12)
    with torch.no_grad():
        problem.model[0].weight[1] = 0
        problem.model[4].weight[:, 2] = 0
    found = balanced(problem)
    assert all(p.isfinite().all() for p in found.params.values())
    torch.testing.assert_close(found.losses(), problem.losses(), rtol=1e-9, atol=1e-12)


def test_unit_wise_rescaling_moves_the_split_except_in_the_balanced_gauge():
    problem = make_problem()
    other = stretched(problem)
    given = [ll.duality(p, "2", n_sharp=4) for p in (problem, other)]
    assert given[0].eq9 == pytest.approx(given[1].eq9, rel=1e-8)
    assert given[0].sharp != pytest.approx(given[1].sharp, rel=0.05)
    fixed = [ll.duality(p, "2", n_sharp=4, gauge="balanced") for p in (problem, other)]
    for key in ("eq9", "eq11", "sharp", "flat"):
        assert getattr(fixed[0], key) == pytest.approx(getattr(fixed[1], key), rel=1e-6), key
    np.testing.assert_allclose(fixed[0].contribution, fixed[1].contribution, atol=1e-8)
    np.testing.assert_allclose(fixed[0].sigma_g, fixed[1].sigma_g, rtol=1e-5, atol=1e-9)
    assert [one.gauge for one in (*given, *fixed)] == ["given", "given", "balanced", "balanced"]


def test_layer_wise_rescaling_moves_nothing_in_any_layer():
    problem = make_problem()
    params = dict(problem.params)
    for joint, factor in zip(joints(problem), (1e3, 1e-3), strict=True):
        params = joint.rescaled(params, torch.full((joint.units,), factor).double())
    before, after = ll.duality(problem), ll.duality(problem.at(params))
    for name in before:
        scale = np.abs(before[name].contribution).max()
        np.testing.assert_allclose(
            after[name].contribution, before[name].contribution, atol=1e-6 * scale, err_msg=name
        )
        assert after[name].sharp == pytest.approx(before[name].sharp, rel=1e-6)
