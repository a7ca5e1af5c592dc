"""Pairs of trained networks and the ways between them, and what the claims make of them."""

from pathlib import Path

import numpy as np
import pytest
import torch

from lowland_studies.evidence import Runs
from lowland_studies.field.mode_connectivity.study import STUDY
from lowland_studies.field.mode_connectivity.trial import trained_pair, trial

SETTINGS = {
    "data": "digits",
    "inputs": 64,
    "width": 8,
    "per_class": 5,
    "stop_loss": 1e-9,
    "max_epochs": 3,
    "batch_size": 10,
}


def test_the_line_is_that_between_the_trained_networks():
    """Against a plain interpolation of the weights."""
    own = {**SETTINGS, "common": None}
    numbers = trial({**own, "iterations": 5}, seed=1)
    problem, (a, b), converged = trained_pair(own, seed=1)
    batch = problem.train.take(slice(None))
    first, second = ({k: w.clone() for k, w in m.state_dict().items()} for m in (a, b))
    losses = []
    for t in np.linspace(0, 1, 25):
        a.load_state_dict({k: (1 - t) * first[k] + t * second[k] for k in first})
        loss = torch.nn.functional.cross_entropy(a(batch.inputs), batch.targets)
        losses.append(loss.item())
    assert not converged
    assert not numbers["converged"]
    assert numbers["straight"] == pytest.approx(losses, rel=1e-4)
    chord = np.linspace(losses[0], losses[-1], 25)
    assert numbers["straight_barrier"] == pytest.approx(max(losses - chord), abs=1e-4)
    assert numbers["aligned_distance"] <= numbers["distance"] <= numbers["curve_length"] + 1e-5


@pytest.mark.parametrize(("common", "near"), [(None, False), (0, True), (2, True)])
def test_networks_begin_together_or_apart(common, near):
    """With steps of next to no length they end where they began."""
    own = {**SETTINGS, "common": common, "learning_rate": 1e-6, "max_epochs": 1}
    _, (a, b), _ = trained_pair(own, seed=0)
    distance = sum(
        (p - q).norm().item() for p, q in zip(a.parameters(), b.parameters(), strict=True)
    )
    assert distance > 0
    assert (distance < 1e-3) == near


def verdicts(paper):
    """On barriers as the papers have them, or where lines are free and curves are not."""
    rng, rows = np.random.default_rng(0), []
    for run in STUDY.grid:
        settings, noise = run.to_dict(), rng.uniform(0.97, 1.03)
        apart, width = settings["common"] is None, settings["width"]
        line = 3 * (16 / width) ** 0.3 if apart else 1e-3
        aligned = line * (0.02 if width == 256 else 0.2)
        numbers = {
            "straight_barrier": line,
            "aligned_barrier": aligned,
            "renormalised_barrier": aligned / 2,
            "curve_barrier": 0.01 * line,
            "straight_train_error": 0.5,
            "straight_test_error_rise": 0.4 if apart else 0.001,
            "curve_test_error_rise": 0.01,
            "distance": 20.0,
            "aligned_distance": 15.0 if apart else 20.0,
        }
        opposite = {
            "straight_barrier": 0.01 * width,
            "aligned_barrier": 0.02 * width,
            "renormalised_barrier": 0.03 * width,
            "curve_barrier": 5.0,
            "straight_train_error": 0.0,
            "straight_test_error_rise": 0.4,
            "curve_test_error_rise": 0.3,
            "distance": 20.0,
            "aligned_distance": 15.0,
        }
        chosen = numbers if paper else opposite
        rows.append(
            {**settings, "key": str(len(rows)), **{k: v * noise for k, v in chosen.items()}}
        )
    runs = Runs(tuple(rows), (), Path(), settings=("width", "common"))
    return {claim.test(runs).verdict for claim in STUDY.claims}


def test_claims_hold_in_the_papers_world_and_not_in_its_opposite():
    assert verdicts(paper=True) == {"holds"}
    assert verdicts(paper=False) == {"does not hold"}
