"""The studies of the field's other claims: whole, small, and read without torch."""

import importlib
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from lowland.studies import field, find
from lowland.studies.evidence import Runs
from lowland.sweep import Trial

STUDIES = field.studies()


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
    """Made-up runs: every third one a minimum, and the wider, the fewer errors."""
    documents = [run.to_dict() for run in grid]
    names = {name for document in documents for name in document}
    for i, document in enumerate(documents):
        outcome = {"minimum": i % 3 == 0, "train_error": 0.5 / document.get("width", 1) ** 2}
        yield Row(dict.fromkeys(names) | outcome | document)


@pytest.mark.parametrize(
    "study",
    [study for study in STUDIES if study.name != "travel"],  # its claims are about arrays
    ids=lambda study: study.name,
)
def test_even_the_quick_version_has_runs_for_every_claim(study):
    for reading in study.readings:
        runs = Runs(tuple(rows(reading.quick)), (), Path("nowhere"))
        without = [c.text for c in study.claims if not math.isfinite(c.test(runs).effect)]
        assert without == []


def test_studies_are_called_by_their_modules():
    for study in STUDIES:
        module = importlib.import_module(f"lowland.studies.field.{study.name.replace('-', '_')}")
        assert module.STUDY is study
    assert find("field") == list(STUDIES)


def test_studies_are_read_without_torch():
    code = (
        "import sys; from lowland.studies import field; field.studies(); "
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
