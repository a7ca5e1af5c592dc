"""What the documentation says is so: its examples run, its commands and names exist."""

import contextlib
import dataclasses
import doctest
import importlib
import io
import os
import pkgutil
import re
import runpy
import shlex
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
import torch

import lowland as ll
from lowland import findings
from lowland.measures import registry

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = [ROOT / f"{name}.md" for name in ("README", "CHANGELOG", "CONTRIBUTING")]
PAGES += sorted(p for f in (".", "questions", "tutorials") for p in (DOCS / f).glob("*.md"))
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
MODULES = [m.name for m in pkgutil.walk_packages(ll.__path__, "lowland.")]
MODULES = [name for name in MODULES if not name.endswith("__main__")]


def blocks(page: Path, *languages: str) -> list[tuple[str, str]]:
    """The fenced blocks of a page in these languages, as (language, text), in order."""
    return [found for found in BLOCK.findall(page.read_text("utf-8")) if found[0] in languages]


def written(text: str, desk: Path) -> bool:
    """Write the file that a block is the content of, if its first line is ``# name.py``."""
    match = re.match(r"# (\w+\.py)\n", text)
    if match:
        (desk / match[1]).write_text(text, "utf-8")
    return match is not None


@pytest.fixture
def desk(tmp_path, monkeypatch):
    """An empty current directory to follow a page in, of which nothing stays."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the examples are small: more threads are slower
    with torch.random.fork_rng():
        yield tmp_path
    torch.set_num_threads(threads)
    for name, module in list(sys.modules.items()):
        if Path(getattr(module, "__file__", None) or "/").is_relative_to(tmp_path):
            del sys.modules[name]


def follow(page: Path, desk: Path, *languages: str) -> str:
    """Do what a page shows, block by block; returns what was printed."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        for language, text in blocks(page, *languages):
            if language == "sh":
                for line in text.replace("\\\n", " ").splitlines():
                    print(run_line(line))
            elif not written(text, desk):
                exec(compile(text, page.name, "exec"), {"__name__": "__main__"})
    return printed.getvalue()


def run_line(line: str) -> str:
    command, *arguments = shlex.split(line)
    if command == "python":
        runpy.run_path(arguments[0], run_name="__main__")
        return ""
    assert command == "lowland"
    return lowland(*arguments)


def lowland(*arguments: str) -> str:
    """Run the command line as a user does; returns what it printed."""
    asked = [sys.executable, "-m", "lowland", *arguments]
    environment = {**os.environ, "COLUMNS": "200", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(asked, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_quickstart_runs_from_top_to_bottom(desk):
    printed = follow(DOCS / "quickstart.md", desk, "python", "sh")
    assert "my-report/report.html" in printed
    assert (desk / "copy.html").stat().st_size > 100_000
    files = {"SHA256SUMS", "report.html", "results.json", "arrays.npz", "weights.safetensors"}
    assert {path.name for path in (desk / "my-report").iterdir()} == files


@pytest.mark.slow
def test_readme_python_runs(desk):
    assert "Decomposition(layer='3'" in follow(ROOT / "README.md", desk, "python")
    assert (desk / "digits-report" / "report.html").is_file()
    network = importlib.import_module("mymodel")
    assert ll.Problem(network.model(), train=network.data()[0]).losses().shape == (1438,)


def test_data_page_runs_and_lists_every_set(desk):
    assert "label" in follow(DOCS / "data.md", desk, "python")
    text = (DOCS / "data.md").read_text("utf-8")
    for name in ll.data.names():
        assert f"| `{name}` |" in text


@pytest.mark.slow
def test_making_page_runs(desk):
    printed = follow(DOCS / "making.md", desk, "sh")
    assert "comparison: lowland-comparison.html" in printed
    python = [text for _, text in blocks(DOCS / "making.md", "python")]
    text = "\n".join(text for text in python if not written(text, desk))
    done = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, cwd=desk, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("converged: True") == 9
    assert "Grid(5 runs over learning_rate, seed)" in done.stdout


def test_making_page_shows_a_grid_of_80_runs(desk):
    ((_, text),) = blocks(DOCS / "making.md", "toml")
    (desk / "grid.toml").write_text(text)
    assert len(ll.sweep.Grid.read(desk / "grid.toml")) == 80


def test_optimisers_page_runs(desk):
    assert follow(DOCS / "optimisers.md", desk, "python").count("tensor(") == 4


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning:lightning")  # few workers, few batches
@pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated")
def test_probe_page_runs(desk):
    pytest.importorskip("lightning", reason="needs the package lightning")
    pytest.importorskip("accelerate", reason="needs the package accelerate")
    pytest.importorskip("transformers", reason="needs the package transformers")
    printed = follow(DOCS / "probe.md", desk, "python")
    assert "'lowland/critical_sharpness', 'lowland/critical_learning_rate'" in printed
    assert "[2, 4, 6, 8, 10, 12]" in printed
    assert printed.count("True") == 2
    assert (desk / "probe.csv").read_text().startswith("step,lowland/critical_sharpness")


def test_curvature_page_runs(desk):
    printed = follow(DOCS / "curvature.md", desk, "python")
    assert "double backward, kept graphs" in printed
    assert "converged" in printed
    assert "Diagonal(4 parameters exact" in printed


def test_report_page_runs(desk):
    follow(DOCS / "report.md", desk, "python")
    assert (desk / "density.pdf").read_bytes().startswith(b"%PDF")


@pytest.mark.slow
def test_your_own_network_runs(desk):
    printed = follow(DOCS / "your_model.md", desk, "python")
    assert printed.count("Problem(") == 14
    assert "next_token, 6 training samples" in printed
    assert "does not apply" not in printed


@pytest.mark.slow
def test_the_lines_of_the_first_page_run(desk):
    data = ll.data.load("digits", per_class=10, test_per_class=10)
    train, test = (torch.utils.data.TensorDataset(*part) for part in (data.train, data.test))
    names = {
        "model": ll.training.mlp((64, 12, 12, 10)),
        "train_loader": torch.utils.data.DataLoader(train, 20),
        "test_loader": torch.utils.data.DataLoader(test, 20),
    }
    ((_, text),) = blocks(DOCS / "index.md", "python")
    exec(compile(text, "index.md", "exec"), names)
    assert (desk / "report" / "report.html").is_file()


@pytest.fixture
def executed(monkeypatch):
    """What runs the code of questions, tutorials and docs/migration.md in `make docs`."""
    monkeypatch.syspath_prepend(DOCS)
    return importlib.import_module("executed")


def test_executed_pages_show_what_their_code_printed_and_drew(executed, tmp_path):
    page = "A\n\n```python\nx = 2\nprint(x + 1)\n```\n\nB\n\n```python\nassert x == 2\n```\n"
    page += "```python\nimport matplotlib.pyplot as plt\n\nplt.plot([1, x])\n```\n"
    page += "```py\nof another library\n```\n"
    before = torch.get_rng_state(), os.getcwd()
    text = executed.with_outputs(page, "tutorials/x", tmp_path)
    assert "print(x + 1)\n```\n\n```{code-block} text\n:class: output\n\n3\n```\n\nB" in text
    assert text.count(":class: output") == 1
    assert (tmp_path / "tutorials-x-3-1.png").is_file()
    assert "tutorials-x-3-1.png)" in text
    assert text.endswith("another library\n```\n")
    assert torch.equal(torch.get_rng_state(), before[0])
    assert os.getcwd() == before[1]


def test_executed_pages_that_fail_say_where(executed, tmp_path):
    page = "```python\nx = 1\n```\n\n```python\nx / 0\n```\n"
    with pytest.raises(ZeroDivisionError) as caught:
        executed.with_outputs(page, "tutorials/x", tmp_path)
    assert "tutorials/x, block 2" in str(caught.traceback[-1])


def test_every_question_and_tutorial_is_executed(executed):
    names = [p.relative_to(DOCS).with_suffix("") for p in PAGES if p.is_relative_to(DOCS)]
    deep = {str(name) for name in names if len(name.parts) > 1}
    assert len(deep) >= 12
    assert all(executed.PAGES.fullmatch(name) for name in deep)
    assert executed.PAGES.fullmatch("migration")


def test_new_measure_is_one_file(desk, monkeypatch):
    monkeypatch.setattr(registry, "_REGISTERED", dict(registry.registered()))
    page = DOCS / "add_a_measure.md"
    assert [written(text, desk) for _, text in blocks(page, "python")].count(True) == 1
    [path] = desk.glob("*.py")
    importlib.import_module(path.stem)
    assert "gradient_norm: " in follow(page, desk, "python")

    X, y = torch.randn(7, 3, dtype=torch.float64), torch.randn(7, 1, dtype=torch.float64)
    model = torch.nn.Linear(3, 1, bias=False).double()
    problem = ll.Problem(model, "mse", train=(X, y), batch_size=3)
    exact = 2 / 7 * (X.T @ (X @ model.weight.detach().T - y)).norm()  # of |X w - y|^2 / N
    assert ll.measure(problem, path.stem)[path.stem].value == pytest.approx(float(exact))
    assert model.weight.grad is None

    gallery = runpy.run_path(str(DOCS / "gallery.py"))
    assert "## Gradient norm" in gallery["page"](registry.registered())


def test_gallery_shows_every_measure():
    page = runpy.run_path(str(DOCS / "gallery.py"))["page"](registry.registered())
    for measure in registry.registered().values():
        assert f"## {measure.title}\n" in page
        assert '<math displaystyle="true">' in page
        assert measure.definition in page


NUMBER = re.compile(r"-?\d+\.?\d*(?:e[+-]?\d+)?")


class Rounded(doctest.OutputChecker):
    """Compares the numbers in what was printed as numbers: the last digits are the machine's."""

    def check_output(self, want, got, optionflags):
        if super().check_output(want, got, optionflags):
            return True
        texts = [NUMBER.sub("", text).split() for text in (want, got)]
        values = [[float(found) for found in NUMBER.findall(text)] for text in (want, got)]
        return texts[0] == texts[1] and values[1] == pytest.approx(values[0], rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples(name):
    module = importlib.import_module(name)
    runner = doctest.DocTestRunner(Rounded(), verbose=False)
    with torch.random.fork_rng():
        for found in doctest.DocTestFinder().find(module):
            assert runner.run(found).failed == 0


def test_rounded_tells_numbers_apart():
    assert Rounded().check_output("tensor([ 5., -4.])\n", "tensor([ 5.0000, -4.0000])\n", 0)
    assert not Rounded().check_output("tensor([ 5., -4.])\n", "tensor([ 5.0000, -4.1000])\n", 0)
    assert not Rounded().check_output("converged, 3 products\n", "NOT converged, 3 products\n", 0)


def test_reference_has_every_public_name():
    text = (DOCS / "api.md").read_text("utf-8")
    documented = set(re.findall(r"auto\w+:: lowland\.(\w+)", text))
    assert set(ll.__all__) <= documented


def test_decomposition_fields_are_explained():
    [table] = re.findall(r"### What comes out\n(.*?)\n###", page_text("concepts"), re.DOTALL)
    first_cells = " ".join(line.split("|")[1] for line in table.splitlines() if "|" in line)
    fields = {f.name for f in dataclasses.fields(ll.Decomposition)}
    names = {n for n, member in vars(ll.Decomposition).items() if isinstance(member, property)}
    assert set(re.findall(r"`(\w+)`", first_cells)) == fields | names - {"row"}
    parts = (findings.Setting, findings.Totals, findings.Fit, findings.Directions)
    within = {f.name for part in parts for f in dataclasses.fields(part)}
    assert within <= set(re.findall(r"`(\w+)`", table))


def test_design_names_every_room():
    text = page_text("design")
    for room in pkgutil.iter_modules(ll.__path__):
        assert f"`{room.name}{'/' if room.ispkg else '.py'}`" in text


def page_text(name: str) -> str:
    return (DOCS / f"{name}.md").read_text("utf-8")


def commands(page: Path) -> list[str]:
    """Every shell command that a page shows: lines of its shell blocks, and code in its text."""
    shown = "\n".join(text for _, text in blocks(page, "sh", "console")).replace("\\\n", " ")
    lines = [line.removeprefix("$ ").split("#")[0].strip() for line in shown.splitlines()]
    prose = BLOCK.sub("", page.read_text("utf-8"))
    return [*lines, *re.findall(r"`((?:make|lowland) [^`]+)`", prose)]


@cache
def options(*verb: str) -> str:
    """The help of a verb, or of the command."""
    return lowland(*verb, "--help")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_exist(page):
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    for line in commands(page):
        words = line.split("|")[0].split()
        if words[:1] == ["make"]:
            assert words[1] in targets, line
        if words[:1] == ["lowland"]:
            verb = [word for word in words[1:2] if not word.startswith("-")]
            assert all(f"│ {v} " in options() for v in verb), line
            for option in re.findall(r"--[a-z-]+", line):
                assert option in options(*verb), line


def test_readme_begins_with_the_two_commands():
    _, shell = blocks(ROOT / "README.md", "sh")[0]
    assert [line.split()[:2] for line in shell.splitlines()] == [["make", "demo"], ["make", "test"]]
    assert (ROOT / "README.md").read_text("utf-8").startswith("# Lowland\n\n```sh\n")


SHIPPED = [*PAGES, *sorted(DOCS.glob("*.py")), ROOT / "Makefile"]
SHIPPED += sorted((ROOT / ".ci").iterdir())
SHIPPED += [ROOT / "pyproject.toml", ROOT / "constraints.txt", ROOT / "studies/pyproject.toml"]


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.name)
def test_names_no_machine_and_no_registry(path):
    text = path.read_text("utf-8")
    assert not re.search(r"(?<![\w.~)}*-])/(home|root|tmp|work|mnt|srv|opt|Users)\b", text)
    hosts = set(re.findall(r"https?://([^/\s)>\"']+)", text))
    assert hosts <= {"arxiv.org", "doi.org"}  # papers, and nothing that serves packages
    assert "index-url" not in text
    assert "find-links" not in text


def test_changelog_starts_with_this_version():
    text = (ROOT / "CHANGELOG.md").read_text("utf-8")
    assert re.search(r"^## (\S+)", text, re.MULTILINE)[1] == ll.__version__
