"""Rescalings keep the function; the balanced gauge takes them out of the split."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

import lowland as ll
from cases import CASES
from lowland.errors import InputError
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
    assert [one.setting.gauge for one in (*given, *fixed)] == [
        "given",
        "given",
        "balanced",
        "balanced",
    ]


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


def outputs(problem: Problem) -> torch.Tensor:
    with problem.measuring(), torch.no_grad():
        return torch.cat([problem.outputs(b.inputs) for b in problem.batches("test")])


@pytest.mark.parametrize("by", ["layers", "units", "split"])
@pytest.mark.parametrize("name", ["mlp-relu", "lenet", "transformer"])
def test_rescaled_models_compute_the_same_function(name, by):
    problem = CASES[name].problem(n=12)
    before = copy.deepcopy(problem.model.state_dict())
    other = ll.rescale(problem, by, 1e3 if by != "split" else 2.0)
    torch.testing.assert_close(outputs(other), outputs(problem), rtol=1e-8, atol=1e-10)
    norms = [torch.cat([p.flatten() for p in of.params.values()]).norm() for of in (problem, other)]
    assert abs(norms[1] / norms[0] - 1) > 0.05
    for key, value in problem.model.state_dict().items():
        assert torch.equal(value, before[key])


def test_units_have_factors_of_their_own_within_the_range():
    problem = CASES["mlp-relu"].problem(n=12)
    other = ll.rescale(problem, "units", 100.0)
    ratio = other.params["0.weight"] / problem.params["0.weight"]
    torch.testing.assert_close(ratio, ratio[:, :1].expand_as(ratio))  # one factor for each unit
    assert ratio.min() >= 0.01
    assert ratio.max() <= 100
    assert ratio[:, 0].unique().numel() == 5
    again = ll.rescale(problem, "units", 100.0, seed=1)
    assert not torch.equal(again.params["0.weight"], other.params["0.weight"])


def test_layers_have_one_factor():
    problem = CASES["mlp-relu"].problem(n=12)
    other = ll.rescale(problem, "layers", 100.0)
    expected = {"0.weight": 100, "0.bias": 100, "2.weight": 1e-4, "4.weight": 100, "4.bias": 1}
    for name, factor in expected.items():
        torch.testing.assert_close(other.params[name], factor * problem.params[name], msg=name)


@pytest.mark.parametrize("factor", [1e3, 0.5])
def test_weights_before_a_batchnorm_can_be_scaled_in_eval_mode(factor):
    problem = CASES["resnet"].problem(n=12)
    other = ll.rescale(problem, "norms", factor)
    torch.testing.assert_close(outputs(other), outputs(problem), rtol=1e-8, atol=1e-10)
    for name in ("stem.weight", "conv.weight"):
        torch.testing.assert_close(other.params[name], factor * problem.params[name])
    torch.testing.assert_close(
        other.model.norm1.running_mean, factor * problem.model.norm1.running_mean
    )
    with pytest.raises(InputError, match="too small for the epsilon"):
        ll.rescale(problem, "norms", 1e-6)
    with pytest.raises(InputError, match="no layer is followed by a BatchNorm"):
        ll.rescale(CASES["lenet"].problem(), "norms")


class PreActivated(nn.Module):
    """What the first BatchNorm sees goes past it along a shortcut, unlike what the second sees."""

    def __init__(self):
        super().__init__()
        self.stem, self.inner, self.last = nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(4, 2)
        self.norm1, self.norm2 = nn.BatchNorm1d(4), nn.BatchNorm1d(4)

    def forward(self, x):
        x = self.stem(x)
        return self.last((x + self.norm2(self.inner(self.norm1(x).relu()))).relu())


def test_a_shortcut_around_a_batchnorm_forbids_scaling_through_it():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model, X = PreActivated().double(), torch.randn(20, 3, dtype=torch.float64)
        model(X)
    data = X, torch.arange(20) % 2
    problem = ll.Problem(model.eval(), train=data, test=data)
    other = ll.rescale(problem, "norms", 10.0)
    torch.testing.assert_close(outputs(other), outputs(problem))
    torch.testing.assert_close(other.params["stem.weight"], problem.params["stem.weight"])
    torch.testing.assert_close(other.params["inner.weight"], 10 * problem.params["inner.weight"])


def test_a_split_layer_is_the_sum_of_its_shares():
    problem = CASES["mlp-relu"].problem(n=12)
    other = ll.rescale(problem, "split", 4.0)
    first, second = (other.params[f"2.{part}.weight"] for part in ("first", "second"))
    torch.testing.assert_close(first, 0.75 * problem.params["2.weight"])
    torch.testing.assert_close(second, 0.25 * problem.params["2.weight"])


def test_splitting_halves_the_fisher_rao_norm_and_keeps_normalized_sharpness():
    # the paper's point (Eq. 26-30), in a network without biases
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6, bias=False), nn.ReLU(), nn.Linear(6, 3, bias=False))
    X = torch.randn(30, 4).double()
    problem = Problem(model.double(), train=(X, torch.arange(30) % 3))
    names = ["normalized_sharpness", "fisher_rao", "matrix_normalized_sharpness"]
    before = ll.measure(problem, names)
    after = ll.measure(ll.rescale(problem, "split", 2.0), names)
    assert after["fisher_rao"].value == pytest.approx(before["fisher_rao"].value / 2, rel=1e-9)
    for name in (names[0], names[2]):
        assert after[name].value == pytest.approx(before[name].value, rel=1e-6), name


@pytest.mark.parametrize("name", ["mlp-tanh", "resnet", "lstm"])
def test_the_outputs_can_be_scaled_by_the_last_layer(name):
    problem = CASES[name].problem(n=12)
    other = ll.rescale(problem, "outputs", 7.0)
    torch.testing.assert_close(outputs(other), 7 * outputs(problem))


def test_what_cannot_be_rescaled_is_said():
    problem = CASES["mlp-tanh"].problem(n=12)
    for by in ("layers", "units"):
        with pytest.raises(InputError, match="no hidden units that can be rescaled"):
            ll.rescale(problem, by)
    with pytest.raises(InputError, match="by must be one of 'layers', "):
        ll.rescale(problem, "weights")
    with pytest.raises(InputError, match="factor must be above 0; got -1"):
        ll.rescale(problem, "outputs", -1)
    softmax = nn.Sequential(nn.Linear(4, 3), nn.Softmax(1)).double()
    X = torch.randn(9, 4).double()
    with pytest.raises(InputError, match="outputs are not proportional to layer '0'"):
        ll.rescale(Problem(softmax, "mse", (X, torch.randn(9, 3).double())), "outputs")
    with pytest.raises(InputError, match="factor above 1"):
        ll.rescale(problem, "split", 0.5)


def test_what_only_looks_homogeneous_is_not_balanced():
    """Near 0 tanh is linear to single precision, and the balanced network was another one."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
    with torch.no_grad():
        model[0].weight.mul_(1e-3)
        model[0].bias.zero_()
        model[2].weight.mul_(1e3)
    X = torch.randn(40, 4)
    problem = Problem(model, train=(X, torch.arange(40) % 3))
    with pytest.raises(InputError, match="cannot be balanced"):
        balanced(problem)


def test_clipped_units_are_not_balanced():
    """ReLU6 is homogeneous for the samples that it does not clip."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU6(), nn.Linear(6, 3)).double()
    with torch.no_grad():
        model[0].bias.zero_()
        model[2].weight.mul_(100)
    X = torch.randn(600, 4, dtype=torch.float64)
    X[:300] *= 1e-3  # none of them is clipped, whatever is tried
    X[300:] *= 3
    problem = Problem(model, train=(X, torch.arange(600) % 3))
    with pytest.raises(InputError, match="cannot be balanced"):
        balanced(problem)


# --- at the factor that is asked for -------------------------------------------------------------


@pytest.mark.parametrize("by", ["layers", "units"])
@pytest.mark.parametrize("seed", range(3))
def test_what_clips_only_at_large_factors_is_not_rescaled_by_them(by, seed):
    """Units that stay below the clip of ReLU6 when multiplied by 30, but not by 100,000."""
    g = torch.Generator().manual_seed(seed)
    X = torch.randn(40, 4, generator=g, dtype=torch.float64)
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU6(), nn.Linear(6, 3)).double()
    with torch.no_grad():
        model[0].weight.mul_(0.02)
        model[0].bias.mul_(0.02)
    problem = Problem(model, train=(X, torch.arange(40) % 3), test=(X, torch.arange(40) % 3))
    assert len(joints(problem)) == 1
    torch.testing.assert_close(outputs(ll.rescale(problem, by, 10.0)), outputs(problem))
    with pytest.raises(InputError, match=r"can be rescaled by a factor of|another function"):
        ll.rescale(problem, by, 1e5)


def test_a_sample_that_only_the_whole_data_have_forbids_the_factor():
    """Joints are tried on 256 samples: the 300th, which is clipped, is seen by the last look."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU6(), nn.Linear(6, 3)).double()
    X = 1e-5 * torch.randn(400, 4, dtype=torch.float64)
    X[300:] *= 1e4
    with torch.no_grad():
        model[0].bias.zero_()
    problem = Problem(model, train=(X, torch.arange(400) % 3))
    assert len(joints(problem, 1000.0)) == 1
    with pytest.raises(InputError, match="another function on the training data"):
        ll.rescale(problem, "layers", 1000.0)


def test_outputs_that_overflow_are_not_the_same():
    problem = CASES["mlp-relu"].problem(n=12, dtype=torch.float32)
    with pytest.raises(InputError, match=r"can be rescaled by|another function"):
        ll.rescale(problem, "layers", 1e30)
