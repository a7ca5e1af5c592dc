"""The command line, mostly as a process of its own: what a user types, sees and is left with."""

import json
import os
import pty
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import lowland
from commandline import ANALYZE, MINE, Ran, command, entries, environment, run, run_inside
from lowland.results import EPOCHS, FILES, Analysis
from stores import seal

ANALYSED = [name for name in FILES if name != EPOCHS]  # which only a training leaves

# Everything that can reach stdout: Python, the descriptor itself, a child process, and the exit.
LOUD = """
import atexit
import os

import mine

print("at import")
os.write(1, b"on the descriptor\\n")
os.system("echo from a child")
atexit.register(print, "at exit")


class Net(type(mine.model())):
    def forward(self, x):
        print("in forward")
        return super().forward(x)


def model():
    print("in the factory")
    return Net(*mine.model())
"""
SLOW = """
import sys
import time

import mine


def model():
    print("here", file=sys.stderr, flush=True)
    time.sleep(600)
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (folder := tmp_path / "project").mkdir()
    (folder / "mine.py").write_text(MINE)
    return folder


@pytest.fixture(scope="module")
def analysed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Ran]:
    """One analysis of a user's model as a process, with a wide terminal that cannot write ±."""
    folder = tmp_path_factory.mktemp("analysed")
    (folder / "mine.py").write_text(MINE)
    return folder, run(*ANALYZE, cwd=folder, COLUMNS="200", PYTHONIOENCODING="ascii")


def test_help_and_version_import_no_torch(tmp_path):
    heavy = "sorted({'torch', 'numpy', 'scipy', 'pandas', 'plotly'} & set(sys.modules))"
    code = f"""if True:
        import sys, lowland.cli
        for line in (['--help'], ['--version'], [], ['analyze', '--help'], ['analyse']):
            sys.argv = ['lowland', *line]
            try:
                lowland.cli.main()
            except SystemExit as end:
                print('code', end.code)
        print('heavy', {heavy})
    """
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment(),
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert "heavy []" in done.stdout
    assert [s for s in done.stdout.splitlines() if s.startswith("code")] == [
        *["code 0"] * 4,
        "code 2",
    ]
    assert done.stdout.count("Usage: lowland COMMAND") == 2  # asked for, and with no arguments
    assert f"\n{lowland.__version__}\n" in done.stdout
    assert all(verb in done.stdout for verb in ("analyze", "measures", "report"))
    assert "--checkpoint" in done.stdout
    assert done.stderr == (
        'lowland: Unknown command "analyse". Did you mean "analyze"? Available commands: train, '
        "sweep, analyze, compare, measures, report, landscape, reproduce; see lowland --help\n"
    )


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (("analyze", "--modle", "x"), "Unknown option: --modle. Did you mean --model?"),
        (("analyze", "--model"), "--model requires an argument"),
        (("analyze", "--seed", "x"), 'unable to convert "x" into int'),
        (("analyze", "x"), "Unused Tokens: ['x']"),
        (("report",), "DIRECTORY requires an argument"),
        (("--what",), 'Unknown command "--what"'),
    ],
)
def test_a_line_that_cannot_be_parsed_is_one_line(tmp_path, line, says):
    ran = run_inside(*line, cwd=tmp_path)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("lowland: ")
    assert ran.err.count("\n") == 1
    assert says in ran.err
    verb = f" {line[0]}" if line[0] in ("analyze", "report") else ""
    assert ran.err.endswith(f"; see lowland{verb} --help\n")


def test_analyze_own_model_writes_a_whole_result(analysed):
    folder, ran = analysed
    assert ran.code == 0, ran.err
    assert entries(folder) == {"mine.py", "out"}
    assert entries(folder / "out") == set(ANALYSED)
    saved = json.loads((folder / "out" / "results.json").read_text())
    assert saved["subject"]["title"] == "mine:model"
    assert saved["subject"]["train_samples"] == 30
    assert saved["subject"]["layer"] == "2"
    assert len(np.load(folder / "out" / "arrays.npz")["duality/sigma_g"]) == 12
    assert "<html" in (folder / "out" / "report.html").read_text()


def test_progress_goes_to_stderr_one_line_for_each_stage(analysed):
    lines = analysed[1].err.splitlines()
    assert "lowland: loading the model" in lines
    assert any(line.startswith("lowland: one gradient takes ") for line in lines)  # the plan
    assert any(line.startswith("lowland: the split of layer '2' (") for line in lines)
    assert all(line.startswith("lowland: ") for line in lines)
    assert len(set(lines)) == len(lines)


def test_summary_fits_80_columns_and_an_ascii_terminal(analysed):
    folder, ran = analysed
    saved = lowland.load(folder / "out")
    assert max(map(len, ran.out.splitlines())) <= 80
    assert " ".join(ran.out.split()).startswith(f"mine:model {saved.answer} ")
    assert ran.out.isascii()
    assert " +- " in ran.out  # the standard error of the test loss
    for row in saved.results.measures:
        assert row.title in ran.out
    assert ran.out.endswith("report: out/report.html\n")


def test_report_renders_the_same_page_again_without_torch(analysed, tmp_path):
    shutil.copytree(analysed[0] / "out", tmp_path / "copy")
    page = tmp_path / "copy" / "report.html"
    before = page.read_bytes()
    page.write_text("lost")
    code = """if True:
        import atexit, sys, lowland.cli
        sys.modules['torch'] = None  # importing it now fails
        lowland.cli.main()
    """
    done = subprocess.run(
        [sys.executable, "-c", code, "report", "copy", "--json", "--quiet"],
        cwd=tmp_path, env=environment(), capture_output=True, text=True,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == {
        "report": "copy/report.html",
        "answer": lowland.load(tmp_path / "copy").answer,
    }
    assert page.read_bytes() == before
    assert entries(tmp_path / "copy") == set(ANALYSED)


def test_an_edited_number_is_not_reported(analysed, tmp_path):
    shutil.copytree(analysed[0] / "out", tmp_path / "out")
    shutil.copytree(analysed[0] / "out", tmp_path / "other")
    path = tmp_path / "out" / "results.json"
    gap = f'"gap": {json.loads(path.read_text())["outcome"]["gap"]}'
    assert gap in path.read_text()
    path.write_text(path.read_text().replace(gap, '"gap": 0.125'))
    for line in (("report", "out"), ("compare", "out", "other"), ("compare", "other", "out")):
        ran = run_inside(*line, "--quiet", cwd=tmp_path)
        assert (ran.code, ran.out) == (2, "")
        assert ran.err == (
            "lowland: the results in out are damaged: results.json does not match SHA256SUMS; run "
            "the analysis again\n"
        )


@pytest.mark.parametrize("verb", ["analyze", "train"])
def test_files_of_the_user_with_names_of_ours_stay(project, verb):
    own = {"weights.safetensors": "my weights", "results.json": "my results"}
    (project / "own").mkdir()
    for name, text in own.items():
        (project / "own" / name).write_text(text)
    line = ANALYZE[: ANALYZE.index("--out")] if verb == "analyze" else ("train",)
    ran = run_inside(*line, "--out", "own", cwd=project)
    assert (ran.code, ran.out) == (2, "")
    assert "own holds 'results.json' and 1 more, which Lowland did not write" in ran.err
    assert ran.err.count("\n") == 1
    assert {p.name: p.read_text() for p in (project / "own").iterdir()} == own


def test_a_comparison_does_not_replace_a_file_of_the_user(analysed, tmp_path):
    shutil.copytree(analysed[0] / "out", tmp_path / "out")
    (tmp_path / "notes.html").write_text("mine")
    line = ("compare", "out", "out", "out", "--out", "notes.html", "--quiet")
    ran = run_inside(*line, cwd=tmp_path)
    assert (ran.code, ran.out) == (2, "")
    assert "notes.html is no page that Lowland wrote, and is not replaced; move it" in ran.err
    assert entries(tmp_path) == {"out", "notes.html"}
    assert (tmp_path / "notes.html").read_text() == "mine"
    (tmp_path / "notes.html").unlink()
    for _ in range(2):  # a page of ours gives way, and one page has all three
        assert run_inside(*line, cwd=tmp_path).code == 0
    assert entries(tmp_path) == {"out", "notes.html"}
    assert "comparison of 3 solutions" in (tmp_path / "notes.html").read_text()


def test_figures_of_a_saved_analysis(analysed, tmp_path):
    shutil.copytree(analysed[0] / "out", tmp_path / "out")
    line = ("report", "out", "--figures", "svg", "--out", "figures")
    ran = run_inside(*line, "--json", "--quiet", cwd=tmp_path)
    assert ran.code == 0, ran.err
    files = json.loads(ran.out)["figures"]
    assert {Path(file).name for file in files} >= {"gap.svg", "directions.svg"}
    assert entries(tmp_path / "figures") == {"SHA256SUMS", *(Path(file).name for file in files)}
    (tmp_path / "figures" / "mine.txt").write_text("mine")
    ran = run_inside(*line, "--quiet", cwd=tmp_path)
    assert (ran.code, ran.out) == (2, "")
    assert (tmp_path / "figures" / "mine.txt").read_text() == "mine"


def test_json_is_all_there_is_on_stdout(project):
    (project / "loud.py").write_text(LOUD)
    line = ("analyze", "--model", "loud:model", "--data", "mine:data", "--out", "out")
    # Some measures: what is said on the way does not depend on how many there are.
    ran = run(*line, "--json", "--quiet", "--measures", "trace,gap", cwd=project)
    assert ran.code == 0, ran.err
    document = json.loads(ran.out)
    saved = json.loads((project / "out" / "results.json").read_text())
    assert document.pop("out") == "out"
    assert document.pop("answer") == lowland.load(project / "out").answer
    assert document == saved
    said = set(ran.err.splitlines())
    assert said == {
        "at import", "on the descriptor", "from a child", "at exit", "in forward", "in the factory",
    }  # fmt: skip  # and no progress, as --quiet asked


def test_measures_as_json_and_as_text(tmp_path):
    from lowland.measures import registered

    as_json, as_text = (
        run_inside("measures", "--quiet", *more, cwd=tmp_path) for more in (["--json"], [])
    )
    assert (as_json.code, as_json.err, as_text.code, as_text.err) == (0, "", 0, "")
    rows = {row["name"]: row for row in json.loads(as_json.out)}
    assert list(rows) == list(registered())
    for name, measure in registered().items():
        assert rows[name]["definition"] == measure.definition
        assert rows[name]["invariant"] == sorted(measure.invariant)
        assert f"\n{name}\n" in f"\n{as_text.out}"
        assert measure.formula in " ".join(as_text.out.split())
    assert max(map(len, as_text.out.splitlines())) <= 80


def test_text_of_the_user_is_not_markup(analysed, tmp_path):
    shutil.copytree(analysed[0] / "out", tmp_path / "out")
    path = tmp_path / "out" / "results.json"
    saved = json.loads(path.read_text())
    saved["subject"]["title"] = "[bold]net[/bold] :smile: [/]"
    saved["notes"] = ["[red]not red[/red]"]
    path.write_text(json.dumps(saved))
    seal(tmp_path / "out")
    ran = run_inside("report", "out", "--quiet", cwd=tmp_path)
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith("[bold]net[/bold] :smile: [/]\n")
    assert "note: [red]not red[/red]\n" in ran.out


@pytest.mark.parametrize("line", [("report", "out"), ("report", "out", "--json"), ("--help",)])
def test_a_reader_that_closes_the_pipe_early_sees_no_traceback(analysed, line):
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            command(*line, *(() if line == ("--help",) else ("--quiet",))),
            cwd=analysed[0], env=environment(), stdout=writing, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
    finally:
        os.close(writing)
    assert done.stderr == ""
    if line[0] == "report":  # its work is done; help has no other purpose than to be read
        assert done.returncode == 0


def test_a_terminal_gets_a_status_line_that_goes_away(analysed, tmp_path):
    """The status is drawn on stderr, and the cursor it hides comes back."""
    shutil.copytree(analysed[0] / "out", tmp_path / "out")
    ours, theirs = pty.openpty()
    done = subprocess.run(
        command("report", "out", "--json"),
        cwd=tmp_path, env=environment(TERM="xterm"), stdout=subprocess.PIPE, stderr=theirs,
    )  # fmt: skip
    os.close(theirs)
    shown = os.read(ours, 100_000).decode()
    os.close(ours)
    assert done.returncode == 0
    assert json.loads(done.stdout)["report"] == "out/report.html"
    assert "report" in shown
    assert shown.rindex("\x1b[?25h") > shown.rindex("\x1b[?25l")


# --- interrupts -----------------------------------------------------------------------------------


def interrupted(line: tuple[str, ...], cwd: Path, after: str, number: signal.Signals) -> Ran:
    """Send the signal when the process has written the line ``after`` on stderr."""
    process = subprocess.Popen(
        command(*line), cwd=cwd, env=environment(), text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stderr is not None
    for said in process.stderr:
        if said.strip() == after:
            process.send_signal(number)
            break
    out, err = process.communicate(timeout=60)
    return Ran(process.returncode, out, err)


@pytest.mark.parametrize(
    ("number", "after", "code"),
    [
        (signal.SIGINT, "here", 130),
        (signal.SIGTERM, "lowland: loading torch", 143),
    ],
)
def test_an_interrupt_leaves_the_earlier_result_and_nothing_else(
    analysed, project, number, after, code
):
    (project / "slow.py").write_text(SLOW)
    shutil.copytree(analysed[0] / "out", project / "out")
    before = {name: (project / "out" / name).read_bytes() for name in ANALYSED}
    line = ("analyze", "--model", "slow:model", "--data", "mine:data", "--out", "out")
    ran = interrupted(line, project, after, number)
    assert (ran.code, ran.out) == (code, "")
    assert ran.err.splitlines()[-1] == "lowland: stopped; nothing was written"
    assert "Traceback" not in ran.err
    assert entries(project) == {"mine.py", "slow.py", "out"}
    assert {name: (project / "out" / name).read_bytes() for name in ANALYSED} == before


def test_an_interrupt_that_the_users_code_swallows_stops_at_the_next_stage(project):
    (project / "deaf.py").write_text(
        "import signal\nfrom mine import data\nfrom mine import model as net\n"
        "def model():\n"
        "    try:\n        signal.raise_signal(signal.SIGINT)\n"
        "    except BaseException:\n        pass\n"
        "    return net()\n"
    )
    line = ("analyze", "--model", "deaf:model", "--data", "deaf:data", "--out", "out", "--quiet")
    ran = run_inside(*line, cwd=project)
    assert ran == Ran(130, "", "lowland: stopped; nothing was written\n")
    assert entries(project) == {"mine.py", "deaf.py"}


def test_an_interrupt_that_becomes_another_error_is_still_an_interrupt(project):
    (project / "turned.py").write_text(
        "import signal\n"
        "try:\n    signal.raise_signal(signal.SIGTERM)\n"
        "except BaseException:\n    raise ImportError('initialization failed')\n"
    )
    line = ("analyze", "--model", "turned:model", "--data", "mine:data", "--out", "out", "--quiet")
    ran = run_inside(*line, cwd=project)
    assert ran == Ran(143, "", "lowland: stopped; nothing was written\n")


LONG = """
import sys
import torch
from mine import data
from mine import model as net

def model():
    matrix = torch.rand(6000, 6000, dtype=torch.float64)
    print("here", file=sys.stderr, flush=True)
    torch.linalg.eigh(matrix)  # minutes, in one call
    return net()
"""


def test_a_second_interrupt_ends_a_long_call_of_a_library(project):
    """Python runs its handler only when the call is over."""
    (project / "long.py").write_text(LONG)
    line = ("analyze", "--model", "long:model", "--data", "mine:data", "--out", "out")
    said = []
    with subprocess.Popen(
        command(*line), cwd=project, env=environment(), text=True, stderr=subprocess.PIPE
    ) as process:
        assert process.stderr is not None
        for text in process.stderr:
            said.append(text.strip())
            if said[-1] == "here":
                time.sleep(1)  # by then the call has begun
            if said[-1] == "here" or "a second interrupt" in text:
                process.send_signal(signal.SIGINT)
    assert process.returncode == 130
    assert said[-2:] == [
        "lowland: stopping when this step ends; a second interrupt ends it at once",
        "lowland: stopped at once; what was under way is lost",
    ]
    assert entries(project) == {"mine.py", "long.py"}


def test_an_interrupt_after_the_result_was_written_says_so(project, monkeypatch):
    save = Analysis.save

    def save_then_interrupt(self, directory):
        save(self, directory)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Analysis, "save", save_then_interrupt)
    ran = run_inside(*ANALYZE, "--quiet", cwd=project)
    assert ran == Ran(130, "", "lowland: stopped; the result was already written, whole, to out\n")
    assert lowland.load(project / "out").results.subject.title == "mine:model"


def test_an_ignored_signal_stays_ignored(project):
    """As under nohup, or in the background of a script."""
    seen = []
    keep = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        patched = pytest.MonkeyPatch()
        patched.setattr("lowland.cli._run", lambda: seen.append(signal.getsignal(signal.SIGHUP)))
        run_inside("measures", cwd=project)
        patched.undo()
    finally:
        signal.signal(signal.SIGHUP, keep)
    assert seen == [signal.SIG_IGN]


@pytest.mark.slow
def test_stress_prints_what_moved(tmp_path):
    (tmp_path / "mine.py").write_text(MINE)
    line = ("measures", "--stress", "--model", "mine:model", "--data", "mine:data", "--quiet")
    ran = run(*line, cwd=tmp_path)
    assert ran.code == 0, ran.err
    rows = {r.split()[0]: r for r in ran.out.splitlines() if r.strip()}
    assert rows["train_error"].split()[2:] == ["same"] * (len(rows["train_error"].split()) - 2)
    assert "same" not in rows["weight_norm"].split()[2:4]
    assert "norms: no layer is followed by a BatchNorm" in " ".join(ran.out.split())
    assert "BROKEN" not in ran.out
    assert max(map(len, ran.out.splitlines())) <= 80
    as_json = json.loads(run(*line, "--json", "--factor", "10", cwd=tmp_path).out)
    assert as_json["factor"] == 10
    assert as_json["moves"]["weight_norm"]["layers"]["moved"] is True
    ran = run("measures", "--model", "mine:model", cwd=tmp_path)
    assert ran.code == 2
    assert "need --stress" in ran.err


def test_a_verb_of_others_that_cannot_be_loaded_ends_only_itself(tmp_path):
    folder = tmp_path / "broken-1.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1\n")
    (folder / "entry_points.txt").write_text("[lowland.verbs]\nbroken = nowhere:verb\n")
    for args, code, words in (
        (("measures",), 0, ""),
        (("broken",), 2, "broken cannot be loaded from nowhere:verb: ModuleNotFoundError"),
    ):
        done = subprocess.run(
            [sys.executable, "-m", "lowland", *args], capture_output=True, text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])},
        )  # fmt: skip
        assert done.returncode == code, done
        assert words in done.stderr
