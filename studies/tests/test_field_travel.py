"""Feng & Tu's claims elsewhere: the same settings everywhere, and a verdict that can be either."""

from pathlib import Path

import numpy as np
import pytest

from lowland_studies.evidence import Runs
from lowland_studies.feng_tu.grids import PLAIN
from lowland_studies.field.travel import _PLACES, STUDY, _at_hand

KEYS = ("learning_rate", "batch_size", "decay", "init_scale")


@pytest.mark.parametrize("reading", STUDY.readings, ids=lambda reading: reading.name)
def test_every_place_varies_the_same_settings_around_the_plain_run(reading):
    for grid, values in ((reading.grid, 3), (reading.quick, 2)):
        for key in KEYS:
            assert len({getattr(run, key) for run in grid}) == values
        for run in grid:  # what `only` takes for the plain value is that of the others
            assert sum(getattr(run, key) != PLAIN[key] for key in KEYS) <= 1
    by_outputs = {run.dual for run in reading.grid} == {"output"}
    assert by_outputs == reading.name.startswith("residual")


def test_places_have_files_of_their_own():
    readings = STUDY.readings
    assert len({reading.suffix for reading in readings}) == len(readings)
    assert len({reading.name for reading in readings}) == len(readings)


def test_every_data_set_is_met_by_all_three_networks():
    pairs = [tuple(place.name.split(", ")) for place in _PLACES]
    networks, data = ({pair[i] for pair in pairs} for i in (0, 1))
    assert networks == {"MLP", "LeNet", "residual"}
    assert data == {"MNIST", "digits", "CIFAR-10", "Fashion"}
    assert sorted(pairs) == sorted((network, name) for network in networks for name in data)


def test_places_whose_data_is_not_at_hand_are_left_out(monkeypatch, tmp_path):
    def data():
        return {place.settings["data"] for place in _PLACES if _at_hand(place)}

    monkeypatch.delenv("LOWLAND_DATA", raising=False)
    assert data() == {"digits", "mnist5k"}
    monkeypatch.setenv("LOWLAND_DATA", str(tmp_path))
    assert data() == {"digits", "mnist5k"}
    (tmp_path / "cifar-10-batches-py").mkdir()
    assert data() == {"digits", "mnist5k", "cifar10"}


def verdicts(paper):
    """Where a setting changes one part of the gap, as the paper says, or the other."""
    rng, rows = np.random.default_rng(0), []
    for run in STUDY.grid:
        settings = run.to_dict()
        sgd = np.log(settings["batch_size"] / settings["learning_rate"] / 250) / 3
        size = settings["init_scale"] - 1 - 100 * settings["decay"]
        sharp, flat = (1 + sgd, 1 + size) if paper else (1 - size - 0.2 * sgd, 1 - sgd - 0.2 * size)
        numbers = {"sharp": sharp, "flat": flat, "eq11": sharp + flat}
        noisy = {name: value + 0.01 * rng.normal() for name, value in numbers.items()}
        rows.append({**settings, "key": str(len(rows)), **noisy})
    runs = Runs(tuple(rows), (), Path())
    about_parts = [claim for claim in STUDY.claims if "gap" in claim.text or "More" in claim.text]
    assert len(about_parts) == 16
    return {claim.test(runs).verdict for claim in about_parts}


def test_claims_about_the_gap_hold_in_the_papers_world_and_not_in_its_opposite():
    assert verdicts(paper=True) == {"holds"}
    assert verdicts(paper=False) == {"does not hold"}
