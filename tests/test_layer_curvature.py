"""Exact layer blocks against closed forms and against dense autograd, in float64."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import lowland as ll
from cases import CASES, dense_hessian
from lowland.curvature import factors, layers, parameters
from lowland.curvature.graph import Graph
from lowland.errors import InputError
from lowland.problem import Problem

LOSSES = [
    "cross_entropy",
    pytest.param("normalized_cross_entropy", marks=pytest.mark.slow),
    pytest.param("mse", marks=pytest.mark.slow),
]


def test_linear_regression_is_two_over_n_x_transposed_x():
    X = torch.randn(20, 3, dtype=torch.float64)
    problem = Problem(nn.Linear(3, 1).double(), "mse", (X, torch.randn(20).double()), batch_size=6)
    torch.testing.assert_close(ll.layer_hessian(problem, ""), 2 / 20 * X.T @ X)


def test_softmax_regression_is_the_mean_of_kronecker_products():
    torch.manual_seed(0)
    X, y = torch.randn(9, 4, dtype=torch.float64), torch.arange(9) % 3
    model = nn.Linear(4, 3).double()
    expected = torch.zeros(12, 12, dtype=torch.float64)
    for x in X:
        p = torch.softmax(model(x), 0).detach()
        expected += torch.kron(p.diag() - p.outer(p), x.outer(x)) / 9
    torch.testing.assert_close(ll.layer_hessian(Problem(model, train=(X, y)), ""), expected)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize(
    "name",
    [
        *("mlp-relu", "mlp-tanh", "mlp-gelu", "lenet", "conv1d", "resnet"),
        pytest.param("transformer", marks=pytest.mark.slow),
    ],
)
def test_blocks_and_diagonals_equal_dense_autograd(name, loss):
    problem = CASES[name].problem(loss=loss)
    diagonal = ll.diagonal(problem)
    assert set(parameters(problem)) == set(problem.params)
    for at in parameters(problem).values():
        expected = dense_hessian(problem, [at.parameter])
        torch.testing.assert_close(ll.layer_hessian(problem, at.name), expected)
        torch.testing.assert_close(diagonal[at.parameter].flatten(), expected.diagonal())


def test_the_ggn_of_a_smooth_network_leaves_out_the_curvature_of_the_network():
    problem = CASES["mlp-tanh"].problem()
    whole = problem.train.take(slice(None))
    weight = problem.params["0.weight"]
    J = torch.autograd.functional.jacobian(
        lambda w: problem.outputs(whole.inputs, {"0.weight": w}), weight
    ).flatten(2)  # (N, C, M)
    p = torch.softmax(problem.outputs(whole.inputs), 1)
    middle = torch.diag_embed(p) - p.unsqueeze(1) * p.unsqueeze(2)
    expected = torch.einsum("ncm,ncd,ndk->mk", J, middle, J) / len(p)
    torch.testing.assert_close(ll.layer_hessian(problem, "0", kind="ggn"), expected)
    assert not torch.allclose(ll.layer_hessian(problem, "0"), expected, rtol=1e-3)


def test_c_backward_passes_are_enough_exactly_where_the_rest_is_piecewise_linear():
    def routes(name: str) -> dict[str, str]:
        problem = CASES[name].problem()
        found = next(factors(problem, list(layers(problem).values())))
        return {layer: f.route for layer, f in found.items()}

    assert set(routes("lenet").values()) == {"C backward passes"}
    assert set(routes("resnet").values()) == {"C backward passes"}
    tanh = routes("mlp-tanh")
    assert tanh["4.weight"] == "C backward passes"  # nothing but the loss follows
    assert tanh["0.weight"] == tanh["2.weight"] == "double backward of the layer's outputs"


@pytest.mark.parametrize(
    ("function", "linear"),
    [
        (lambda a: F.relu(a) @ torch.ones(3, 2), True),
        (lambda a: torch.maximum(a, 2 - a).abs() / 3, True),
        (lambda a: torch.cat([a, a.flip(1)], 1).mean(1), False),  # flip: not on the list
        (lambda a: a * torch.ones(3), True),
        (lambda a: a * a, False),
        (lambda a: a @ a.T, False),
        (lambda a: 1 / a, False),
        (lambda a: a / a.detach(), True),
        (lambda a: torch.tanh(a), False),
        (lambda a: F.layer_norm(a, (3,)), False),
        (lambda a: F.batch_norm(a, torch.zeros(3), torch.ones(3), training=False), True),
        (lambda a: F.batch_norm(a, None, None, training=True), False),
        (lambda a: a.detach().tanh() + a, True),  # what does not depend on a does not matter
        (lambda a: F.max_pool2d(a.view(1, 1, 2, 3), 2), True),
        (lambda a: F.softmax(a, 1), False),
        (lambda a: a.clamp(0, 1) - F.leaky_relu(a), True),
    ],
)
def test_the_autograd_graph_tells_what_is_piecewise_linear(function, linear):
    a = torch.randn(2, 3, requires_grad=True)
    assert Graph(function(a), [a]).curved(0) != linear
    inner = torch.randn(2, 3, requires_grad=True).sinh()  # before the layer anything may happen
    assert Graph(function(inner), [inner]).curved(0) != linear


def test_a_very_deep_graph_does_not_exhaust_the_stack():
    a = torch.randn(2, requires_grad=True)
    z = a
    for _ in range(5000):
        z = z + 1
    assert not Graph(z, [a]).curved(0)


def test_a_float32_model_gives_the_float64_block_to_float32_accuracy():
    case = CASES["lenet"]
    exact = case.problem()
    single = Problem(
        exact.model.float(), train=(exact.train.take(slice(None)).inputs, exact.train.targets)
    )
    exact = Problem(
        single.model,
        train=(exact.train.take(slice(None)).inputs, exact.train.targets),
        dtype=torch.float64,
    )
    for name in layers(exact):
        a, b = ll.layer_hessian(single, name), ll.layer_hessian(exact, name)
        assert (a - b).norm() <= 1e-5 * b.norm()


def test_layers_that_cannot_be_used_are_named():
    problem = CASES["mlp-relu"].problem()
    with pytest.raises(
        InputError, match="layer '1' is ReLU and has no weight; layers with one: '0', '2', '4'"
    ):
        ll.layer_hessian(problem, "1")
    with pytest.raises(InputError, match="there is no layer 'x'.*'0', '2', '4'"):
        ll.layer_hessian(problem, "x")
    with pytest.raises(InputError, match="no part in the forward pass"):
        ll.layer_hessian(_Twice.problem(), "unused")
    wide = Problem(nn.Linear(100, 100), train=(torch.randn(3, 100), torch.arange(3)))
    with pytest.raises(InputError, match=r"10,000 weights.*0\.7 GiB"):
        ll.layer_hessian(wide, "")


class _Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.unused = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        return self.layer(self.layer(x))

    @classmethod
    def problem(cls) -> Problem:
        return Problem(cls(), train=(torch.randn(5, 4), torch.arange(5) % 4))


@pytest.mark.parametrize("loss", ["cross_entropy", "normalized_cross_entropy"])
def test_shares_of_classes_are_not_taken_for_labels(loss):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)).double()
    X, shares = torch.randn(12, 4).double(), torch.rand(12, 3).double().softmax(1)
    problem = ll.Problem(model, loss, train=(X, shares))

    def mean_loss(W):
        return problem.loss(problem.outputs(X, {"0.weight": W}), shares).mean()

    exact = torch.autograd.functional.hessian(mean_loss, model[0].weight.detach())
    torch.testing.assert_close(ll.layer_hessian(problem, "0"), exact.reshape(20, 20))
