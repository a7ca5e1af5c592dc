"""The study of width: its noise against a quadratic loss, and its claims in made-up worlds."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch

import lowland as ll
from lowland_studies.evidence import Runs
from lowland_studies.field.width.study import STUDY
from lowland_studies.field.width.trial import expected_sharpness, size_of, trial


def test_the_rise_of_a_quadratic_loss_is_half_the_curvature_along_each_draw():
    """E[L(w + s z)] - L(w) = s g z + s^2 z H z / 2, with the draws that were made."""
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 1, bias=False).double()
    X, y = torch.randn(20, 3).double(), torch.randn(20, 1).double()
    problem = ll.Problem(model, "mse", train=(X, y))
    rise = expected_sharpness(problem, seed=5)
    random = torch.Generator().manual_seed(5)
    draws = torch.stack([torch.randn(1, 3, generator=random)[0].double() for _ in range(5)])
    w = model.weight.detach()[0]
    slope, H = 2 / 20 * X.T @ (X @ w - y[:, 0]), 2 / 20 * X.T @ X
    for s in (0.1, 0.7):
        expected = (s * draws @ slope + s**2 * ((draws @ H) * draws).sum(1) / 2).mean()
        assert rise(s) == pytest.approx(float(expected), rel=1e-9)


def test_the_size_of_noise_is_found_where_it_is_known():
    assert size_of(lambda s: 3 * s**2, 0.1) == pytest.approx(math.sqrt(0.1 / 3), rel=1e-3)


def test_a_trial_has_kl_and_sharpness_of_its_own_network():
    settings = {"width": 8, "per_class": 5, "label_noise": 0.0, "max_epochs": 300}
    numbers = trial(settings, seed=1)
    assert numbers["converged"]
    assert numbers["train_error"] == 0
    sizes = numbers["weight_norm"] / np.sqrt(2 * numbers["curve/kl"])  # KL = |w|^2 / (2 s^2)
    assert sizes == pytest.approx(np.geomspace(0.01, 0.2, 10), rel=1e-5)
    order = np.argsort(numbers["curve/sharpness"])
    kl = np.interp(0.1, numbers["curve/sharpness"][order], np.log(numbers["curve/kl"])[order])
    assert math.log(numbers["kl"]) == pytest.approx(float(kl), abs=0.3)


def world(sign):
    """Runs in which wide networks are better and KL tells labels apart, or the other way round."""
    random = np.random.default_rng(3)
    rows = []
    for run in STUDY.grid:
        own = dict(run.settings)
        better = sign * 0.02 * math.log(own["width"])
        easier = sign * 0.05 * math.log(own["per_class"])
        is_random = own["label_noise"] == 1
        kl = 4.0 + is_random * (1 + easier * 4) - (0 if is_random else easier)
        noise = 0.005 * random.normal()
        error = 0.9 + noise if is_random else 0.5 - better - easier + noise
        columns = {"path_norm": kl, "spectral_norms": kl, "kl": 10**kl * own["per_class"]}
        rows.append(
            {
                **own,
                **columns,
                "seed": run.seed,
                "test_error": error,
                "samples": 10 * own["per_class"],
                "keskar_sharpness": random.normal(),
                "trace": 1.0,
            }
        )
    return Runs(tuple(rows), (), Path("nowhere"))


def test_claims_hold_in_a_world_as_the_papers_say_and_fail_in_its_reverse():
    claims = [claim for claim in STUDY.claims if claim.kind == "claim"]
    assert [claim.test(world(1)).verdict for claim in claims] == ["holds"] * len(claims)
    reverse = {claim.text: claim.test(world(-1)).verdict for claim in claims}
    for text in (
        "At equal training error, the test error falls as hidden units are added.",
        "With 5 % random labels it falls as well.",
        "The more images, the more so.",
    ):
        assert reverse[text] == "does not hold"
