"""Stability: walks with a known end, the alignment by its definition, claims on made-up runs."""

import numpy as np
import pytest
import torch
from torch import nn

from lowland_studies.evidence import Runs
from lowland_studies.field.stability import trial as stability
from lowland_studies.field.stability.study import STUDY
from lowland_studies.field.stability.trial import (
    LEFT,
    Factored,
    Minimum,
    Walk,
    Whole,
    alignment,
    descended,
    matrices,
    noise,
)


def linear(inputs, targets):
    """A model w x with w = 1, in double precision."""
    model = nn.Linear(1, 1, bias=False).double()
    nn.init.ones_(model.weight)
    return Walk(Minimum(model, inputs, targets, None, None))


def test_a_walk_without_noise_is_gradient_descent():
    """All samples are alike: the error is multiplied by 1 - 2 rate in every step."""
    x = torch.ones(6, 1, dtype=torch.float64)
    history, walkers, end = linear(x, 1.1 * x).steps(rate=1.5, batch=2, seed=0)
    factors = history[1:, 0] / history[:-1, 0]
    torch.testing.assert_close(factors, torch.full_like(factors, 4.0))
    assert end == 4  # 4^4 is the first power above 100
    assert (history[end] > LEFT * history[0]).all()
    assert len(walkers) == history.shape[1]
    stays, _, end = linear(x, 1.1 * x).steps(rate=0.4, batch=2, seed=0)
    assert end == len(stays) - 1
    assert (stays[-1] < stays[0]).all()


def test_the_noise_is_that_of_its_definition():
    torch.manual_seed(0)
    gradients, root = torch.randn(1, 7, 4).double(), torch.randn(4, 4).double()
    H = root @ root.T
    sigma = torch.cov(gradients[0].T, correction=0)
    own = torch.trace(sigma @ H)
    for hessian in (Whole(H), Factored(root.T)):
        assert float(noise(gradients, hessian)) == pytest.approx(float(own), rel=1e-12)
        assert hessian.norm == pytest.approx(float(H.norm()), rel=1e-12)
        largest = float(torch.linalg.eigvalsh(H)[-1])
        assert hessian.largest == pytest.approx(largest, rel=1e-12)


def test_the_alignment_is_a_mean_over_walkers(monkeypatch):
    """However few of their gradients are held at once."""
    minimum = descended("mse", 0.5, 0)
    walk, H = Walk(minimum), minimum.hessian
    noisy = torch.randn(7, len(walk.start), generator=torch.Generator().manual_seed(0)).double()
    walkers = walk.start + 0.01 * noisy
    traces = torch.cat([noise(walk.sample_gradients(w[None]), H) for w in walkers])
    own = traces.mean() / (2 * walk.losses(walkers).mean() * H.matrix.square().sum())
    for held in (1, 2**27):
        monkeypatch.setattr(stability, "_HELD", held)
        assert alignment(walk, walkers, H) == pytest.approx(float(own), rel=1e-10)


def test_at_a_small_loss_the_hessian_is_its_gauss_newton_part():
    minimum = descended("mse", 1e-3, 0)
    factored = stability._factored(minimum.model, minimum.inputs)
    assert factored.norm == pytest.approx(minimum.hessian.norm, rel=0.003)
    assert factored.largest == pytest.approx(minimum.hessian.largest, rel=0.003)


def test_a_larger_network_is_taken_by_its_factor(monkeypatch):
    monkeypatch.setattr(stability, "_WHOLE", 0)
    assert isinstance(descended("mse", 0.5, 1).hessian, Factored)
    descended.cache_clear()


def test_sample_gradients_have_the_gradient_as_their_mean():
    minimum = descended("mse", 0.5, 0)
    walk = Walk(minimum)
    mean = walk.sample_gradients(walk.start[None])[0].mean(0)
    loss = (minimum.model(minimum.inputs) - minimum.targets).square().mean()
    whole = torch.autograd.grad(loss, list(minimum.model.parameters()))
    torch.testing.assert_close(mean, torch.cat([g.flatten() for g in whole]))


def test_matrices_of_a_minimum_are_compared_by_their_norms():
    numbers = matrices({"loss": "mse", "goal": 0.5}, 0)
    assert 0 < numbers["distance_of_outputs"] < numbers["distance_of_losses"]
    assert 0 < numbers["cosine_of_losses"] < 1


def world(tmp_path, *, as_claimed):
    """Walkers that leave above the bound and stay below, or the other way round."""
    rows = []
    for trial in STUDY.grid:
        row = trial.to_dict() | {"alignment": 1.0 + 0.01 * trial.seed}
        leaves = (row.get("factor", 0) > 1) == as_claimed
        row |= {"left": float(leaves), "growth": 1.0 if leaves else -1.0, "rate_of_descent": 0.5}
        row["alignment_at_end"] = row["alignment"]
        row["growth_beyond_bound"] = row["growth"] / 2
        far = row.get("goal", 0) if as_claimed else 1 - row.get("goal", 0)
        row |= {f"distance_of_{name}": far for name in ("outputs", "losses")}
        rows.append({"factor": None, "batch_size": None, "loss": None, "goal": None, **row})
    return Runs(tuple(rows), (), tmp_path)


@pytest.mark.parametrize(("as_claimed", "verdict"), [(True, "holds"), (False, "does not hold")])
def test_claims_follow_the_world(tmp_path, as_claimed, verdict):
    runs = world(tmp_path, as_claimed=as_claimed)
    claims = [c for c in STUDY.claims if "mu of noise" not in c.text and "cosine" not in c.text]
    assert {c.text: c.test(runs).verdict for c in claims} == {c.text: verdict for c in claims}
    assert np.isfinite(runs.column("alignment")).all()
