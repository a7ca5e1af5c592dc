"""The studies of the field's other claims: whole, small, and read without torch."""

import importlib
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from datafiles import write_cifar, write_idx
from lowland.experiment import Configuration
from lowland.experiment.subject import Subject
from lowland.measures import Measurements
from lowland.sweep import Trial
from lowland.training import train_many
from lowland_studies import find, of_the_field
from lowland_studies.evidence import Runs
from lowland_studies.field.architecture import trial as architecture
from lowland_studies.field.noise_escape import trial as noise_escape
from lowland_studies.field.optimisers import trial as optimisers
from lowland_studies.field.pictures import trial as pictures

STUDIES = of_the_field()


@pytest.mark.parametrize("study", STUDIES, ids=lambda study: study.name)
def test_studies_are_whole_and_their_trials_can_be_called(study):
    assert ":" not in study.name
    assert study.panels
    assert study.differences, "say what was scaled down"
    assert any(claim.kind == "claim" for claim in study.claims)
    assert len({claim.text for claim in study.claims}) == len(study.claims)
    for reading in study.readings:
        assert len(reading.quick) <= len(reading.grid)
        for run in (*reading.grid, *reading.quick):
            if isinstance(run, Trial):
                module, _, name = run.function.partition(":")
                assert callable(getattr(importlib.import_module(module), name))


class Row(dict):
    """A run that has a number in every column that is asked for."""

    random = np.random.default_rng(0)

    def __contains__(self, name):
        return True

    def __or__(self, other):
        return Row({**self, **other})

    def __missing__(self, name):
        return self.setdefault(name, self.random.uniform(0.1, 0.2))


def rows(grid):
    """Made-up runs: every fifth one a minimum, and the wider, the fewer errors."""
    documents = [run.to_dict() for run in grid]
    names = {name for document in documents for name in document}
    for i, document in enumerate(documents):
        outcome = {"minimum": i % 5 == 0, "train_error": 0.5 / document.get("width", 1) ** 2}
        yield Row(dict.fromkeys(names) | outcome | document)


@pytest.mark.parametrize(
    "study",
    [study for study in STUDIES if study.name != "travel"],  # its claims are about arrays
    ids=lambda study: study.name,
)
@pytest.mark.parametrize("version", ["quick", "original"])
def test_every_version_has_runs_for_every_claim(study, version):
    for reading in study.readings_of(version):
        runs = Runs(tuple(rows(reading.runs(version))), (), Path("nowhere"))
        without = [c.text for c in study.claims if not math.isfinite(c.test(runs).effect)]
        assert without == []


# Theories without a setting, networks that a trial cannot be told of, and figures of Feng & Tu.
WITHOUT = {"architecture", "reparametrisation", "travel", "xor"}


def test_what_was_scaled_down_has_an_original():
    assert {study.name for study in STUDIES if not study.readings_of("original")} == WITHOUT
    for study in STUDIES:
        assert ("Original: " in " ".join(study.differences)) == (study.name not in WITHOUT)


# What of an original is made smaller to see that it runs.
SMALLER = {
    "per_class": 5,
    "epochs": 2,
    "max_epochs": 2,
    "batch_size": 10,
    "hidden": 2,
    "iterations": 5,
    "clients": 2,
    "rounds": 1,
    "sweeps": 5,
    "weights": 51,
    "stop_loss": 10.0,
    "depth": 20,
}


def smaller(settings):
    few = {name: SMALLER[name] for name in settings if name in SMALLER}
    few |= {"width": min(settings["width"], 64)} if "width" in settings else {}
    if settings.get("network", "").endswith(":wrn_16_4"):
        few["network"] = "lowland_studies.residual:wrn_10_1"  # of the same kind
    return {**settings, **few}


def of_trials(study):
    """A run of each of the study's trials, by network and data."""
    grid = study.original or ()
    runs = [run for run in grid if isinstance(run, Trial)]
    return {(run.function, run.to_dict().get("network")): run for run in runs}.values()


@pytest.mark.slow
@pytest.mark.parametrize("study", [s for s in STUDIES if of_trials(s)], ids=lambda s: s.name)
def test_originals_run_on_few_samples(study, monkeypatch, tmp_path):
    for folder in ("MNIST", "FashionMNIST"):
        write_idx(tmp_path, folder, train=200, test=500)
    write_cifar(tmp_path, "data_batch_1", "test_batch", count=50)
    monkeypatch.setenv("LOWLAND_DATA", str(tmp_path))
    monkeypatch.setattr(noise_escape, "START", 10.0)
    monkeypatch.setattr(noise_escape, "END", 10.0)
    monkeypatch.setattr(noise_escape, "KICK", 1)
    monkeypatch.setattr(noise_escape, "SCHEDULED", 2)
    monkeypatch.setattr(pictures, "_STEPS", 3)
    for run in of_trials(study):
        module, _, name = run.function.partition(":")
        numbers = getattr(importlib.import_module(module), name)(
            smaller(dict(run.settings)), run.seed
        )
        assert all(np.isfinite(v).all() for v in numbers.values() if v is not None)


def original_configurations():
    """Of each original reading the first of each way to train, at the first rate and batch."""
    for study in STUDIES:
        for reading in study.readings_of("original"):
            ways = {}
            for run in reading.original:
                if isinstance(run, Configuration):
                    way = (run.optimizer, run.decay, run.dropout, run.init_scale)
                    ways.setdefault(way, run)
            for way, run in ways.items():
                yield pytest.param(run, id="-".join(map(str, (study.name, *way))))


@pytest.mark.slow
@pytest.mark.parametrize("run", list(original_configurations()))
def test_originals_learn_with_their_own_rates(run, monkeypatch, tmp_path):
    """A network of dead units would be left out of its study, and tell nothing."""
    for folder in ("MNIST", "FashionMNIST"):
        write_idx(tmp_path, folder, train=200, test=20, alike=True)
    write_cifar(tmp_path, "data_batch_1", "test_batch", count=200)
    monkeypatch.setenv("LOWLAND_DATA", str(tmp_path))
    few = replace(run, batch_size=min(run.batch_size, 200), max_epochs=20, measures=())
    subject = Subject.of(few)
    (training,) = train_many([subject.model], [subject.train], [subject.settings])
    assert training.failure is None
    assert training.losses[-1] < 1.5  # of 2.3 where every class is as likely


@pytest.mark.parametrize("module", [architecture, noise_escape, optimisers, pictures])
def test_a_trial_that_is_interrupted_while_it_measures_gives_no_numbers(module, monkeypatch):
    """Those that it has by then would be kept as a whole run."""
    cut = Measurements([], interrupted=True)
    monkeypatch.setattr(module, "measure", lambda problem, names: cut)
    if module is noise_escape:
        place = noise_escape.Place(per_class=2, batch_size=10)
        with pytest.raises(KeyboardInterrupt):
            place.sharpness(place.subject(0).model, 0)
        return
    monkeypatch.setattr(pictures, "_STEPS", 3)
    few = {"data": "digits", "per_class": 3, "batch_size": 10}
    if module is optimisers:
        few |= {"method": "sgd", "epochs": 1}
    else:
        few |= {"test_per_class": 2, "width": 12, "depth": 1, "skip": False, "norm": "none"}
        few |= {"dropout": 0.0, "decay": 0.0, "learning_rate": 0.05}
        few |= {"max_epochs": 1, "stop_loss": 9.0}
        few |= {"kind": "plain"} if module is architecture else {}
    with pytest.raises(KeyboardInterrupt):
        module.trial(few, 0)


def test_studies_are_called_by_their_modules():
    for study in STUDIES:
        place = f"lowland_studies.field.{study.name.replace('-', '_')}"
        module = importlib.import_module(place)
        if not hasattr(module, "STUDY"):
            module = importlib.import_module(f"{place}.study")
        assert module.STUDY is study
    assert find("field") == list(STUDIES)


def test_studies_are_read_without_torch():
    code = (
        "import sys; from lowland_studies import of_the_field; of_the_field(); "
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
