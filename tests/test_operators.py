"""Products with whole-network matrices against dense oracles in float64, on every architecture."""

import platform
import subprocess
import sys

import numpy as np
import pytest
import scipy.sparse.linalg
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import lowland as ll
from cases import CASES, dense_hessian
from lowland.curvature import Remainder, second_derivatives
from lowland.errors import InputError
from lowland.problem import Problem

LOSSES = [
    "cross_entropy",
    pytest.param("normalized_cross_entropy", marks=pytest.mark.slow),
    pytest.param("mse", marks=pytest.mark.slow),
]


def jacobian(problem: Problem) -> tuple[Tensor, Tensor]:
    """dz/dw (N, C, M) and z (N, C) by autograd, all samples at once."""
    whole = problem.place(problem.train.take(slice(None)))
    names = list(problem.params)

    def outputs(*weights: Tensor) -> Tensor:
        return problem.outputs(whole.inputs, dict(zip(names, weights, strict=True)))

    with problem.measuring():
        parts = torch.autograd.functional.jacobian(outputs, tuple(problem.params.values()))
        z = outputs(*problem.params.values())
    return torch.cat([p.flatten(2) for p in parts], 2), z


def output_hessian(problem: Problem, z: Tensor) -> Tensor:
    rows = [
        torch.autograd.functional.hessian(lambda t, y=y: problem.loss(t[None], y[None]).sum(), row)
        for row, y in zip(z, problem.train.targets, strict=True)
    ]
    return torch.stack(rows)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("name", CASES)
def test_hessian_ggn_and_remainder_equal_oracles(name, loss):
    problem = CASES[name].problem(loss=loss)
    H = dense_hessian(problem)
    torch.testing.assert_close(ll.hessian(problem).dense(), H)
    J, z = jacobian(problem)
    G = torch.einsum("ncm,ncd,ndk->mk", J, output_hessian(problem, z), J) / len(z)
    V = torch.randn(len(H), 4, dtype=H.dtype)
    torch.testing.assert_close(ll.ggn(problem) @ V, G @ V)
    torch.testing.assert_close(Remainder(problem) @ V, (H - G) @ V)


@pytest.mark.parametrize("name", ["mlp-relu", "resnet", "transformer", "tied"])
def test_empirical_fisher_is_the_mean_outer_product_of_gradients(name):
    problem = CASES[name].problem()
    rows = []
    for batch in problem.data("train").chunks(1):
        leaves = {k: p.clone().requires_grad_() for k, p in problem.params.items()}
        with problem.measuring():
            loss = problem.loss(problem.outputs(batch.inputs, leaves), batch.targets).sum()
            grads = torch.autograd.grad(loss, list(leaves.values()), materialize_grads=True)
        rows.append(torch.cat([g.flatten() for g in grads]))
    g = torch.stack(rows)
    torch.testing.assert_close(ll.fisher(problem).dense(), g.T @ g / len(g))


def test_true_fisher_is_the_expectation_over_the_models_own_labels():
    for loss in ("cross_entropy", "normalized_cross_entropy"):
        problem = CASES["mlp-tanh"].problem(loss=loss)
        J, z = jacobian(problem)
        F = torch.zeros(J.shape[2], J.shape[2], dtype=torch.float64)
        for k in range(len(z)):
            for label in range(3):
                leaf = z[k : k + 1].detach().requires_grad_()
                value = problem.loss(leaf, torch.tensor([label])).sum()
                (g,) = torch.autograd.grad(value, leaf)
                gradient = J[k].T @ g[0]
                F += torch.exp(-value.detach()) * gradient.outer(gradient) / len(z)
        torch.testing.assert_close(ll.fisher(problem, labels="model").dense(), F)
    # for cross-entropy it is the GGN; the normalised loss is not convex in z, so there it is not
    problem = CASES["mlp-tanh"].problem()
    torch.testing.assert_close(ll.fisher(problem, labels="model").dense(), ll.ggn(problem).dense())


def test_a_selection_of_parameters_is_a_block_of_the_whole():
    problem = CASES["lenet"].problem()
    whole = ll.hessian(problem)
    H = whole.dense()
    for chosen in ("3.weight", ["0.*", "8.bias"], "*.bias"):
        part = ll.hessian(problem, chosen)
        at = torch.cat([torch.arange(len(H))[whole.slices[name]] for name in part.params])
        torch.testing.assert_close(part.dense(), H[at][:, at])


@pytest.mark.parametrize("kind", [ll.hessian, ll.ggn, ll.fisher])
def test_graphs_that_do_not_fit_are_made_again_and_give_the_same(kind):
    kept = kind(CASES["mlp-gelu"].problem())
    again = kind(CASES["mlp-gelu"].problem(memory=1500))
    assert kept.kept
    assert not again.kept
    V = torch.randn(kept.size, 3, dtype=torch.float64)
    torch.testing.assert_close(kept @ V, again @ V)
    torch.testing.assert_close((kept @ V)[:, 1], kept @ V[:, 1])
    assert kept._graphs
    kept.forget()
    assert not kept._graphs
    torch.testing.assert_close(kept @ V, again @ V)


def test_a_budget_too_small_for_one_sample_is_said():
    with pytest.raises(InputError, match=r"one sample needs .* MiB, but the memory budget"):
        _ = ll.hessian(CASES["mlp-gelu"].problem(memory=10)).strategy
    with pytest.raises(InputError, match=r"dense matrix of 60 parameters takes"):
        ll.hessian(CASES["mlp-gelu"].problem(memory=20_000)).dense()


@pytest.mark.parametrize("way", second_derivatives.WAYS)
def test_every_way_of_differentiating_gives_the_same_product(way, monkeypatch):
    problem = CASES["resnet"].problem()
    v = torch.randn(247, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    expected = dense_hessian(problem) @ v
    monkeypatch.setattr(second_derivatives, "WAYS", (way,))
    H = ll.hessian(problem)
    assert H.strategy == way.name
    close = 1e-5 if "finite" in way.name else 1e-12
    assert (H @ v - expected).norm() <= close * expected.norm()


class Once(torch.autograd.Function):
    """tanh that can be differentiated once only, and not in forward mode."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x.tanh())
        return x.tanh()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        (t,) = ctx.saved_tensors
        return g * (1 - t * t)


class OnceNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 5), nn.Linear(5, 3)

    def forward(self, x):
        return self.b(Once.apply(self.a(x)))


def test_the_last_resort_is_chosen_when_nothing_else_works_and_it_says_so():
    torch.manual_seed(0)
    model = OnceNet().double()
    smooth = nn.Sequential(model.a, nn.Tanh(), model.b)
    X, y = torch.randn(6, 4).double(), torch.arange(6) % 3
    H = ll.hessian(Problem(model, train=(X, y)))
    assert H.strategy == "finite differences of gradients"
    assert "finite differences" in repr(H)
    expected = dense_hessian(Problem(smooth, train=(X, y)))
    assert (H.dense() - expected).norm() < 1e-6 * expected.norm()


class PlainWeightNorm(nn.Module):
    """Weight norm by operations whose second derivatives torch has right."""

    def __init__(self, layer):
        super().__init__()
        made_of = layer.parametrizations.weight
        self.g, self.v = (
            nn.Parameter(p.detach().clone()) for p in (made_of.original0, made_of.original1)
        )
        self.bias = nn.Parameter(layer.bias.detach().clone())

    def forward(self, x):
        return F.linear(x, self.g * self.v / self.v.norm(dim=1, keepdim=True), self.bias)


@pytest.mark.parametrize(("hidden", "dtype"), [(5, torch.float64), (120, torch.float32)])
def test_second_derivatives_that_torch_has_wrong_are_found_out_at_any_size(hidden, dtype):
    torch.manual_seed(0)
    norm = nn.utils.parametrizations.weight_norm
    model = nn.Sequential(
        norm(nn.Linear(4, hidden)), nn.ReLU(), norm(nn.Linear(hidden, hidden)), nn.Linear(hidden, 3)
    ).to(dtype)
    plain = nn.Sequential(PlainWeightNorm(model[0]), nn.ReLU(), PlainWeightNorm(model[2]), model[3])
    X, y = torch.randn(12, 4, dtype=dtype), torch.arange(12) % 3
    H, expected = (ll.hessian(Problem(m, train=(X, y))) for m in (model, plain))
    assert H.strategy == "finite differences of gradients"
    assert expected.strategy == "double backward"
    # Both hold a bias, g and v of each layer, in this order.
    order = [name for i in "02" for name in (f"{i}.bias", f"{i}.g", f"{i}.v")] + [
        "3.weight",
        "3.bias",
    ]
    v = {name: torch.randn_like(expected.params[name]) for name in order}
    product = H @ torch.cat([v[name].flatten() for name in order])
    right = expected @ torch.cat([v[name].flatten() for name in expected.params])
    right = torch.cat([right[expected.slices[name]] for name in order])
    assert (product - right).norm() <= 1e-5 * right.norm()


def test_differences_across_a_kink_are_refused():
    torch.manual_seed(0)
    model = nn.Sequential(OnceNet(), nn.ReLU(), nn.Linear(3, 3)).double()
    with torch.no_grad():
        model[0].b.bias.zero_()
        model[0].a.bias.zero_()
    X = torch.zeros(6, 4).double()  # every unit stands at its kink
    with pytest.raises(InputError, match="depend on their step"):
        ll.hessian(Problem(model, train=(X, torch.arange(6) % 3))).dense()


def test_scipy_solves_with_the_same_operator():
    H = ll.hessian(CASES["mlp-tanh"].problem())
    values = scipy.sparse.linalg.eigsh(H.to_scipy(), k=4, return_eigenvectors=False)
    expected = np.linalg.eigvalsh(H.dense().numpy())
    np.testing.assert_allclose(
        np.sort(values), np.sort(expected[np.argsort(-np.abs(expected))[:4]])
    )


def test_float32_products_are_right_to_float32_accuracy():
    case = CASES["transformer"]
    problem = case.problem()
    expected = dense_hessian(problem)
    whole = problem.train.take(slice(None))
    single = Problem(problem.model, train=(whole.inputs, whole.targets), dtype=torch.float32)
    got = ll.hessian(single).dense().double()
    assert (got - expected).norm() < 1e-5 * expected.norm()


def test_frozen_and_unused_parameters():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.unused = nn.Linear(4, 3), nn.Linear(2, 2)

        def forward(self, x):
            return self.used(x)

    model = Net().double()
    model.used.weight.requires_grad_(
        False
    )  # frozen for training: its curvature is there all the same
    data = torch.randn(6, 4).double(), torch.arange(6) % 3
    H = ll.hessian(Problem(model, train=data))
    assert list(H.slices) == ["used.bias", "unused.weight", "unused.bias"]
    problem = Problem(model, train=data, params="all")
    H = ll.hessian(problem)
    dense = H.dense()
    torch.testing.assert_close(dense, dense_hessian(problem))
    assert dense[H.slices["used.weight"], H.slices["used.weight"]].abs().max() > 0
    assert not dense[H.slices["unused.weight"]].any()
    with pytest.raises(InputError, match="does not depend on them"):
        ll.hessian(problem, "unused.*").dense()


def test_what_cannot_be_multiplied_or_differentiated_is_said():
    problem = CASES["mlp-relu"].problem()
    with pytest.raises(InputError, match=r"needs a vector \(60,\).*got \(59,\)"):
        ll.hessian(problem) @ torch.ones(59)
    with pytest.raises(InputError, match="no parameter matches '7.weight'"):
        ll.hessian(problem, "7.weight")
    X, y = problem.train.take(slice(None)).inputs, problem.train.targets
    wrong = Problem(problem.model, lambda z, y: (z.argmax(1) != y).double(), (X, y))
    for asked in (
        lambda: ll.hessian(wrong).dense(),
        *(lambda kind=kind: ll.diagonal(wrong, kind) for kind in ("hessian", "ggn", "fisher")),
        lambda: ll.trace(ll.hessian(wrong)),
        lambda: ll.layer_hessian(wrong, next(iter(wrong.params))),
    ):
        with pytest.raises(InputError, match=r"has no gradient|cannot be differentiated"):
            asked()
    steep = Problem(problem.model, lambda z, y: z.sub(z.detach()).abs().pow(1.5).sum(1), (X, y))
    with pytest.raises(InputError, match="NaN or infinite"):
        ll.hessian(steep).dense()
    with pytest.raises(InputError, match="labels must be 'data' or 'model'"):
        ll.fisher(problem, labels="both")
    custom = Problem(problem.model, lambda z, y: z.square().sum(1), (X, y))
    with pytest.raises(InputError, match="how the model draws targets"):
        ll.fisher(custom, labels="model").dense()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("confidence", [30.0, 1e4])
def test_a_model_that_fits_its_data_to_rounding_has_a_hessian(dtype, confidence):
    # The first two samples' curvature is rounding, and so is everybody's at the larger confidence.
    X = torch.eye(3, dtype=torch.float64).repeat(3, 1)
    model = torch.nn.Sequential(
        torch.nn.Linear(3, 3, bias=False), torch.nn.ReLU(), torch.nn.Linear(3, 3, bias=False)
    ).double()
    with torch.no_grad():
        model[0].weight.copy_(torch.eye(3) + 0.01)
        model[2].weight.copy_(confidence * (torch.eye(3) + 0.01 * torch.arange(9.0).view(3, 3)))
    X[-1] *= 0.05  # one that is not so sure
    problem = Problem(model, train=(X, torch.arange(9) % 3), dtype=dtype)
    H = ll.hessian(problem)
    expected = dense_hessian(Problem(model, train=(X, torch.arange(9) % 3)))
    found = H.dense().double()
    assert found.isfinite().all()
    limit = 1e-3 * expected.abs().max() + torch.finfo(dtype).eps * confidence**2
    assert (found - expected).abs().max() <= limit


_HELD = """
import torch
from torch import nn
from lowland.curvature import give_back
from lowland.problem import Problem

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096 >> 20

X = torch.randn(4, 2)
problem = Problem(nn.Linear(2, 2), train=(X, torch.arange(4) % 2))
blocks = [torch.ones(1 << 14) for _ in range(4000)]  # 64 KiB each, 250 MiB together
blocks = blocks[-1:]  # at the end of the heap, which therefore stays
before = resident()
give_back(problem)
assert resident() > before - 50
problem.memory = 1
give_back(problem)
assert resident() < before - 150
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other libraries keep other things")
def test_memory_that_was_freed_is_given_back_where_the_budget_is_exceeded():
    subprocess.run([sys.executable, "-c", _HELD], check=True)
