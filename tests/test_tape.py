"""Products with many columns at once against those with one, and when they are not trusted."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import lowland as ll
from cases import CASES, dense_hessian
from lowland.curvature import Remainder, block_products, tangents
from lowland.problem import Problem

KINDS = {
    "hessian": ll.hessian,
    "remainder": Remainder,
    "ggn": ll.ggn,
    "fisher": ll.fisher,
    "true fisher": lambda problem: ll.fisher(problem, labels="model"),
}


class Pooled(nn.Module):
    """Operations that have rules: in place, strided, pooled, added, with and without biases."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.norm = nn.Conv2d(2, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)
        self.conv2, self.skip = nn.Conv2d(4, 4, 3, stride=2, padding=1), nn.Conv2d(4, 4, 1, 2)
        self.scale = nn.Parameter(torch.rand(4, 1, 1))
        self.dense1, self.dense2 = nn.Linear(4, 5), nn.Linear(5, 3)
        self.norm.running_mean.uniform_()
        self.norm.running_var.uniform_(0.5, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.norm(self.conv1(x)), inplace=True), 2)
        x = F.relu_(self.conv2(x) + self.skip(x)) * self.scale
        x = torch.tanh(self.dense1(F.adaptive_avg_pool2d(x, 1).flatten(1)))
        return self.dense2(torch.sigmoid(x))


def pooled(**options) -> Problem:
    torch.manual_seed(0)
    data = torch.randn(6, 2, 8, 8), torch.randint(3, (6,))
    return Problem(Pooled().double().eval(), train=data, **options)


def column_by_column(problem: Problem, kind: str, monkeypatch: pytest.MonkeyPatch):
    with monkeypatch.context() as m:
        m.setattr(block_products, "confirmed", lambda *_: None)
        A = KINDS[kind](problem)
        assert not A.in_blocks  # looked at while it is so
        return A


@pytest.mark.parametrize("kind", KINDS)
def test_columns_together_are_columns_one_by_one(kind, monkeypatch):
    for problem in (pooled(), CASES["conv1d"].problem(), CASES["tied"].problem()):
        A = KINDS[kind](problem)
        assert A.in_blocks
        alone = column_by_column(problem, kind, monkeypatch)

        V = torch.randn(A.size, 5, dtype=torch.float64)
        torch.testing.assert_close(A @ V, alone @ V)
        torch.testing.assert_close(A @ V[:, 2], alone @ V[:, 2])


def test_widths_chunks_and_tapes_made_again_give_the_same(monkeypatch):
    V = torch.randn(ll.hessian(pooled()).size, 5, dtype=torch.float64)
    expected = ll.hessian(pooled()) @ V
    monkeypatch.setattr(block_products, "_IN_FLIGHT", 1)
    monkeypatch.setattr(block_products, "_LEAST", 4)
    narrow = ll.hessian(pooled())
    torch.testing.assert_close(narrow @ V, expected)
    assert [product.width for product in narrow._graphs] == [1, 1]
    again = ll.hessian(pooled(memory=60_000))
    assert again.in_blocks
    assert not again.kept
    torch.testing.assert_close(again @ V, expected)


def test_some_parameters_alone():
    problem = pooled()
    whole = ll.hessian(problem)
    H = whole.dense()
    for chosen in ("conv2.weight", "norm.*", ["dense2.bias", "conv1.weight"], "scale"):
        part = ll.hessian(problem, chosen)
        assert part.in_blocks
        at = torch.cat([torch.arange(len(H))[whole.slices[name]] for name in part.params])
        torch.testing.assert_close(part.dense(), H[at][:, at])


@pytest.mark.parametrize("operation", ["relu_", "convolution_backward", "tanh_backward"])
def test_a_wrong_rule_is_found_out(operation, monkeypatch):
    chosen = getattr(torch.ops.aten, operation).default
    right = tangents.RULES[chosen]

    def wrong(*args):
        tangent = right(*args)

        def doubled(*inputs):
            results = tangent(*inputs)
            if isinstance(results, tuple):
                return tuple(None if t is None else 1.01 * t for t in results)
            return 1.01 * results

        return doubled

    monkeypatch.setitem(tangents.RULES, chosen, wrong)
    problem = pooled()
    H = ll.hessian(problem)
    assert not H.in_blocks
    torch.testing.assert_close(H.dense(), dense_hessian(problem))


def test_a_view_that_is_changed_in_place_is_found_out():
    class InPlace(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.dense1, self.dense2 = nn.Linear(4, 6), nn.Linear(6, 3)

        def forward(self, x: Tensor) -> Tensor:
            x = self.dense1(x)
            x.view(-1, 2, 3).relu_()  # the values of x, by another shape
            return self.dense2(x)

    torch.manual_seed(0)
    problem = Problem(InPlace().double(), train=(torch.randn(6, 4), torch.randint(3, (6,))))
    torch.testing.assert_close(ll.hessian(problem).dense(), dense_hessian(problem))


def test_operations_without_a_rule_are_done_column_by_column():
    problem = CASES["mlp-gelu"].problem()
    assert not ll.hessian(problem).in_blocks


def test_a_batch_that_runs_another_operation(monkeypatch):
    class Branching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.dense1, self.dense2 = nn.Linear(4, 6), nn.Linear(6, 3)

        def forward(self, x: Tensor) -> Tensor:
            y = self.dense1(x)
            y = F.gelu(y) if bool((x[:, 0] > 100).all()) else F.relu(y)
            return self.dense2(y)

    torch.manual_seed(0)
    X = torch.randn(40, 4, dtype=torch.float64)
    X[32:, 0] += 1000  # the last eight, which are a batch of their own
    problem = Problem(Branching().double(), train=(X, torch.randint(3, (40,))), batch_size=32)
    H = ll.hessian(problem)
    alone = column_by_column(problem, "hessian", monkeypatch)
    V = torch.randn(H.size, 3, dtype=torch.float64)
    torch.testing.assert_close(H @ V, alone @ V)
