"""The key of a run changes with the code that the run imports, and with nothing else."""

import ast
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
from lowland.experiment import Configuration
from lowland.sweep import key, trials
from lowland.sweep.perform import perform
from lowland.sweep.source import SILENT_ROOMS, Closure, digest

SOURCE = Path(lowland.__file__).parent
RUN = frozenset({"lowland.sweep.perform"})
TRAINING = frozenset({"lowland.experiment.subject", "lowland.training"})


@pytest.fixture
def package(tmp_path) -> Path:
    """A copy of our source, in another place and without caches."""
    leave = shutil.ignore_patterns("__pycache__")
    return Path(shutil.copytree(SOURCE, tmp_path / "elsewhere" / "lowland", ignore=leave))


@pytest.fixture
def shop(tmp_path, monkeypatch) -> Path:
    """A package of the user's in the current directory: a door, parts behind it and beside it."""
    monkeypatch.chdir(tmp_path)
    digest.cache_clear()
    folder = tmp_path / "shop"
    folder.mkdir()
    (folder / "__init__.py").write_text(
        "from shop.part import thing\nfrom shop.other import stuff as goods\n"
        "__all__ = ['goods', 'thing']\n"
    )
    for name in ("part", "other", "unseen"):
        (folder / f"{name}.py").write_text("def thing():\n    return 1\n\n\nstuff = thing\n")
    return folder


def digests(package: Path = SOURCE) -> tuple[str | None, str | None]:
    """Of all that a run of a network imports, and of what trains it."""
    digest.cache_clear()
    return digest(RUN, package), digest(TRAINING, package)


def modules(*roots: str) -> set[str]:
    closure = Closure()
    assert all(closure.root(root) for root in roots)
    return set(closure.modules)


def other_layout(text: str) -> str:
    """The same code: no comments, one line for each statement, and other docstrings."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            node.value = ast.Constant("Another docstring.")
    return f"# A comment.\n{ast.unparse(tree)}\n"


def test_the_same_source_has_the_same_digest_in_every_place(package):
    ours = digests(SOURCE)
    assert None not in ours
    assert digests(package) == ours
    for file in package.rglob("*.py"):
        content = file.read_bytes()
        file.write_bytes(content.replace(b"\n", b"\r\n"))
        os.utime(file, (0, 0))
    assert digests(package) == ours


CHANGES = [
    ("training/many.py", (True, True)),
    ("experiment/subject.py", (True, True)),
    ("measures/trace.py", (True, False)),
    ("curvature/uses/dense.py", (True, False)),
    ("sweep/perform.py", (True, False)),
    ("report/page.py", (False, False)),
    ("sweep/store.py", (False, False)),
    ("curvature/__init__.py", (False, False)),
    ("__init__.py", (False, False)),
]


def test_it_changes_with_the_code_that_is_imported_and_no_other(package):
    """And never with a comment, a docstring or another layout of the same code."""
    before = digests(package)
    for file, changes in CHANGES:
        path = package / file
        text = path.read_text()
        path.write_text(other_layout(text))
        assert digests(package) == before, file
        path.write_text(f"{text}\nadded = 1\n")
        changed = tuple(a != b for a, b in zip(before, digests(package), strict=True))
        assert changed == changes, file
        path.write_text(text)
    assert digests(package) == before


def test_a_new_name_at_a_door_changes_no_run(package):
    before = digests(package)
    for door in (package / "__init__.py", package / "curvature/__init__.py"):
        text = door.read_text()
        door.write_text(
            text.replace("__all__ = [", "from lowland.budget import Work\n\n__all__ = [")
        )
        door.write_text(door.read_text().replace("__all__ = [", '__all__ = ["Work",'))
    assert digests(package) == before


def test_code_in_c_counts_without_its_comments(package):
    before = digests(package)
    path = package / "training/descent.c"
    text = path.read_text()
    path.write_text(f"/* of no\n   account */ {text}// nor this\n\n")
    assert digests(package) == before
    path.write_text(f"{text}\nint added;\n")
    assert [a != b for a, b in zip(before, digests(package), strict=True)] == [True, True]


@pytest.mark.slow
def test_every_file_of_the_closure_counts_and_no_other(package):
    before = digests(package)
    counted = modules(*RUN)
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package).with_suffix("").parts
        name = ".".join(("lowland", *parts)).removesuffix(".__init__")
        text = path.read_text()
        path.write_text(other_layout(text))
        assert digests(package) == before, name
        path.write_text(f"{text}\nadded = 1\n")
        assert (digests(package)[0] != before[0]) == (name in counted), name
        path.write_text(text)


def test_files_that_swap_their_contents_are_other_source(package):
    first, second = package / "measures/trace.py", package / "measures/gap.py"
    before, contents = digests(package), (first.read_bytes(), second.read_bytes())
    first.write_bytes(contents[1])
    second.write_bytes(contents[0])
    assert digests(package)[0] != before[0]


def test_no_function_runs_that_is_not_of_the_closure():
    """A run is watched: whatever file it calls a function of counts, or is of a silent room."""
    called = set()

    def watch(frame: Any, event: str, argument: Any) -> None:
        if event == "call" and frame.f_code.co_name != "<module>":
            called.add(frame.f_code.co_filename)

    run = Configuration(data="xor", network="2-4-2", max_epochs=1, n_sharp=2, measures=("trace",))
    sys.setprofile(watch)
    try:
        (finished,) = perform([run.to_dict()], [0], {}, lambda now: None)
    finally:
        sys.setprofile(None)
    assert finished.document["status"] == "done"
    ours = [Path(file).relative_to(SOURCE) for file in called if Path(file).is_relative_to(SOURCE)]
    names = {".".join(("lowland", *path.with_suffix("").parts)) for path in ours}
    assert "lowland.measures.trace" in names
    silent = {f"lowland.{room}" for room in SILENT_ROOMS}
    loud = {name for name in names if not any(f"{name}.".startswith(f"{s}.") for s in silent)}
    assert loud - modules(*RUN) <= {"lowland.__init__"}  # its __getattr__ finds the rooms


def test_an_open_door_does_not_bring_in_the_house():
    counted = modules(*RUN)
    rooms = {name.split(".")[1] for name in counted}
    assert {"problem", "curvature", "dual", "measures", "analysis", "training"} <= rooms
    assert not {"cli", "probe", "integrations", "report", "comparison"} & rooms
    assert {"curvature", "measures", "analysis"}.isdisjoint(
        name.split(".")[1] for name in modules(*TRAINING)
    )


FOLLOWED = [
    "import shop.part",
    "import shop.part as p",
    "from shop import part",
    "from shop import part as p\np.thing()",
    "from shop.part import thing",
    "from shop.part import *",
    "from shop import thing",
    "from shop import *",
    "import shop\nshop.thing()",
    "import shop\nshop.part.thing()",
    "import shop\nprint(shop)",
    "def f():\n    from shop import thing",
    "try:\n    import shop.part\nexcept ImportError:\n    pass",
    "if True:\n    pass\nelse:\n    from shop.part import thing",
    "import importlib\nimportlib.import_module('shop.part')",
    "import importlib\nfor n in 'ab':\n    importlib.import_module(f'shop.{n}')",
    "from shop.unseen import thing\nfrom shop.part import stuff",
]
NOT_FOLLOWED = [
    "import shop",
    "from shop import goods",
    "import shop\nshop.goods()",
    "from shop.other import stuff",
    "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from shop.part import thing",
    "text = 'from shop import thing'  # import shop.part",
]


@pytest.mark.parametrize("text", FOLLOWED + NOT_FOLLOWED)
@pytest.mark.parametrize("place", ["mine.py", "stall/mine.py"])
def test_a_key_follows_the_users_imports(shop, text, place):
    (shop.parent / "stall").mkdir()
    (shop.parent / place).write_text(f"{text}\n\n\ndef trial(settings, seed):\n    return {{}}\n")
    name = place.removesuffix(".py").replace("/", ".")
    assert ("shop.part" in modules(name)) == (text in FOLLOWED)


@pytest.mark.parametrize(
    "text",
    [
        "from .part import thing",
        "from . import part",
        "from . import thing",
        "from .. import shop\nshop.thing()",
        "from ..shop.part import thing",
    ],
)
def test_a_key_follows_relative_imports(shop, text):
    (house := shop.parent / "house").mkdir()
    (house / "__init__.py").touch()
    moved = shop.rename(house / "shop")
    door = (moved / "__init__.py").read_text().replace("from shop", "from house.shop")
    (moved / "__init__.py").write_text(door)
    (moved / "mine.py").write_text(text)
    assert "house.shop.part" in modules("house.shop.mine")


def test_what_a_package_does_when_it_is_imported_counts(shop):
    """A door hands out; another __init__, and what a door imports beside, is run."""
    (shop.parent / "mine.py").write_text("from shop.other import thing\n")
    assert modules("mine") == {"mine", "shop.other"}
    door = (shop / "__init__.py").read_text()
    (shop / "__init__.py").write_text(f"import shop.unseen\n{door}")
    assert modules("mine") == {"mine", "shop.other", "shop.unseen"}
    (shop / "__init__.py").write_text(f"{door}print('here')\n")
    assert modules("mine") == {"mine", "shop", "shop.other", "shop.part"}


def test_a_constant_of_a_door_counts_where_it_is_imported(shop):
    (shop.parent / "mine.py").write_text("from shop import WIDTH\n")
    (shop.parent / "yours.py").write_text("from shop import goods\n")
    door, seen = (shop / "__init__.py").read_text(), []
    for width in (1, 2):
        (shop / "__init__.py").write_text(f"{door}WIDTH = {width}\n")
        digest.cache_clear()
        seen.append((digest(frozenset({"mine"})), digest(frozenset({"yours"}))))
    assert seen[0][0] != seen[1][0]
    assert seen[0][1] == seen[1][1]


def test_the_users_code_is_followed_into_ours(shop):
    (shop.parent / "mine.py").write_text(
        "import lowland as ll\n\nH = ll.trace\nll.data.load('xor')\n"
    )
    counted = modules("mine")
    assert {"lowland.curvature.estimate", "lowland.data.sets"} <= counted
    assert not [name for name in counted if name.startswith(("lowland.measures", "lowland.dual"))]


def test_a_library_is_known_by_its_version():
    closure = Closure()
    assert closure.root("torch.nn")
    assert not closure.modules
    ((name, known),) = closure.parts()
    assert (name, known.split()[0]) == ("torch.nn", "torch")


def test_an_edit_anywhere_in_the_users_closure_is_another_run(shop):
    (shop.parent / "mine.py").write_text(
        "def trial(settings, seed):\n    from shop import thing\n    return {'n': thing()}\n"
    )
    (single,) = trials("mine:trial")
    before = key(single)
    for file, edit, changes in (
        ("mine.py", "# a comment\n", False),
        ("shop/part.py", "'''A docstring.'''\n", False),
        ("shop/unseen.py", "added = 1\n", False),
        ("shop/other.py", "added = 1\n", False),
        ("shop/part.py", "added = 1\n", True),
        ("mine.py", "added = 1\n", True),
    ):
        path = shop.parent / file
        text = path.read_text()
        path.write_text(edit + text)
        digest.cache_clear()
        assert (key(single) != before) == changes, (file, edit)
        path.write_text(text)


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

    def edit(file: str, text: str = "added = 1") -> None:
        with open(package / file, "a") as source:
            source.write(f"\n{text}\n")

    fresh, trainings = sweep()
    assert (fresh, len(trainings)) == (2, 2)
    edit("report/page.py")
    edit("losses/loss.py", "# a comment")
    assert sweep() == (0, trainings)
    edit("analysis/run.py")  # measured again, and not trained again
    assert sweep() == (2, trainings)
    edit("losses/loss.py")
    assert printed("sweep", "--status", "out", "--json") == []  # none with this source
    fresh, more = sweep()
    assert (fresh, len(more)) == (2, 4)
    assert more > trainings
    (status,) = printed("sweep", "--status", "out", "--json")
    assert (status["runs"], status["done"]) == (2, 2)
