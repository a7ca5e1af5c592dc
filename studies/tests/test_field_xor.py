"""Parities: sharpness and steps against autograd, and the claims on made-up worlds."""

from pathlib import Path

import numpy as np
import pytest
import torch

import lowland as ll
from lowland_studies.evidence import Runs
from lowland_studies.field.xor.study import STUDY
from lowland_studies.field.xor.trial import TwoLayers, least_sharpness, parities, trial


def as_torch(network):
    bits = network.W.shape[1]
    model = torch.nn.Sequential(
        torch.nn.Linear(bits, len(network.a), bias=network.biases),
        torch.nn.ReLU(),
        torch.nn.Linear(len(network.a), 1, bias=False),
    ).double()
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor(network.W))
        model[2].weight.copy_(torch.tensor(network.a)[None])
        if network.biases:
            model[0].bias.copy_(torch.tensor(network.b))
    return model


@pytest.mark.parametrize("biases", [False, True])
def test_a_step_is_that_of_sam_and_the_sharpness_is_the_trace(biases):
    random = np.random.default_rng(0)
    X, y = parities(6, 5, random)
    network = TwoLayers.drawn(7, 5, biases, random)
    model = as_torch(network)
    optimizer = ll.optim.SAM(model.parameters(), torch.optim.SGD, lr=0.05, rho=0.2)
    for x, target in zip(X, y, strict=True):
        network.step(x, target, 0.05, 0.2)

        def closure(x=x, target=target):
            optimizer.zero_grad()
            loss = (model(torch.tensor(x)) - target).square().sum()
            loss.backward()
            return loss

        optimizer.step(closure)
    np.testing.assert_allclose(network.W, model[0].weight.detach(), rtol=1e-9)
    np.testing.assert_allclose(network.a, model[2].weight.detach()[0], rtol=1e-9)
    if biases:
        np.testing.assert_allclose(network.b, model[0].bias.detach(), rtol=1e-9)
    targets = torch.tensor(y)[:, None]
    problem = ll.Problem(model, "mse", train=(torch.tensor(X), targets))
    names = dict(model.named_parameters())

    def loss(*weights):
        outputs = torch.func.functional_call(model, dict(zip(names, weights, strict=True)), X_)
        return (outputs - targets).square().mean()

    X_ = torch.tensor(X)
    blocks = torch.autograd.functional.hessian(loss, tuple(names.values()))
    whole = sum(
        block[i].reshape(p.numel(), -1).trace()
        for i, (block, p) in enumerate(zip(blocks, names.values(), strict=True))
    )
    assert network.sharpness(X) == pytest.approx(float(whole))
    assert network.sharpness(X) == pytest.approx(ll.measure(problem, ["trace"])["trace"].value)


def test_both_kinds_of_flattest_networks_fit_and_are_as_flat_as_can_be():
    X, y = parities(40, 20, np.random.default_rng(1))
    for network in (TwoLayers.memorising((X, y)), TwoLayers.solving(20)):
        np.testing.assert_allclose(network.outputs(X), y)
        assert network.sharpness(X) == pytest.approx(least_sharpness(20, network.biases))
    fresh, parity = parities(200, 20, np.random.default_rng(2))
    np.testing.assert_allclose(TwoLayers.solving(20).outputs(fresh), parity)


def test_no_network_that_fits_is_below_the_least_sharpness():
    settings = {"bits": 4, "units": 40, "steps": 4000, "rate": 0.02, "samples": 10, "radius": 0.0}
    for bias in (0, 1):
        numbers = trial({**settings, "bias": bias}, 0)
        assert numbers["train_loss"] < 1e-6
        assert numbers["sharpness"] >= 1


def world(biased_error, biased_sharpness=1.02):
    rows = [
        {
            "seed": seed,
            "bias": bias,
            "radius": radius,
            "samples": samples,
            "test_error": (0.01 if bias == 0 else biased_error) + 0.001 * seed,
            "sharpness": (biased_sharpness if radius else 2.0) + 0.001 * seed,
            "memorised_sharpness": 1.0,
            "memorised_test_error": 0.5,
            "solving_sharpness": 1.0,
        }
        for seed in range(4)
        for bias in (0, 1)
        for radius, samples in ((0.1, 60), (0.1, 100), (0.1, 200), (0.0, 100))
    ]
    return Runs(tuple(rows), (), Path("nowhere"))


def test_claims_on_worlds_as_the_paper_has_them_and_the_other_way_round():
    claims = [claim for claim in STUDY.claims if claim.kind == "claim"]
    assert {claim.test(world(0.3)).verdict for claim in claims} == {"holds"}
    verdicts = [claim.test(world(0.001, 3.0)).verdict for claim in claims]
    assert verdicts == ["holds", *["does not hold"] * 5]
