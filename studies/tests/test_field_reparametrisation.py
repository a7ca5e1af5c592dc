"""Rescaled networks: the Hessian's formula against the Hessian, and claims on made-up worlds."""

from pathlib import Path

import numpy as np
import torch

import lowland as ll
from lowland.training import mlp
from lowland_studies.evidence import Runs
from lowland_studies.field.reparametrisation.study import STUDY
from lowland_studies.field.reparametrisation.trial import rescaled_hessian


def test_the_hessian_of_a_rescaled_network_is_the_rescaled_hessian():
    data = ll.data.load("digits", per_class=3)
    model = mlp((64, 5, 4, 10), seed=1).double()
    problem = ll.Problem(model, "cross_entropy", train=(data.train[0].double(), data.train[1]))
    other = ll.rescale(problem, "layers", 3.0)
    expected = rescaled_hessian(ll.hessian(problem).dense(), problem, other)
    torch.testing.assert_close(ll.hessian(other).dense(), expected)


def world(power, noisy):
    """Plain measures go with a power of the factor; the others stay."""
    rows = []
    for seed in range(4):
        for noise in (0.0, 0.3):
            for factor in (0.01, 1.0, 100.0):
                own = 1 + noise * noisy + 0.01 * seed
                plain = own * 10 ** (power * abs(np.log10(factor)))
                row = {"seed": seed, "label_noise": noise, "factor": factor, "output_change": 1e-15}
                for name in ("largest_eigenvalue", "trace", "ball_sharpness"):
                    row |= {name: plain, f"trained_{name}": own}
                for name, p in (("given_sigma_g", power), ("given_sigma_w", -power)):
                    row |= {name: own * factor**p, f"trained_{name}": own}
                steady = ("normalized_sharpness", "balanced_sigma_g", "balanced_sigma_w")
                for name in (*steady, "given_sharp"):
                    row |= {name: own}
                rows.append({**row, "gap": own})
    return Runs(tuple(rows), (), Path("nowhere"))


def test_claims_on_a_world_as_the_paper_has_it_and_one_without_rescaling():
    assert {claim.test(world(2, 5)).verdict for claim in STUDY.claims} == {"holds"}
    claims = [claim for claim in STUDY.claims if claim.kind == "claim"]
    assert {claim.test(world(0, 5)).verdict for claim in claims} == {"does not hold"}
