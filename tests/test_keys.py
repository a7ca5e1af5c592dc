"""The key of a run changes with the source that makes its numbers, and with nothing else."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import lowland
from commandline import command, environment
from lowland.sweep.keys import SILENT_ROOMS, TRAINING_ROOMS, code_digest
from test_rooms import FLOOR

SOURCE = Path(lowland.__file__).parent


@pytest.fixture
def package(tmp_path) -> Path:
    """A copy of our source, in another place and without caches."""
    leave = shutil.ignore_patterns("__pycache__")
    return Path(shutil.copytree(SOURCE, tmp_path / "elsewhere" / "lowland", ignore=leave))


def digests(package: Path) -> tuple[str, str]:
    """Of all that makes numbers, and of what trains."""
    code_digest.cache_clear()
    return code_digest(package=package), code_digest(TRAINING_ROOMS, package)


def test_the_same_source_has_the_same_digest_in_every_place(package):
    ours = digests(SOURCE)
    assert digests(package) == ours
    for file in package.rglob("*.py"):
        content = file.read_bytes()
        file.write_bytes(content.replace(b"\n", b"\r\n"))
        os.utime(file, (0, 0))
    assert digests(package) == ours


@pytest.mark.parametrize(
    ("file", "changes"),
    [
        ("training/many.py", (True, True)),
        ("training/descent.c", (True, True)),
        ("experiment/subject.py", (True, True)),
        ("losses/loss.py", (True, True)),
        ("measures/trace.py", (True, False)),
        ("curvature/operators.py", (True, False)),
        ("analysis.py", (True, False)),
        ("report/page.py", (False, False)),
        ("cli/making.py", (False, False)),
        ("studies/tsuzuku.py", (False, False)),
        ("sweep/store.py", (False, False)),
        ("__init__.py", (False, False)),
    ],
)
def test_it_changes_with_a_byte_of_what_makes_numbers(package, file, changes):
    before = digests(package)
    with open(package / file, "a") as source:
        source.write("\n")
    assert tuple(a != b for a, b in zip(before, digests(package), strict=True)) == changes


def test_files_that_swap_their_contents_or_names_are_other_source(package):
    first, second = package / "measures/trace.py", package / "measures/gap.py"
    before, contents = digests(package), (first.read_bytes(), second.read_bytes())
    first.write_bytes(contents[1])
    second.write_bytes(contents[0])
    swapped = digests(package)
    second.rename(package / "measures/other.py")
    assert len({before, swapped, digests(package)}) == 3


def test_every_room_is_known():
    """What is not called silent counts; what trains is a part of what counts."""
    rooms = FLOOR.keys() | {"__init__", "__main__"}
    assert rooms >= SILENT_ROOMS
    assert rooms - SILENT_ROOMS >= TRAINING_ROOMS
    assert {"problem", "curvature", "dual", "measures", "analysis"} <= rooms - SILENT_ROOMS


def test_whatever_training_imports_counts_as_training():
    """But for errors, and for the room that finds functions of the user."""
    code = "import sys, lowland.training, lowland.data; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    modules = [name.split(".") for name in done.stdout.split() if name.startswith("lowland.")]
    rooms = {parts[1] for parts in modules}
    assert "training" in rooms
    assert rooms - {"errors", "usercode"} <= TRAINING_ROOMS


GRID = """
data = "xor"
network = "2-4-2"
max_epochs = 3
n_sharp = 2
seed = [0, 1]
"""


@pytest.mark.slow
def test_runs_of_changed_source_are_done_again(tmp_path, package):
    """As commands of a copy of Lowland that is edited between them."""
    (tmp_path / "grid.toml").write_text(GRID)

    def printed(*arguments: str) -> Any:
        """What the command of the copy prints."""
        done = subprocess.run(
            command(*arguments),
            cwd=tmp_path,
            env=environment(PYTHONPATH=str(package.parent)),
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def sweep() -> tuple[int, set[str]]:
        """How many runs were done now, and the training keys of all runs in the store."""
        arguments = ("grid.toml", "--out", "out", "--executor", "serial", "--json", "--quiet")
        told = printed("sweep", *arguments)
        assert told["failed"] == {}
        runs = [json.loads(path.read_text()) for path in tmp_path.glob("out/runs/*/run.json")]
        return told["fresh"], {run["results"]["training"] for run in runs}

    def edit(file: str) -> None:
        with open(package / file, "a") as source:
            source.write("\n# changed\n")

    fresh, trainings = sweep()
    assert (fresh, len(trainings)) == (2, 2)
    edit("report/page.py")
    assert sweep() == (0, trainings)
    edit("analysis.py")  # measured again, and not trained again
    assert sweep() == (2, trainings)
    edit("losses/loss.py")
    assert printed("sweep", "--status", "out", "--json") == []  # none with this source
    fresh, more = sweep()
    assert (fresh, len(more)) == (2, 4)
    assert more > trainings
    (status,) = printed("sweep", "--status", "out", "--json")
    assert (status["runs"], status["done"]) == (2, 2)
