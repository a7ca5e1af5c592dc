"""One pass over the data for several diagonals, and random shifts where that cannot be."""

import pytest
import torch

import lowland as ll
from cases import CASES, dense_hessian
from lowland.curvature import Diagonal, exact_diagonal, joint_diagonals, parameters
from lowland.curvature.probes import remainder_diagonal
from lowland.measures.shared.noise_variances import clipped
from lowland.measures.shared.sample_gradients import sample_gradients

EVERY = ["mlp-relu", "lenet", "transformer"]


@pytest.mark.parametrize("name", EVERY)
def test_one_pass_gives_what_single_passes_give(name):
    problem = CASES[name].problem(n=7, batch_size=3)
    other = problem.with_loss("normalized_cross_entropy")
    joint = joint_diagonals([problem, other])
    for one, found in zip((problem, other), joint, strict=True):
        expected = exact_diagonal(one, list(parameters(one).values()), "ggn")
        assert list(found) == list(expected)
        for parameter, value in expected.items():
            torch.testing.assert_close(found[parameter], value, rtol=1e-8, atol=1e-14)


@pytest.mark.parametrize("name", EVERY)
def test_gradients_of_single_samples(name):
    problem = CASES[name].problem(n=5, batch_size=2)
    found = sample_gradients(problem)
    squares = {n: torch.zeros_like(p, dtype=torch.float64) for n, p in problem.params.items()}
    along = []
    leaves = {n: p.detach().clone().requires_grad_() for n, p in problem.params.items()}
    with problem.measuring():
        for batch in problem.batches("train", 1):
            loss = problem.batch_losses(batch, leaves).sum()
            slopes = torch.autograd.grad(loss, list(leaves.values()), materialize_grads=True)
            for n, g in zip(leaves, slopes, strict=True):
                squares[n] += g.double() ** 2 / 5
            pairs = zip(problem.params.values(), slopes, strict=True)
            along.append(sum(float((p * g).sum()) for p, g in pairs))
    for n, expected in squares.items():
        torch.testing.assert_close(found.squares[n], expected, rtol=1e-8, atol=1e-14)
    assert found.along == pytest.approx(sum(a * a for a in along) / 5)


@pytest.mark.parametrize(
    ("name", "whole"), [("mlp-tanh", False), ("conv1d", True), ("transformer", False)]
)
def test_random_shifts_give_the_diagonal_within_its_error(name, whole):
    problem = CASES[name].problem(n=6, batch_size=4)
    chosen = [at for at in parameters(problem).values() if at.curved and not at.in_series]
    value, stderr = remainder_diagonal(problem, chosen, passes=32, whole=whole)
    for at in chosen:
        expected = dense_hessian(problem, [at.parameter]).diagonal().double()
        if not whole:
            expected = expected - ll.ggn(problem, at.parameter).dense().double().diagonal()
        miss = (value[at.parameter].flatten() - expected).abs()
        assert (miss <= 6 * stderr[at.parameter].flatten() + 1e-9).all(), at.parameter
        # the errors are neither too small nor too large: of 32 passes, about normal
        spread = (miss / stderr[at.parameter].flatten().clamp_min(1e-12)).square().mean()
        assert at.size < 8 or spread < 4, at.parameter


@pytest.mark.slow
def test_a_hessian_of_too_many_outputs_is_estimated_as_a_whole(monkeypatch):
    monkeypatch.setattr("lowland.curvature.shared_jacobians.MOST_OUTPUTS", 0)
    problem = CASES["transformer"].problem(n=9)
    H = dense_hessian(problem)
    found = ll.trace(ll.hessian(problem), rtol=0.0, max_matvecs=64)
    assert not found.converged
    assert found.stderr > 0
    assert abs(found.value - float(H.trace())) <= 4 * found.stderr
    diagonal = ll.diagonal(problem, max_matvecs=64)
    flat = torch.cat([d.flatten() for d in diagonal.values()])
    error = torch.cat([e.flatten() for e in diagonal.stderr.values()])
    assert ((flat - H.diagonal()).abs() <= 7 * error + 1e-9).all()


def test_the_bias_of_clipped_noise_is_taken_off_within_its_error():
    generator = torch.Generator().manual_seed(0)
    truth = torch.cat([torch.zeros(400), torch.linspace(-3, 3, 400)]).double()
    slopes = torch.ones(()).double()
    for _ in range(20):
        noise = torch.randn(800, generator=generator, dtype=torch.float64)
        h = Diagonal({"w": truth + noise}, {"w": torch.ones(800).double()}, 4)
        found = clipped(h, "w", slopes)
        value = float(h["w"].clamp_min(0).sum()) - found.bias
        assert abs(value - float(truth.clamp_min(0).sum())) <= 2 * found.variance**0.5
    exact = clipped(Diagonal({"w": truth}, {}, 0), "w", slopes)
    assert exact.bias == exact.variance == 0
