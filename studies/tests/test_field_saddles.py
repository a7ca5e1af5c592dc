"""Critical points: known ones are found, semicircles known as such; claims on made-up worlds."""

from pathlib import Path

import numpy as np
import pytest
import torch

from lowland_studies.evidence import Runs
from lowland_studies.field.saddles.study import STUDY
from lowland_studies.field.saddles.trial import _of, critical_point, semicircle_below, small_loss


def test_newton_finds_the_saddle_between_two_minima():
    def loss(w):  # minima at (+-1, 0), a saddle at 0
        return (w[0] ** 2 - 1) ** 2 + w[1] ** 2

    found = critical_point(loss, torch.tensor([0.2, 0.7]).double())
    torch.testing.assert_close(found, torch.zeros(2).double(), atol=1e-7, rtol=0)
    found = critical_point(loss, torch.tensor([0.9, -0.3]).double())
    torch.testing.assert_close(found, torch.tensor([1.0, 0.0]).double(), atol=1e-7, rtol=0)


def test_zero_is_a_critical_point_of_the_network_whose_index_is_known():
    """At 0 the Hessian is 2 decay + [[0, C], [C', 0]], C = -2 X'Y / N for each hidden unit."""
    loss, size = small_loss(2, 5, 0)
    zero = torch.zeros(size).double()
    torch.testing.assert_close(torch.func.grad(loss)(zero), zero)
    values = torch.linalg.eigvalsh(torch.func.hessian(loss)(zero))
    mean = 2 * 3e-3
    torch.testing.assert_close(values + values.flip(0), torch.full_like(values, 2 * mean))
    assert _of(values.numpy())["index"] == float((values < 0).double().mean())


def test_a_random_matrix_has_a_semicircle():
    A = np.random.default_rng(0).normal(size=(300, 300))
    values = np.linalg.eigvalsh(A + A.T)
    numbers = _of(values)
    assert numbers["fourth_moment"] == pytest.approx(2, abs=0.05)
    assert numbers["index"] == pytest.approx(numbers["semicircle_index"], abs=0.02)
    np.testing.assert_allclose(
        numbers["spectrum/eigenvalues"], numbers["spectrum/semicircle"], atol=0.05
    )
    assert (semicircle_below(-2), semicircle_below(0), semicircle_below(3)) == (0, 0.5, 1)


def world(slope, moment):
    rows = [
        {
            "seed": seed,
            "epochs": epochs,
            "loss": loss,
            "index": max(0.0, 0.2 + slope * (loss - 0.7) + 0.001 * seed),
            "minimum": (loss < 0.6) == (slope > 0),
            "smallest": -0.1 - slope * loss,
            "semicircle_index": max(0.0, 0.2 + slope * (loss - 0.7)) * moment / 2,
            "fourth_moment": moment + 0.01 * seed,
            "near_zero": 0.3 if moment > 1 else 0.01,
        }
        for seed in range(4)
        for epochs, loss in enumerate((0.5 + 0.01 * seed, 0.7, 0.9))
    ]
    return Runs(tuple(rows), (), Path("nowhere"))


def test_claims_on_a_world_as_the_papers_have_it_and_on_another():
    assert {claim.test(world(0.5, 2.0)).verdict for claim in STUDY.claims} == {"holds"}
    assert {claim.test(world(-0.5, 0.5)).verdict for claim in STUDY.claims} == {"does not hold"}
