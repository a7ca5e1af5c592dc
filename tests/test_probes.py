"""The remainder's trace by random shifts of each sample's outputs, against the dense oracle."""

import pytest
import torch
from torch import nn

import lowland as ll
from cases import CASES, dense_hessian
from lowland.curvature import diagonals, parameters, passes
from lowland.curvature.probes import remainder_trace
from lowland.problem import Problem

SMOOTH = ["mlp-tanh", "mlp-gelu", "conv1d", "transformer"]


def curved(problem: Problem):
    chosen = [at for at in parameters(problem).values() if passes(at)]
    return chosen, [at.parameter for at in chosen]


def exact(problem: Problem, name: str) -> float:
    H = dense_hessian(problem, [name]).trace()
    return float(H - ll.ggn(problem, name).dense().double().trace())


@pytest.mark.parametrize("name", SMOOTH)
def test_every_part_is_within_its_error_of_the_dense_trace(name):
    problem = CASES[name].problem(n=9, batch_size=9)
    chosen, names = curved(problem)
    found = remainder_trace(problem, chosen, target=0.0, max_passes=256)
    assert found.samples == 256
    assert not found.converged
    for part in names:
        estimate = found.parts[part]
        assert abs(estimate.value - exact(problem, part)) <= 4 * estimate.stderr + 1e-12, part
        assert estimate.stderr > 0 or abs(estimate.value) < 1e-12, part
    assert found.value == pytest.approx(sum(p.value for p in found.parts.values()))


@pytest.mark.slow
def test_the_standard_error_covers_the_truth_at_its_rate():
    problem = CASES["mlp-tanh"].problem(n=9, batch_size=9)
    chosen, names = curved(problem)
    truth = sum(exact(problem, n) for n in names)
    found = [
        remainder_trace(problem, chosen, target=0.0, max_passes=16, seed=seed)
        for seed in range(200)
    ]
    within = [abs(f.value - truth) <= 2 * f.stderr for f in found]
    # 95.4 % if the error were exactly normal; four standard errors of a count of 200 below that
    assert sum(within) >= 0.895 * 200
    bias = sum(f.value - truth for f in found) / 200
    assert abs(bias) <= 4 * torch.tensor([f.value for f in found]).std() / 200**0.5


@pytest.mark.slow
def test_passes_stop_when_the_error_is_small_enough():
    problem = CASES["mlp-gelu"].problem(n=9)
    chosen, _ = curved(problem)
    rough = remainder_trace(problem, chosen, target=1e9)
    assert rough.samples == 256  # 2,048 draws over 9 samples, as a power of two
    assert rough.converged
    fine = remainder_trace(problem, chosen, target=rough.stderr / 4, max_passes=4096)
    assert fine.stderr <= rough.stderr / 4
    assert fine.samples > rough.samples


def test_batches_do_not_matter_but_for_the_draws_and_nothing_is_left_behind():
    problem = CASES["transformer"].problem(n=9)
    chosen, _ = curved(problem)
    hooks = [len(m._forward_hooks) for m in problem.model.modules()]
    whole = remainder_trace(problem, chosen, target=0.0, max_passes=64)
    ragged = CASES["transformer"].problem(n=9, batch_size=2)
    parts = remainder_trace(ragged, curved(ragged)[0], target=0.0, max_passes=64)
    assert abs(whole.value - parts.value) <= 4 * (whole.stderr**2 + parts.stderr**2) ** 0.5
    assert [len(m._forward_hooks) for m in problem.model.modules()] == hooks
    assert all(p.grad is None for p in problem.model.parameters())


def test_the_trace_of_a_wide_smooth_network_is_exact_but_for_a_small_part(monkeypatch):
    monkeypatch.setattr(diagonals, "_TRACE_PASSES", 0)
    monkeypatch.setattr(diagonals, "_PRODUCTS", 1e-9)  # no product for each weight
    problem = CASES["mlp-tanh"].problem(n=30)
    found = ll.trace(ll.hessian(problem), rtol=0.01)
    truth = float(dense_hessian(problem).trace())
    assert found.converged
    assert abs(found.value - truth) <= 4 * found.stderr
    assert found.stderr <= 0.01 * abs(found.value)
    assert "random shifts" in found.method


def test_a_loss_without_curvature_of_its_own():
    # |z| is piecewise linear: all curvature is the model's
    problem = CASES["mlp-tanh"].problem(n=9)
    batch = problem.train.take(slice(None))
    linear = Problem(
        problem.model, lambda z, y: z.abs().sum(1), (batch.inputs, batch.targets), batch_size=4
    )
    chosen, names = curved(linear)
    found = remainder_trace(linear, chosen, target=0.0, max_passes=256)
    truth = sum(float(dense_hessian(linear, [n]).trace()) for n in names)
    assert abs(found.value - truth) <= 4 * found.stderr
    straight = Problem(
        nn.Linear(4, 2).double(), lambda z, y: z.sum(1), (batch.inputs, batch.targets)
    )
    assert ll.trace(ll.hessian(straight)).value == 0
