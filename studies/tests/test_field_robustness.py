"""Robustness: geometric complexity and averaging by closed forms, and claims on made-up worlds."""

from pathlib import Path

import pytest
import torch
from torch import nn

from lowland_studies.evidence import Runs
from lowland_studies.field.robustness.study import STUDY
from lowland_studies.field.robustness.trial import average, clients, geometric_complexity


def test_the_geometric_complexity_of_a_linear_and_of_a_relu_network():
    linear = nn.Sequential(nn.Flatten(), nn.Linear(4, 3)).requires_grad_(False)
    X = torch.randn(5, 1, 2, 2)
    assert geometric_complexity(linear, X) == pytest.approx(float(linear[1].weight.square().sum()))
    relu = nn.Sequential(nn.Flatten(), nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)).double()
    relu.requires_grad_(False)
    whole = 0.0
    for x in X.double():
        active = (relu[1](x.flatten()) > 0).double()
        slope = relu[3].weight @ torch.diag(active) @ relu[1].weight
        whole += float(slope.square().sum()) / len(X)
    assert geometric_complexity(relu, X.double()) == pytest.approx(whole)


def test_clients_share_the_samples_and_unequal_ones_have_two_classes_each():
    X, y = torch.arange(60.0)[:, None], torch.arange(60) % 10
    for unequal in (False, True):
        parts = clients((X, y), 5, unequal, 0)
        assert torch.equal(torch.cat([x for x, _ in parts]).flatten().sort()[0], X.flatten())
        assert all(torch.equal(labels, x.flatten().long() % 10) for x, labels in parts)
        assert {len(labels) for _, labels in parts} == {12}
        assert all(len(set(labels.tolist())) == 2 for _, labels in parts) == unequal


def test_the_average_of_models_is_that_of_their_weights():
    models = [nn.Linear(2, 2).requires_grad_(False) for _ in range(3)]
    model = nn.Linear(2, 2).requires_grad_(False)
    average(model, models)
    torch.testing.assert_close(model.weight, sum(m.weight for m in models) / 3)
    torch.testing.assert_close(model.bias, sum(m.bias for m in models) / 3)


def world(sign):
    rows = []
    for seed in range(4):
        for radius in (0.0, 0.1, 0.2):
            for step, rate in enumerate((0.03, 0.1, 0.3)):
                trace = 3 - radius * 5 - 0.1 * step + 0.01 * seed
                answer = 0.3 + sign * 0.05 * trace + 0.001 * ((seed + step) % 2)
                rows.append(
                    {"part": "training", "seed": seed, "radius": radius, "learning_rate": rate}
                    | {"trace": trace, "normalized_sharpness": trace, "unequal": None}
                    | dict.fromkeys(("noise_error", "shift_error", "calibration_error"), answer)
                    | {"geometric_complexity": answer}
                )
        for radius in (0.0, 0.1):
            for unequal in (0, 1):
                error = 0.2 + sign * unequal * (0.1 - 0.5 * radius) + 0.001 * seed
                row = {"part": "averaging", "seed": seed, "radius": radius, "unequal": unequal}
                rows.append({**row, "test_error": error})
    return Runs(tuple(rows), (), Path("nowhere"))


def test_claims_on_a_world_as_they_have_it_and_on_its_reverse():
    assert {claim.test(world(1)).verdict for claim in STUDY.claims} == {"holds"}
    assert {claim.test(world(-1)).verdict for claim in STUDY.claims} == {"does not hold"}
