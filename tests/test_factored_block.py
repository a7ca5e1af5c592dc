"""The factored block of one layer: products and sums without the matrix."""

import pytest
import torch
from torch import nn

import lowland as ll
from cases import CASES
from lowland.curvature import matrices
from lowland.errors import InputError
from lowland.problem import Problem


@pytest.mark.parametrize("kind", ["hessian", "ggn"])
@pytest.mark.parametrize("name", ["mlp-relu", "mlp-tanh", "lenet", "conv1d", "transformer"])
def test_a_factored_block_is_the_dense_block(name, kind):
    problem = CASES[name].problem(loss="normalized_cross_entropy")  # its A is indefinite
    for at in matrices(problem).values():
        expected = ll.layer_hessian(problem, at.name, kind)
        block = ll.layer_operator(problem, at.name, kind)
        eye = torch.eye(block.size, dtype=torch.float64)
        torch.testing.assert_close(block @ eye, expected)
        torch.testing.assert_close(block @ eye[:, 0], expected[:, 0])
        torch.testing.assert_close(block.diagonal(), expected.diagonal())
        assert block.trace() == pytest.approx(expected.trace().item())


def test_chunks_do_not_change_a_product(monkeypatch):
    problem = CASES["lenet"].problem()
    block = ll.layer_operator(problem, "3")
    V = torch.randn(block.size, 3, dtype=torch.float64)
    expected = block @ V
    monkeypatch.setattr("lowland.curvature.factored_block._CHUNK", 20)
    torch.testing.assert_close(block @ V, expected)


def test_eigenpairs_of_a_layer_too_wide_for_its_dense_block():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(30, 120), nn.ReLU(), nn.Linear(120, 100), nn.ReLU(), nn.Linear(100, 3)
    )
    X, y = torch.randn(40, 30), torch.arange(40) % 3
    problem = Problem(model, train=(X, y), dtype=torch.float64)
    with pytest.raises(InputError, match="12,000 weights"):
        ll.layer_hessian(problem, "2")
    found = ll.eigsh(ll.layer_operator(problem, "2"), 5, tol=1e-6, block=4)
    whole = ll.eigsh(ll.hessian(problem, "2.weight"), 5, tol=1e-6)
    assert found.converged
    torch.testing.assert_close(found.values, whole.values, rtol=1e-6, atol=0)


def test_factors_that_do_not_fit_and_layers_of_another_kind_are_refused():
    with pytest.raises(InputError, match="do not fit the memory budget"):
        ll.layer_operator(CASES["mlp-relu"].problem(n=60, memory=3000), "2")
    with pytest.raises(InputError, match="is not one matrix in all its uses"):
        ll.layer_operator(CASES["resnet"].problem(), "norm1")
