"""The key of a trial changes with the files that it imports, and with no other study."""

import shutil
from pathlib import Path

import pytest

import lowland_studies
from lowland.sweep import Trial
from lowland.sweep.source import Closure, digest
from lowland_studies import STUDIES

SOURCE = Path(lowland_studies.__file__).parent
TRIAL = "lowland_studies.field.architecture.trial"


@pytest.fixture
def package(tmp_path, monkeypatch) -> Path:
    """A copy of the studies in the current directory, where modules are looked for first."""
    monkeypatch.chdir(tmp_path)
    leave = shutil.ignore_patterns("__pycache__")
    return Path(shutil.copytree(SOURCE, tmp_path / "lowland_studies", ignore=leave))


def now() -> str | None:
    digest.cache_clear()
    return digest(frozenset({TRIAL}))


@pytest.mark.parametrize(
    ("file", "counts"),
    [
        ("field/architecture/trial.py", True),
        ("field/pictures/trial.py", True),
        ("residual.py", True),
        ("field/architecture/study.py", False),
        ("field/xor/trial.py", False),
        ("claims.py", False),
        ("catalogue.py", False),
        ("__init__.py", False),
    ],
)
def test_a_key_changes_with_what_its_trial_imports(package, file, counts):
    before = now()
    assert before is not None
    with open(package / file, "a") as source:
        source.write("\n# a comment\n")
    assert now() == before
    with open(package / file, "a") as source:
        if file == "__init__.py":
            source.write("__version__ = 'another'\n")
        else:
            source.write("added = 1\n")
    assert (now() != before) == counts


def test_no_trial_brings_in_what_judges_it():
    runs = [run for s in STUDIES.values() for r in s.readings for run in (*r.grid, *r.quick)]
    functions = {run.function.partition(":")[0] for run in runs if isinstance(run, Trial)}
    assert len(functions) >= 15
    for module in functions:
        closure = Closure()
        assert closure.root(module)
        judging = {f"lowland_studies.{name}" for name in ("claims", "pages", "reproduction")}
        assert not judging & closure.modules.keys(), module
