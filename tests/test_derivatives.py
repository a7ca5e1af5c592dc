"""Models that torch does not differentiate twice, or not rightly: differences, never called exact.

Their twins are the same functions in operations that torch knows.
"""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

import lowland as ll
from lowland.curvature import opaque
from lowland.curvature.trials import nearby
from lowland.problem import Problem

Y = torch.arange(30) % 3


class Once(torch.autograd.Function):
    """A sigmoid that may be differentiated once, as hand-written kernels are."""

    @staticmethod
    def forward(ctx, x):
        s = torch.sigmoid(x)
        ctx.save_for_backward(s)
        return s

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (s,) = ctx.saved_tensors
        return g * s * (1 - s)


class Constant(torch.autograd.Function):
    """A sigmoid whose backward pass takes its slope for a constant: no second derivative."""

    @staticmethod
    def forward(ctx, x):
        s = torch.sigmoid(x)
        ctx.slope = (s * (1 - s)).detach()
        return s

    @staticmethod
    def backward(ctx, g):
        return g * ctx.slope


class OnceLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, z, t):
        ctx.save_for_backward(z, t)
        return (z - t).square().sum(1)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        z, t = ctx.saved_tensors
        return 2 * g.unsqueeze(1) * (z - t), None


class Net(nn.Module):
    def __init__(self, activation) -> None:
        super().__init__()
        self.activation = activation
        self.first, self.last = nn.Linear(4, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.activation(self.first(x)))


class MeanOfTokens(nn.Module):
    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight)

    def forward(self, tokens: Tensor) -> Tensor:
        return F.embedding(tokens, self.weight).mean(1)


def pair(name):
    """A problem that torch differentiates once, and its twin."""
    torch.manual_seed(0)
    X, tokens = torch.randn(30, 4).double(), torch.randint(0, 5, (30, 4))
    if name == "bag":
        bag = nn.Sequential(nn.EmbeddingBag(5, 3, mode="mean"), nn.Tanh(), nn.Linear(3, 3)).double()
        twin = nn.Sequential(MeanOfTokens(bag[0].weight.detach().clone()), nn.Tanh(), bag[2])
        return Problem(bag, train=(tokens, Y)), Problem(twin, train=(tokens, Y))
    model = Net({"once": Once.apply, "constant": Constant.apply}[name]).double()
    twin = Net(torch.sigmoid).double()
    twin.load_state_dict(model.state_dict())
    return Problem(model, train=(X, Y)), Problem(twin, train=(X, Y))


@pytest.mark.parametrize("name", ["once", "constant", "bag"])
@pytest.mark.parametrize(
    "make", [ll.hessian, ll.ggn, ll.fisher, lambda p: ll.fisher(p, labels="model")]
)
def test_products_are_those_of_the_twin(name, make):
    problem, twin = pair(name)
    A, B = make(problem), make(twin)
    torch.testing.assert_close(A.dense(), B.dense(), rtol=1e-5, atol=1e-7)
    found, truth = ll.trace(A), ll.trace(B)
    assert abs(found.value - truth.value) <= 2 * found.stderr + 1e-12
    if "differences" in A.strategy:
        assert A.precision < 1e-5
        assert found.stderr > 0 or found.method == "exact, by layer structure"
    single = Problem(problem.model, train=(problem.train.take(slice(None)).inputs, Y))
    assert ll.trace(make(single)).value == pytest.approx(truth.value, rel=1e-4)


@pytest.mark.parametrize("name", ["once", "constant"])
def test_second_derivatives_by_structure_are_right_or_refused(name):
    problem, twin = pair(name)
    with pytest.raises(ll.InputError, match="not differentiate this model backwards twice"):
        ll.layer_hessian(problem, "first")
    torch.testing.assert_close(
        ll.layer_hessian(problem, "first", "ggn"), ll.layer_hessian(twin, "first", "ggn")
    )
    one, other = ll.diagonal(problem), ll.diagonal(twin)
    for key in one:
        torch.testing.assert_close(one[key], other[key], rtol=1e-5, atol=1e-7)
    assert "first.weight" in one.stderr


def test_a_loss_that_torch_differentiates_once():
    torch.manual_seed(0)
    X, t = torch.randn(30, 4).double(), torch.randn(30, 3).double()
    model = Net(torch.tanh).double()
    once, plain = (
        Problem(model, loss, train=(X, t))
        for loss in (lambda z, y: OnceLoss.apply(z, y), lambda z, y: (z - y).square().sum(1))
    )
    torch.testing.assert_close(
        ll.hessian(once).dense(), ll.hessian(plain).dense(), rtol=1e-5, atol=1e-6
    )
    torch.testing.assert_close(
        ll.fisher(once).dense(), ll.fisher(plain).dense(), rtol=1e-5, atol=1e-6
    )
    for call in (lambda: ll.ggn(once).dense(), lambda: ll.layer_hessian(once, "last")):
        with pytest.raises(ll.InputError, match="twice rightly|backwards twice"):
            call()


SPECTRAL = ["negative_share", "near_zero_share", "frobenius_norm", "effective_dimension", "trace"]


@pytest.mark.parametrize("name", ["once", "constant", "bag"])
def test_spectral_numbers_of_differences_know_their_precision(name):
    """Eigenvalues that are zero come out as 1e-10: neither negative, nor the smallest one."""
    problem, twin = pair(name)
    rows, truths = ll.measure(problem, SPECTRAL), ll.measure(twin, SPECTRAL)
    for key, row in rows.items():
        assert row.value is not None, row
        error = row.stderr or 1e-9
        assert abs(row.value - truths[key].value) <= 2 * error + 1e-9, key
    assert not any("exact," in rows[key].method for key in SPECTRAL[:3])
    assert ll.measure(problem, "condition_number")["condition_number"].value is None
    H = ll.hessian(problem)
    exactly = ll.spectral_density(H)
    assert not exactly.exact
    assert "differences" in repr(exactly)
    floor = exactly.spectrum.floor
    null = torch.linalg.eigvalsh(ll.hessian(twin).dense()).abs() < 1e-12
    assert int((exactly.nodes.abs() <= floor).sum()) >= int(null.sum()) > 0


def test_differences_at_a_kink_are_refused():
    """Backwards a ReLU at its kink has slope 0, and by central differences 1/2."""
    torch.manual_seed(0)
    model = Net(lambda x: Once.apply(F.relu(x))).double()
    nn.init.zeros_(model.first.bias)
    X = torch.randn(30, 4).double()
    X[:15] = 0
    problem = Problem(model, train=(X, Y))
    for make in (ll.hessian, ll.ggn):
        with pytest.raises(ll.InputError, match="kink"):
            make(problem).dense()


class Hinge(nn.Module):
    """A unit whose kink lies where its weight is ``kink``."""

    def __init__(self, kink: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1, dtype=torch.float64))
        self.kink = kink

    def forward(self, x: Tensor) -> Tensor:
        return x * F.relu(self.weight - self.kink) + 0.1 * self.weight


def test_a_kink_where_gradients_are_compared_refutes_none():
    data = torch.ones(8, 1, dtype=torch.float64), torch.full((8, 1), 5.0, dtype=torch.float64)
    plain = Problem(Hinge(0.0), loss="mse", train=data)
    kink = float(nearby(plain, plain.params)["weight"])
    problem = Problem(Hinge(kink), loss="mse", train=data)
    assert float(nearby(problem, problem.params)["weight"]) == kink  # no step agrees there
    assert not any("not that of the loss" in why for why in opaque(problem).values())


def test_a_gauss_newton_matrix_needs_the_gradient_of_the_outputs():
    class Sign(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.sign()

        @staticmethod
        def backward(ctx, g):
            return g

    torch.manual_seed(0)
    problem = Problem(Net(Sign.apply).double(), train=(torch.randn(30, 4).double(), Y))
    with pytest.raises(ll.InputError, match="is not that of the loss"):
        ll.ggn(problem).dense()
