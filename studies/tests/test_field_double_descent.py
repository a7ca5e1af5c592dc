"""The study of double descent: its numbers, its threshold, and claims in made-up worlds."""

from pathlib import Path

import numpy as np
import pytest
import torch

from lowland.experiment import Configuration
from lowland.experiment.subject import Subject
from lowland.training import train
from lowland_studies.evidence import Runs
from lowland_studies.field.double_descent.study import (
    STUDY,
    beyond_the_threshold,
    up_to_the_threshold,
)
from lowland_studies.field.double_descent.trial import trial


def test_a_trial_measures_the_network_that_was_trained_for_all_epochs():
    settings = {"width": 6, "per_class": 5, "label_noise": 0.2, "max_epochs": 20}
    numbers = trial(settings, seed=1)
    named = {"data": "digits", "network": "64-6-10", "stop_loss": 1e-5, "data_seed": 1, "seed": 1}
    own = {name: value for name, value in settings.items() if name != "width"}
    subject = Subject.of(Configuration(**named, **own))
    train(subject.model, subject.train, subject.settings)
    with torch.no_grad():
        (train_loss, train_error), (test_loss, test_error) = (
            (
                float(torch.nn.functional.cross_entropy(subject.model(X), y)),
                float((subject.model(X).argmax(1) != y).double().mean()),
            )
            for X, y in (subject.train, subject.test)
        )
    assert numbers["train_error"] == pytest.approx(train_error)
    assert numbers["test_error"] == pytest.approx(test_error)
    assert numbers["gap"] == pytest.approx(test_loss - train_loss, rel=1e-3)
    assert numbers["total_w"] > 0


def world(sign=1):
    """A loss with its peak at the threshold, width 16, or its mirror image."""
    random = np.random.default_rng(2)
    rows = []
    for run in STUDY.grid:
        width = dict(run.settings)["width"]
        peak = sign * -abs(np.log2(width / 16)) + 10 + 0.01 * random.normal()
        row = dict.fromkeys(("test_error", "test_loss", "gap"), peak)
        error = max(0.0, 0.5 - 0.12 * np.log2(width))
        rows.append({**row, "width": width, "seed": run.seed, "train_error": error})
    return Runs(tuple(rows), (), Path("nowhere"))


def test_the_threshold_is_where_the_training_error_vanishes():
    # 0.5 - 0.12 log2(width) is below 0.2 from 6 on (0.19), and below 0.01 from 24 on.
    assert sorted(up_to_the_threshold(world()).by("width")) == [6, 8, 12, 16, 24]
    assert sorted(beyond_the_threshold(world()).by("width")) == [24, 32, 64, 128]


def test_claims_follow_the_world():
    claims = [claim for claim in STUDY.claims if claim.kind == "claim"]
    assert {claim.test(world()).verdict for claim in claims} == {"holds"}
    assert {claim.test(world(-1)).verdict for claim in claims} == {"does not hold"}
