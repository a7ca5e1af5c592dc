"""Layers by parameter: every network of the zoo is exact where it says so, at every batch size."""

import functools

import pytest
import torch
from torch import nn

import lowland as ll
import zoo
from cases import dense_hessian
from lowland.curvature import layer_hessians, layers, opaque, parameters
from lowland.problem import Problem
from zoo import ZOO

# What cannot be seen through, by network.
OPAQUE = {
    "weight_norm": ["0.parametrizations.weight.original0", "0.parametrizations.weight.original1"],
    "spectral_norm": ["0.parametrizations.weight.original"],
    "bilinear": ["pair.weight"],
    "temperature": ["logit_scale"],
    "functional": ["scale"],
}
# Checkpointing computes what it saved again, with other tensors than those of the first pass; a
# squared parameter has no row of its own for each sample. Both are found out as the data goes on.
LATER = {"checkpointed", "squared_parameter"}
N = {"cross_entropy": 7, "mse": 4}  # samples


@functools.cache
def truth(name: str, loss: str, kind: str) -> torch.Tensor:
    """The whole matrix: a Hessian by differences where torch's second derivatives are wrong."""
    problem = make(name, loss, batch_size=N[loss])
    operator = {"hessian": ll.hessian, "ggn": ll.ggn, "fisher": ll.fisher}[kind](problem)
    if kind == "hessian" and operator.strategy == "double backward":
        return dense_hessian(problem)
    return operator.dense()


@functools.cache
def shared(name: str, loss: str = "cross_entropy", batch_size: int = 4) -> Problem:
    """One problem for all tests that only read it: what is seen through it is then sought once."""
    return make(name, loss, batch_size)


def make(name: str, loss: str = "cross_entropy", batch_size: int = 3) -> Problem:
    n = N[loss]
    generator = torch.Generator().manual_seed(1)
    torch.manual_seed(0)
    build, shape = ZOO[name]
    model = build().double()
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.running_mean.uniform_(-0.5, 0.5)
            module.running_var.uniform_(0.5, 2)
    X = zoo.inputs(shape, n, generator)
    y = torch.arange(n) % 3 if loss == "cross_entropy" else torch.randn(n, 3, dtype=torch.float64)
    return Problem(model, loss, (X, y), batch_size=batch_size)


@pytest.mark.parametrize("name", ZOO)
def test_what_is_seen_through_is_all_but_what_is_named(name):
    problem = shared(name)
    if name in LATER:
        return
    assert sorted(opaque(problem)) == OPAQUE.get(name, [])
    unused = ["other.weight", "other.bias"] if name == "unused" else []
    assert {*parameters(problem), *OPAQUE.get(name, []), *unused} == set(problem.params)
    assert not {*parameters(problem)} & {*OPAQUE.get(name, []), *unused}


@pytest.mark.parametrize(
    ("loss", "batch_size"),
    [("cross_entropy", 3), *(pytest.param("mse", n, marks=pytest.mark.slow) for n in (1, 4))],
)
@pytest.mark.parametrize("name", ZOO)
def test_exact_blocks_are_dense_autograds_at_every_batch_size(name, loss, batch_size):
    problem = shared(name, loss, batch_size)
    slices = ll.ggn(problem).slices
    for kind in ("hessian", "ggn", "fisher"):
        diagonal, matrix = ll.diagonal(problem, kind), truth(name, loss, kind)
        close = {"rtol": 1e-7, "atol": 1e-9 * float(matrix.abs().max())}
        exact = layer_hessians(problem, list(parameters(problem)), kind)
        for parameter, layer in parameters(problem).items():
            block = matrix[slices[parameter], slices[parameter]]
            torch.testing.assert_close(exact[parameter], block, **close)
            if kind != "hessian" or not layer.in_series:
                assert parameter not in diagonal.stderr
                got = diagonal[parameter].flatten()
                torch.testing.assert_close(got, block.diagonal(), **close)


@pytest.mark.parametrize("kind", ["hessian", "ggn", "fisher"])
@pytest.mark.parametrize("name", ZOO)
def test_traces_are_exact_or_within_their_error(name, kind):
    problem, matrix = shared(name), truth(name, "cross_entropy", kind)
    operator = {"hessian": ll.hessian, "ggn": ll.ggn, "fisher": ll.fisher}[kind](problem)
    found = ll.trace(operator)
    close = 1e-9 if "finite" not in operator.strategy else 1e-6
    scale = float(matrix.diagonal().abs().sum())
    assert abs(found.value - float(matrix.trace())) <= max(5 * found.stderr, close * scale)
    if name not in OPAQUE and name not in LATER and kind != "hessian":
        assert found.stderr == 0
        assert found.samples == 0


def test_an_lstm_in_single_precision_is_seen_through():
    torch.manual_seed(0)
    model = zoo.Written(
        lambda m, x: m.head(m.cell(x)[0][:, -1]),
        cell=nn.LSTM(3, 4, batch_first=True),
        head=nn.Linear(4, 3),
    )
    X, y = torch.randn(9, 5, 3), torch.arange(9) % 3
    single, double = Problem(model, train=(X, y)), Problem(model, train=(X, y), dtype=torch.float64)
    assert not opaque(single)
    for name in parameters(double):
        a, b = ll.layer_hessian(single, name), ll.layer_hessian(double, name)
        assert (a - b).norm() <= 1e-4 * b.norm()


def test_the_conv1d_of_transformers_is_a_dense_layer():
    conv1d = pytest.importorskip("transformers.pytorch_utils").Conv1D
    torch.manual_seed(0)
    model = nn.Sequential(conv1d(6, 4), nn.ReLU(), conv1d(3, 6)).double()
    plain = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)).double()
    with torch.no_grad():
        for i in (0, 2):
            plain[i].weight.copy_(model[i].weight.T)
            plain[i].bias.copy_(model[i].bias)
    X, y = torch.randn(30, 4).double(), torch.arange(30) % 3
    Xt = X + 0.3 * torch.randn(30, 4).double()
    one, two = (Problem(m, train=(X, y), test=(Xt, y)) for m in (model, plain))
    assert layers(one)["0"].operation == "dense"
    assert layers(one)["0"].shape == (1, 6, 4)
    H = ll.layer_hessian(one, "0").view(4, 6, 4, 6)
    other = ll.layer_hessian(two, "0").view(6, 4, 6, 4)
    torch.testing.assert_close(H.permute(1, 0, 3, 2), other)
    a, b = ll.duality(one, "0"), ll.duality(two, "0")
    assert a.sharp == pytest.approx(b.sharp)
    assert a.sigma_g == pytest.approx(b.sigma_g)


def test_a_parameter_that_turns_opaque_on_later_data_is_estimated():
    # The shortcut is taken only by inputs that the first samples do not have.
    def forward(m, x):
        z = m.head(torch.tanh(m.layer(x)))
        if bool((x[:, 0] > 5).any()):
            z = z + torch.outer((x[:, 0] > 5).double(), m.layer.weight.exp().sum(1)[:3])
        return z

    torch.manual_seed(0)
    model = zoo.Written(forward, layer=nn.Linear(4, 6), head=nn.Linear(6, 3)).double()
    X = torch.randn(20, 4).double()
    X[12, 0] = 6.0
    problem = Problem(model, train=(X, torch.arange(20) % 3), batch_size=5)
    assert "layer.weight" in parameters(problem)
    found = ll.trace(ll.hessian(problem))
    assert "layer.weight" in opaque(problem)
    truth = float(dense_hessian(problem).trace())
    assert found.parts["layer.weight"].samples > 0
    assert abs(found.value - truth) <= max(5 * found.stderr, 1e-9 * abs(truth))
    with pytest.raises(ll.InputError, match="'layer' enters Exp"):
        ll.layer_hessian(problem, "layer")


def test_an_unknown_kind_of_matrix_is_refused():
    problem = make("in_place")
    for call in (ll.layer_hessian, ll.layer_operator):
        with pytest.raises(ll.InputError, match="'hessian', 'ggn' or 'fisher'; got 'GGN'"):
            call(problem, "0", "GGN")
    with pytest.raises(ll.InputError, match="'hessian', 'ggn' or 'fisher'; got 'GGN'"):
        ll.diagonal(problem, "GGN")
