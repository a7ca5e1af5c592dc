"""Noise and escape: matrices with a known alignment, real gradients one by one, made-up runs."""

import copy

import pytest
import torch
from torch.nn.functional import cross_entropy

import lowland as ll
from lowland_studies.evidence import Runs
from lowland_studies.field.noise_escape.study import STUDY
from lowland_studies.field.noise_escape.trial import (
    TOP,
    Place,
    _barrier,
    compared,
    covariance,
    kick,
)


def test_planted_alignments_are_told():
    H = torch.diag(torch.arange(20.0, 0.0, -1.0)).double()
    same = compared(3 * H, H)
    assert same["cosine"] == pytest.approx(1)
    assert same["leading_part"] == pytest.approx(sum(range(11, 21)) / sum(range(21)))
    even = compared(torch.eye(20).double(), H)
    assert even["cosine"] == pytest.approx(even["isotropic_cosine"])
    assert even["leading_part"] == pytest.approx(even["isotropic_part"]) == TOP / 20


@pytest.mark.slow
def test_the_covariance_is_that_of_gradients_taken_one_by_one():
    numbers = covariance({"stop_loss": 2.0}, 0)
    model = Place().subject(0).model
    Place().train(model, 0, learning_rate=0.1, stop_loss=2.0)
    model.double()
    inputs, labels = Place().samples(0)
    rows = []
    for x, y in zip(inputs.double(), labels, strict=True):
        slopes = torch.autograd.grad(
            cross_entropy(model(x[None]), y[None]), list(model.parameters())
        )
        rows.append(torch.cat([slope.flatten() for slope in slopes]))
    sigma = torch.cov(torch.stack(rows).T, correction=0)
    problem = ll.Problem(model, "cross_entropy", train=(inputs.double(), labels))
    H = ll.hessian(problem) @ torch.eye(len(sigma), dtype=torch.float64)
    own = (sigma * H).sum() / sigma.norm() / H.norm()
    assert numbers["cosine"] == pytest.approx(float(own), rel=1e-6)


def test_a_network_has_no_barrier_to_itself_and_one_to_its_mirror_image():
    model = Place().subject(0).model
    Place().train(model, 0, learning_rate=0.2, stop_loss=0.5)
    assert _barrier(model, model, Place().samples(0)) == pytest.approx(0, abs=1e-6)
    mirrored = copy.deepcopy(model)
    hidden, last = (p for p in mirrored.parameters())
    order = torch.arange(20).flip(0)
    with torch.no_grad():
        hidden.copy_(hidden[order])
        last.copy_(last[:, order])
    assert _barrier(model, mirrored, Place().samples(0)) > 0.1


@pytest.mark.slow
def test_a_kick_at_the_small_rate_stays_in_the_basin():
    numbers = kick({"rate": 0.05}, 0)
    assert numbers["settled"] == 1
    assert numbers["barrier"] < 0.01


def world(tmp_path, *, as_claimed):
    """Runs in which all is as the overview says, or the other way round."""
    sign, rows = (1 if as_claimed else -1), []
    for trial in STUDY.grid:
        row = trial.to_dict()
        row = {"rate": None, "schedule": None, "stop_loss": None, "loss": None, "top": None, **row}
        high = 0.9 if as_claimed else 0.1
        row |= {"cosine": high, "leading_part": high, "isotropic_cosine": 0.4}
        row |= {"barrier": high - 0.05, "settled": float(row["rate"] != 3.2 or not as_claimed)}
        step = (row["rate"] or 0) + (row["schedule"] != "cosine") + (row["stop_loss"] or 0)
        row["largest_eigenvalue"] = 10 - sign * step + 0.01 * trial.seed
        rows.append(row)
    return Runs(tuple(rows), (), tmp_path)


@pytest.mark.parametrize(("as_claimed", "verdict"), [(True, "holds"), (False, "does not hold")])
def test_claims_follow_the_world(tmp_path, as_claimed, verdict):
    runs = world(tmp_path, as_claimed=as_claimed)
    verdicts = {claim.text: claim.test(runs).verdict for claim in STUDY.claims}
    assert verdicts == dict.fromkeys(verdicts, verdict)
