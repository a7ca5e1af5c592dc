"""Traces and diagonals: exact where layers can be seen through, honest where they cannot."""

import pytest
import torch

import lowland as ll
from cases import CASES, dense_hessian
from lowland.curvature import diagonals


@pytest.mark.parametrize("name", ["mlp-relu", "lenet", "resnet"])
def test_piecewise_linear_networks_have_exact_traces(name):
    problem = CASES[name].problem()
    expected = dense_hessian(problem)
    H = ll.hessian(problem)
    found = ll.trace(H)
    assert found.value == pytest.approx(expected.trace().item(), rel=1e-10)
    assert found.stderr == 0
    assert found.samples == 0
    for parameter, at in H.slices.items():
        block = expected[at, at].trace().item()
        assert found.parts[parameter].value == pytest.approx(block, rel=1e-9, abs=1e-14), parameter


@pytest.mark.parametrize("name", ["mlp-tanh", "conv1d", "transformer", "lstm", "tied"])
def test_other_networks_have_traces_within_their_error(name):
    problem = CASES[name].problem()
    H = ll.hessian(problem)
    expected = dense_hessian(problem).trace().item()
    found = ll.trace(H, rtol=0.01)
    assert found.converged
    assert abs(found.value - expected) <= max(4 * found.stderr, 1e-9)
    assert found.stderr <= 0.01 * abs(found.value)
    assert list(found.parts) == list(problem.params)


def test_a_smooth_network_is_exact_in_few_passes_and_estimated_otherwise(monkeypatch):
    problem = CASES["mlp-tanh"].problem()
    expected = dense_hessian(problem).trace().item()
    assert ll.trace(ll.hessian(problem)).value == pytest.approx(expected, rel=1e-10)
    monkeypatch.setattr(diagonals, "_TRACE_PASSES", 3)
    found = ll.trace(ll.hessian(problem))
    assert found.samples > 0
    assert abs(found.value - expected) <= max(4 * found.stderr, 1e-9)


def test_the_trace_of_a_selection_and_of_the_ggn():
    problem = CASES["mlp-tanh"].problem()
    G = ll.ggn(problem)
    found = ll.trace(G)
    assert found.value == pytest.approx(G.dense().trace().item())
    assert found.stderr == 0
    part = ll.trace(ll.ggn(problem, "2.weight"))
    assert part.value == pytest.approx(G.dense().diagonal()[G.slices["2.weight"]].sum().item())
    assert list(part.parts) == ["2.weight"]
    F = ll.fisher(problem)
    assert ll.trace(F).value == pytest.approx(F.dense().trace().item(), rel=0.05)


@pytest.mark.parametrize("kind", ["hessian", "ggn"])
@pytest.mark.parametrize("name", CASES)
def test_diagonals_are_exact(name, kind):
    problem = CASES[name].problem()
    A = (ll.hessian if kind == "hessian" else ll.ggn)(problem)
    expected = A.dense().diagonal()
    found = ll.diagonal(problem, kind)
    assert list(found) == list(problem.params)
    assert not found.stderr
    for parameter, at in A.slices.items():
        got = found[parameter].flatten()
        torch.testing.assert_close(got, expected[at], rtol=1e-7, atol=1e-13)


@pytest.mark.parametrize("name", ["lstm", "tied"])
def test_diagonals_of_weights_in_series_are_within_their_error(name, monkeypatch):
    monkeypatch.setattr(diagonals._Plan, "by_products", lambda plan, *_: plan)
    problem = CASES[name].problem()
    A = ll.hessian(problem)
    expected = A.dense().diagonal()
    found = ll.diagonal(problem)
    in_series = {"lstm": "lstm.weight_hh_l0", "tied": "first.weight"}
    assert in_series[name] in found.stderr
    for parameter, at in A.slices.items():
        error = found.stderr.get(parameter, torch.zeros(())).flatten()
        miss = (found[parameter].flatten() - expected[at]).abs()
        assert (miss <= 6 * error + 1e-9).all(), parameter


def test_a_remainder_that_would_take_too_many_passes_is_estimated(monkeypatch):
    problem = CASES["mlp-tanh"].problem()
    exact = ll.diagonal(problem)
    monkeypatch.setattr(diagonals, "_DIAGONAL_PASSES", 3)
    products = ll.diagonal(problem)  # one for each weight is no dearer here
    assert not products.stderr
    for name, entries in products.items():
        torch.testing.assert_close(entries, exact[name], rtol=1e-9, atol=1e-13)
    monkeypatch.setattr(diagonals, "_PRODUCTS", 1e-9)
    found = ll.diagonal(problem, rtol=0.01)
    assert set(found.stderr) == {"0.weight", "0.bias", "2.weight"}
    assert torch.equal(found["4.weight"], exact["4.weight"])
    for name, error in found.stderr.items():
        assert ((found[name] - exact[name]).abs() <= 6 * error + 1e-9).all()
        assert not torch.equal(found[name], exact[name])
