"""The rooms of the house: which may import which. The architecture is this table."""

import ast
import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import lowland
from insides import ENTRANCES, INSIDE

SOURCE = Path(lowland.__file__).parent

# From the top floor down: a room imports only from floors above its own. Rooms on one floor do not
# know each other. A room may stand here before it is built.
FLOORS = (
    ("errors", "wording"),
    ("figures", "reading"),
    ("findings", "manifest", "budget"),
    ("atomic", "distributed", "usercode"),
    ("losses", "batches"),
    ("problem",),
    ("data", "checkpoint"),
    ("curvature",),
    ("rescaling",),
    ("dual",),
    ("measures",),
    ("landscape", "radius"),
    ("probe",),
    ("reference",),
    ("report",),
    ("optim",),
    ("training",),
    ("results",),
    ("comparison", "pictures"),
    ("analysis",),
    ("experiment",),
    ("sweep",),
    ("integrations",),
    ("cli",),
)
FLOOR = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}

# What shows saved results needs no torch, so it sees nothing of what computes them.
ONLY = {
    "findings": {"errors", "figures"},
    "report": {"findings", "figures", "reference", "errors", "wording"},
    "results": {
        *("findings", "figures", "report", "atomic", "manifest", "errors", "reading", "wording"),
    },
    "comparison": {"findings", "results", "report", "atomic", "errors"},
    "pictures": {"findings", "figures", "report", "atomic", "manifest", "errors", "reading"},
}


# Rooms of several files that others enter by their door only, the names in their __init__.
DOORS = (
    "batches",
    "curvature",
    "dual",
    "findings",
    "landscape",
    "losses",
    "problem",
    "data",
    "optim",
    "training",
)


def room_of(file: Path, source: Path = SOURCE) -> str:
    """The first part of the module's name; the package's own files are its doors, '' and 'cli'."""
    parts = file.relative_to(source).with_suffix("").parts
    doors = {("__init__",): "", ("__main__",): "cli"}
    return doors.get(parts, parts[0])


def imports(text: str, module: str) -> Iterator[tuple[int, str]]:
    """Line and full name of every import from lowland, wherever in the file it stands.

    ``module`` is the dotted name of the package that the file lies in, for relative imports.
    """
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            up = module.split(".")[: len(module.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*up, *([node.module] if node.module else [])])
            names = [f"{base}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            names = [arg.value for arg in node.args if isinstance(arg, ast.Constant)]
        else:
            continue
        yield from ((node.lineno, n) for n in names if n == "lowland" or n.startswith("lowland."))


def faults(room: str, text: str, module: str) -> list[str]:
    """What the file imports although its room may not."""
    found = []
    for line, name in imports(text, module):
        other = name.split(".")[1] if "." in name else ""
        if other in (room, "__version__"):
            continue
        if other not in FLOOR:
            found.append(
                f"line {line}: {name} is no room; import from the room itself, or add a new room "
                "to FLOORS in tests/test_rooms.py"
            )
        elif FLOOR[other] >= FLOOR[room] or other not in ONLY.get(room, FLOOR):
            found.append(f"line {line}: {room} may not import {name}")
        elif other in DOORS and name.count(".") > 2:
            found.append(f"line {line}: import {name} from lowland.{other}, the room's door")
    return found


FILES = sorted(SOURCE.rglob("*.py"))


@pytest.mark.parametrize("file", FILES, ids=lambda f: str(f.relative_to(SOURCE)))
def test_a_room_imports_only_from_rooms_above_it(file):
    room = room_of(file)
    module = ".".join(("lowland", *file.relative_to(SOURCE).parts[:-1]))
    if room == "":  # the front door: it hands out names of every room, but starts no command line
        taken = [name for _, name in imports(file.read_text(), module)]
        assert not [name for name in taken if name.startswith("lowland.cli")]
        return
    assert room in FLOOR, (
        f"{file.name} is in a room that is not in the house: add {room!r} to FLOORS in "
        "tests/test_rooms.py, below all that it imports"
    )
    assert faults(room, file.read_text(), module) == []


@pytest.mark.parametrize(
    ("room", "text"),
    [
        ("measures", "from lowland.report import render"),
        ("measures", "from lowland import report"),
        ("measures", "from lowland.curvature.lanczos import eigsh"),
        ("measures", "import lowland.report.axes"),
        ("measures", "def f():\n    from lowland.analysis import analyze"),
        ("measures", "if TYPE_CHECKING:\n    from lowland.results import Analysis"),
        ("measures", "from ..training import sgd"),
        ("measures", "from .. import training"),
        ("measures", "import importlib\nimportlib.import_module('lowland.report')"),
        ("losses", "from lowland.batches import Batch"),
        ("report", "from lowland.problem import Problem"),
        ("results", "from lowland.checkpoint import load_weights"),
        ("analysis", "from lowland.cli import main"),
        ("analysis", "from lowland import Problem"),
        ("analysis", "import lowland"),
        ("analysis", "from lowland.attic import thing"),
    ],
)
def test_the_rule_has_teeth(room, text):
    assert len(faults(room, text, f"lowland.{room}")) == 1


@pytest.mark.parametrize(
    ("room", "text"),
    [
        ("measures", "from lowland.curvature import eigsh"),
        ("measures", "from lowland.measures.registry import register"),
        ("measures", "from .registry import register"),
        ("measures", "from ..problem import Problem"),
        ("analysis", "from lowland import __version__, report"),
        ("report", "from lowland.errors import InputError"),
        ("errors", "import torch, importlib\nimportlib.import_module(name)"),
    ],
)
def test_the_rule_lets_pass(room, text):
    assert faults(room, text, f"lowland.{room}") == []


def test_the_library_imports_nothing_of_the_studies():
    """They are a distribution of their own: it has them from an entry point alone."""
    named = {"lowland_studies", "lowland-studies"}
    for file in FILES:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            else:
                is_code = isinstance(node, ast.Call) and "import" in ast.unparse(node.func)
                names = [ast.unparse(arg).strip("'") for arg in node.args] if is_code else []
            assert not [n for n in names if n.partition(".")[0] in named], file


TESTS = [*Path(__file__).parent.glob("*.py"), *SOURCE.parents[1].glob("studies/tests/*.py")]


def insides(text: str) -> set[str]:
    """Return the files of rooms that a test imports, as ``room.file``, unless they are doors."""
    found = {inside(name.split(".")[1:]) for _, name in imports(text, "tests")}
    return {name for name in found if name and not name.startswith(ENTRANCES)}


def inside(parts: list[str]) -> str:
    """Return the part of an imported name that is a file in a room; nothing for a door's name."""
    room, *rest = parts or [""]
    door = importlib.import_module(f"lowland.{room}") if len(rest) == 1 else None
    if rest and rest[0] in getattr(door, "__all__", ()):
        return ""
    while rest and not SOURCE.joinpath(room, *rest).with_suffix(".py").is_file():
        rest.pop()
    return ".".join((room, *rest)) if rest else ""


@pytest.mark.parametrize("file", TESTS, ids=lambda f: f.stem)
def test_tests_go_through_the_doors(file):
    found, known = insides(file.read_text()), set(INSIDE.get(file.stem, ()))
    assert not found - known, "import these names from the rooms, or test what users see"
    assert not known - found, "gone: take it from tests/insides.py, which only ever shrinks"


def test_the_tests_rule_has_teeth():
    told = {
        "from lowland.curvature.lanczos import eigsh": {"curvature.lanczos"},
        "def f():\n    from lowland.measures.shared import ray": {"measures.shared.ray"},
        "import lowland.sweep.keys": {"sweep.keys"},
        "from lowland.measures.sharing import once": {"measures.sharing"},
        "from lowland.dual import shifts, Pairs": {"dual.shifts"},
        "from lowland.measures import sharing, measure": set(),  # names of the door
        "from lowland.experiment.subject import Subject": set(),
        "from lowland.problem import Problem\nimport lowland as ll": set(),
    }
    assert {text: insides(text) for text in told} == told
    assert set(INSIDE) <= {file.stem for file in TESTS}


def test_no_drawers_for_odds_and_ends():
    odds = {"util", "utils", "helper", "helpers", "common", "misc"}
    assert not [f for f in [*FILES, *(f.parent for f in FILES)] if f.stem in odds]


def test_every_public_name_is_there():
    assert len(set(lowland.__all__)) == len(lowland.__all__)
    for name in lowland.__all__:
        assert getattr(lowland, name) is not None
    assert set(lowland.__all__) <= set(dir(lowland))
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = lowland.no_such_name


def test_one_network_is_trained_without_the_room_for_many(tmp_path):
    """By `lowland train`, as a process; and `lowland analyze` has the same source for its own."""
    options = "--data xor --network 2-4-2 --max-epochs 1 --n-sharp 2 --measures trace --quiet"
    code = f"""if True:
        import sys
        from lowland.cli import main
        sys.argv = ["lowland", "train", *"{options}".split()]
        try:
            main()
        finally:
            open("modules", "w").write(" ".join(sys.modules))
    """
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "lowland-report" / "results.json").is_file()
    modules = (tmp_path / "modules").read_text().split()
    assert "lowland.experiment.recording" in modules
    assert [name for name in modules if name.startswith("lowland.sweep")] == []
    analyze = [name for _, name in imports((SOURCE / "cli/verbs.py").read_text(), "lowland.cli")]
    assert "lowland.experiment.subject.Subject" in analyze
    assert [name for name in analyze if name.startswith("lowland.sweep")] == []


def test_what_shows_and_what_starts_imports_no_torch():
    """Each in turn in one process: the first that imports torch is named."""
    code = """if True:
        import sys
        for name in ("lowland", "lowland.cli", "lowland.cli.verbs", "lowland.cli.making",
                     "lowland.errors", "lowland.atomic",
                     "lowland.findings", "lowland.report", "lowland.results",
                     "lowland.comparison"):
            __import__(name)
            assert "torch" not in sys.modules, name
            if name == "lowland.cli.making":
                assert "numpy" not in sys.modules, name
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
