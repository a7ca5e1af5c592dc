"""Stability: walks with a known end, the alignment by its definition, claims on made-up runs."""

import numpy as np
import pytest
import torch
from torch import nn

from lowland.studies.evidence import Runs
from lowland.studies.field.stability import STUDY
from lowland.studies.trials.stability import LEFT, Minimum, Walk, alignment, descended, matrices


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


def test_the_alignment_is_that_of_its_definition():
    torch.manual_seed(0)
    gradients, root = torch.randn(1, 7, 4).double(), torch.randn(4, 4).double()
    H, loss = root @ root.T, torch.tensor([0.3], dtype=torch.float64)
    sigma = torch.cov(gradients[0].T, correction=0)
    own = torch.trace(sigma @ H) / (2 * 0.3 * torch.trace(H @ H))
    assert alignment(gradients, H, loss) == pytest.approx(float(own), rel=1e-12)


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
