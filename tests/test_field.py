"""The studies of the field's other claims: whole, small, and read without torch."""

import importlib
import subprocess
import sys

import pytest

from lowland.studies import field, find
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
