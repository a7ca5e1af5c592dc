"""Studies: the runs they read, their figures, and the whole way on a tiny problem."""

import csv
import dataclasses
import io
import json
import math
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from lowland.errors import InputError
from lowland.sweep import Configuration, Grid, Store, key
from lowland.sweep.plan import document
from lowland_studies import PAPERS, STUDIES, find, of_the_field
from lowland_studies.claims import (
    between,
    not_monotone,
)
from lowland_studies.evidence import Runs
from lowland_studies.figure import draw
from lowland_studies.pages import page, strip
from lowland_studies.panels import Against, Kinds, Scatter, Spectrum
from lowland_studies.reproduction import (
    Facts,
    Judged,
    Outcome,
    _left_out,
    outcomes,
    reproduce,
    reproduce_all,
)
from lowland_studies.study import Claim, Finding, Reading, Study
from lowland_studies.summary import draw_outcomes

# --- the runs of a store -------------------------------------------------------------------------


def fill(store, settings, failure=None, note=None, arrays=None, **results):
    """A store with one run more."""
    run = Configuration(**settings)
    npz = io.BytesIO()
    np.savez(npz, **(arrays or {}))
    results = {"converged": note is None, **results}
    doc = document(run, failure, note=note, results=results)
    store.write(key(run), doc, {"arrays.npz": npz.getvalue()})
    return run


def test_runs_of_a_store(store):
    grid = [
        fill(
            store,
            {"learning_rate": rate, "seed": seed},
            gap=rate + seed,
            arrays={"duality/sigma_g": np.arange(3.0 + seed)},
        )
        for rate in (0.1, 0.02)
        for seed in (0, 1)
    ]
    fill(store, {"seed": 7}, gap=99.0)  # of another study
    missing = Configuration(seed=8)
    runs = Runs.of(store.directory, [*grid, missing])
    assert (len(runs), runs.seeds, runs.varied) == (4, [0, 1], ["learning_rate"])
    assert runs.column("gap").tolist() == [0.1, 1.1, 0.02, 1.02]
    assert runs.column("gap").tolist() == [0.1, 1.1, 0.02, 1.02]
    assert list(runs.by("learning_rate")) == [0.02, 0.1]
    assert runs.where(learning_rate=0.02, seed=[1, 2]).column("gap").tolist() == [1.02]
    np.testing.assert_array_equal(
        runs.where(learning_rate=0.1).array("duality/sigma_g"), [[0, 1, 2, np.nan], [0, 1, 2, 3]]
    )
    assert runs.column("network").tolist() == ["784-30-30-10"] * 4
    with pytest.raises(InputError, match="no column 'gapp'; did you mean 'gap'"):
        runs.column("gapp")
    with pytest.raises(InputError, match="no array 'duality/c'; there are duality/sigma_g"):
        runs.array("duality/c")


def test_a_damaged_array_is_refused_by_name(store):
    run = fill(store, {"seed": 0}, gap=1.0, arrays={"duality/sigma_g": np.arange(3.0)})
    path = store.path(key(run)) / "arrays.npz"
    content = path.read_bytes()
    number = np.array([2.0]).tobytes()
    assert content.count(number) == 1
    path.write_bytes(content.replace(number, np.array([4.0]).tobytes()))
    runs = Runs.of(store.directory, [run])
    says = f"the run {path.parent} is damaged: arrays.npz does not match SHA256SUMS; start its "
    with pytest.raises(InputError, match=re.escape(says)) as error:
        runs.array("duality/sigma_g")
    assert "\n" not in str(error.value)
    path.unlink()
    with pytest.raises(InputError, match="arrays.npz is missing"):
        runs.array("duality/sigma_g")


def test_failed_and_unconverged_runs_are_left_out(store):
    grid = [
        fill(store, {"seed": 0}, gap=1.0),
        fill(store, {"seed": 1}, gap=50.0, note="the loss was 3 after 10 epochs, the limit"),
        fill(store, {"seed": 2}, gap=None, failure="it diverged"),
    ]
    runs = Runs.of(store.directory, grid)
    assert runs.column("gap").tolist() == [1.0]
    assert [row["seed"] for row in runs.left_out] == [1, 2]
    assert runs.where(seed=[0, 1]).left_out == runs.left_out[:1]
    assert _left_out(runs) == (
        "1 did not converge at the settings above (seeds 1): the loss was 3 after 10 epochs, "
        "the limit",
        "1 failed at the settings above (seeds 2): it diverged",
    )


# --- figures -------------------------------------------------------------------------------------


def drawn(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def study_of(*panels, claims=(), **fields):
    grid = Grid(seed=[0, 1])
    return Study("some:fig1", "Fig. 1", grid, grid, panels, claims, **fields)


def test_the_numbers_in_a_figure(store, tmp_path):
    rng = np.random.default_rng(0)
    grid, sigma = [], {}
    for rate in (0.01, 0.02, 0.05, 0.1):
        for seed in range(3):
            arrays = {"duality/sigma_g": np.sort(rng.exponential(size=40))[::-1]}
            arrays["duality/c"] = arrays["duality/sigma_g"] ** 2 * 5
            sigma[rate, seed] = arrays["duality/sigma_g"]
            settings = {"learning_rate": rate, "seed": seed}
            grid.append(fill(store, settings, gap=rate * (1 + seed), sharp=3 * rate, arrays=arrays))
    runs = Runs.of(store.directory, grid)
    study = study_of(
        Against("learning_rate", {"gap": "gap", "twice": lambda r: 2 * r.column("gap")}, "gap"),
        Spectrum("duality/sigma_g", "learning_rate", "$\\sigma$", log=""),
        Scatter("duality/sigma_g", "duality/c", "$\\sigma$", "c", log="xy"),
        Scatter("sharp", "gap", "sharp", "gap", by="seed", where={"learning_rate": 0.1}),
    )
    paths = draw(study, runs, tmp_path)
    assert [path.name for path in paths] == [f"some-fig1.{k}" for k in ("svg", "pdf", "png", "csv")]
    assert ET.parse(paths[0]).getroot().tag.endswith("svg")
    assert paths[1].read_bytes().startswith(b"%PDF")
    assert paths[2].read_bytes().startswith(b"\x89PNG")

    rows = {letter: [r for r in drawn(paths[3]) if r["panel"] == letter] for letter in "ABCD"}
    assert len(rows["A"]) == 8
    first = rows["A"][0]  # 0.01, 0.02, 0.03
    assert (first["curve"], float(first["x"]), int(first["runs"])) == ("gap", 0.01, 3)
    assert (float(first["y"]), float(first["sd"])) == pytest.approx((0.02, 0.01))
    assert len(rows["B"]) == 4 * 40
    expected = np.mean([sigma[0.01, seed][4] for seed in range(3)])
    assert float(rows["B"][4]["y"]) == pytest.approx(expected)
    assert float(rows["B"][4]["x"]) == 5
    assert len(rows["C"]) == 4 * 40  # one point for a direction of each setting
    geometric = np.exp(np.mean([np.log(sigma[0.01, seed][4]) for seed in range(3)]))
    assert float(rows["C"][4]["x"]) == pytest.approx(geometric)  # on a logarithmic axis
    assert [(r["curve"], r["x"], r["y"], r["sd"]) for r in rows["D"]] == [
        ("0", "0.3", "0.1", ""),
        ("1", "0.3", "0.2", ""),
        ("2", "0.3", "0.3", ""),
    ]
    assert [r["seed"] for r in rows["D"]] == ["0", "1", "2"]
    assert {r["seed"] for r in (*rows["A"], *rows["C"])} == {""}  # means over seeds
    before = [path.read_bytes() for path in paths]
    assert [path.read_bytes() for path in draw(study, runs, tmp_path)] == before


def test_every_panel_can_be_empty_or_of_one_run(store, tmp_path):
    panels = (
        Against("learning_rate", {"gap": "gap"}, "gap", log="xy"),
        Spectrum("duality/c", None, "c"),
        Spectrum("duality/c", "learning_rate", "c"),
        Scatter("gap", "gap", "gap", "gap"),
        Scatter("duality/c", "duality/c", "c", "c", log="xy"),
        Kinds("optimizer", "gap", "gap"),
    )
    none = Runs((), (), tmp_path)
    assert drawn(draw(study_of(*panels), none, tmp_path)[3]) == []
    one = [fill(store, {}, gap=1.0, arrays={"duality/c": np.array([1.0, 0.0, -1.0])})]
    rows = drawn(draw(study_of(*panels), Runs.of(store.directory, one), tmp_path)[3])
    assert {row["panel"] for row in rows} == set("ABCDEF")
    assert {row["sd"] for row in rows} == {""}
    assert len([row for row in rows if row["panel"] == "E"]) == 1  # a logarithm shows no more


def test_points_are_told_apart_by_kind(store, tmp_path):
    grid = [fill(store, {"seed": i}, gap=float(i)) for i in range(4)]

    def parity(row):
        return "odd" if row["seed"] % 2 else "even"

    panel = Scatter("gap", "gap", "gap", "gap", by=parity)
    rows = drawn(draw(study_of(panel), Runs.of(store.directory, grid), tmp_path)[3])
    assert [(row["curve"], float(row["x"])) for row in rows] == [
        *(("even", 0.0), ("even", 2.0)),
        *(("odd", 1.0), ("odd", 3.0)),
    ]


def test_kinds_stand_side_by_side_with_their_means(store, tmp_path):
    grid = [
        fill(store, {"seed": seed, "optimizer": name}, gap=start + seed)
        for name, start in (("sgd", 1.0), ("adam", 5.0))
        for seed in range(3)
    ]
    panel = Kinds("optimizer", "gap", "gap")
    rows = drawn(draw(study_of(panel), Runs.of(store.directory, grid), tmp_path)[3])
    assert [(r["curve"], float(r["x"]), float(r["y"]), float(r["sd"])) for r in rows] == [
        ("sgd", 0.0, 2.0, 1.0),
        ("adam", 1.0, 6.0, 1.0),
    ]


def test_a_panel_of_what_is_not_defined(store, tmp_path):
    grid = [
        fill(store, {"seed": seed}, gap=-1.0, arrays={"duality/c": np.full(3, value)})
        for seed, value in enumerate((np.nan, -1.0))
    ]
    nothing = {"gap": "gap", "nothing": lambda runs: runs.column("gap") * np.nan}
    panels = (Against("learning_rate", nothing, "gap"), Spectrum("duality/c", "seed", "c"))
    rows = drawn(draw(study_of(*panels), Runs.of(store.directory, grid), tmp_path)[3])
    assert [row["y"] for row in rows] == ["-1", "", *[""] * 3, *["-1"] * 3]


def test_columns_and_arrays_do_not_mix(store, tmp_path):
    runs = Runs.of(
        store.directory, [fill(store, {}, gap=1.0, arrays={"duality/c": np.arange(3.0)})]
    )
    with pytest.raises(InputError, match="two columns, or two arrays"):
        draw(study_of(Scatter("gap", "duality/c", "gap", "c")), runs, tmp_path)


# --- the studies there are -----------------------------------------------------------------------


@pytest.mark.parametrize("study", STUDIES.values(), ids=STUDIES)
def test_every_study_is_told_whole(study):
    assert STUDIES[study.name] is study
    assert study.paper in PAPERS or study in of_the_field()
    assert study.title
    assert study.panels
    assert study.claims
    for reading in study.readings:
        assert len(reading.quick) <= len(reading.grid)
        # Two realisations at least, or nothing could be said of any claim.
        assert len({run.seed for run in reading.quick}) >= 2
    assert all(claim.text.endswith(".") and claim.paper for claim in study.claims)


def test_studies_are_found():
    assert find("feng-tu:fig3") == [STUDIES["feng-tu:fig3"]]
    papers = {name: find(name) for name in PAPERS}
    assert all(study.paper == name for name, found in papers.items() for study in found)
    both = (*find("field"), *(study for found in papers.values() for study in found))
    assert sorted(find("all"), key=id) == sorted(both, key=id)
    assert STUDIES["tsuzuku:paper"] not in find("all")  # days: only when named
    assert find("feng-tu:fig3", "feng-tu:fig2", "feng-tu:fig3") == [
        STUDIES["feng-tu:fig3"],
        STUDIES["feng-tu:fig2"],
    ]
    with pytest.raises(InputError, match="no study 'feng-tu:fig-3'; did you mean 'feng-tu:fig3'"):
        find("feng-tu:fig-3")
    with pytest.raises(InputError, match="no study 'zzz'; there are feng-tu:fig"):
        find("zzz")


# --- the whole way -------------------------------------------------------------------------------

XOR = {"data": "xor", "network": "2-8-8-2", "n_sharp": 5, "stop_loss": 0.3, "max_epochs": 200}


@pytest.fixture(scope="module")
def tiny():
    return Study(
        "some:fig1",
        "the size of batches",
        grid=Grid(**XOR, batch_size=[10, 20], seed=range(3)),
        quick=Grid(**XOR, batch_size=[10, 20], seed=range(2)),
        panels=(
            Against("batch_size", {"gap": "gap"}, "gap"),
            Spectrum("duality/sigma_g", "batch_size", "$\\sigma_{g,n}$"),
        ),
        claims=(
            Claim("The loss |l| is small.", "Table 1", between("train_loss", 0, 1)),
            Claim("The loss is large.", "Table 1", between("train_loss", 2, 3)),
            Claim("A third rate exists.", "Table 1", not_monotone("gap", "batch_size")),
        ),
        differences=("other data",),
    )


@pytest.fixture(scope="module")
def done(tiny, tmp_path_factory):
    out = tmp_path_factory.mktemp("whole") / "store"
    return out, reproduce(tiny, out, executor="serial")


def test_reproduce(done, tiny):
    out, outcome = done
    assert [judged.findings[0].verdict for judged in outcome.claims] == [
        "holds",
        "does not hold",
        "undecided",
    ]
    assert outcome.count() == {"holds": 1, "does not hold": 1, "undecided": 1}
    (facts,) = outcome.readings
    assert (facts.runs, facts.realisations) == (6, (3,))
    assert facts.settings["batch_size"] == [10, 20]
    assert outcome.command == "lowland reproduce some:fig1"
    folder = out / "studies" / "some-fig1"
    assert {path.name for path in folder.iterdir()} == {
        "outcome.json",
        "SHA256SUMS",
        "some-fig1-runs.csv",
        *(f"some-fig1.{kind}" for kind in ("svg", "pdf", "png", "csv")),
    }
    saved = json.loads((folder / "outcome.json").read_text())
    assert saved["claims"][2]["findings"][0]["effect"] is None
    assert [o.to_dict() for o in outcomes(out)] == [outcome.to_dict()]
    assert Store(out).survey().damaged == {}


def test_once_done_it_costs_nothing_and_says_what_it_cost(done, tiny):
    out, outcome = done
    again = reproduce(tiny, out, executor="serial")
    assert again.to_dict() == outcome.to_dict()


def test_several_studies_are_one_sweep(tiny, tmp_path):
    """Though they are drawn one by one, and each counts the time of all of its runs."""
    larger = Grid(**XOR, batch_size=[10, 20, 40], seed=range(3))
    other = dataclasses.replace(tiny, name="some:fig2", grid=larger)
    both = list(reproduce_all([tiny, other], tmp_path, executor="serial"))
    assert [outcome.name for outcome in both] == ["some:fig1", "some:fig2"]
    (plan,) = (tmp_path / "plans").iterdir()
    assert json.loads(plan.read_text())["runs"] == 9
    spent = [(row["batch_size"], row["seconds"]) for row in Store(tmp_path).rows()]
    assert both[0].readings[0].seconds == pytest.approx(sum(s for batch, s in spent if batch < 40))
    assert both[1].readings[0].seconds == pytest.approx(sum(s for _, s in spent))


def test_a_failure_leaves_the_old_outcome(done, tiny):
    out, _ = done
    folder = out / "studies" / "some-fig1"
    before = {path.name: path.read_bytes() for path in folder.iterdir()}

    def broken(runs):
        raise ZeroDivisionError

    broken_panel = Against("batch_size", {"gap": broken}, "gap")
    with pytest.raises(ZeroDivisionError):
        reproduce(dataclasses.replace(tiny, panels=(broken_panel,)), out, executor="serial")
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert [path.name for path in folder.parent.iterdir()] == ["some-fig1"]


def test_files_of_the_user_stop_it_before_the_runs(tiny, tmp_path):
    folder = tmp_path / "store" / "studies" / "some-fig1"
    folder.mkdir(parents=True)
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match="holds 'notes.txt'"):
        reproduce(tiny, tmp_path / "store", executor="serial")


def test_a_damaged_outcome_is_said(tmp_path):
    folder = tmp_path / "studies" / "some-fig1"
    folder.mkdir(parents=True)
    for text in ("", "{}", "[]", '{"claims": 1}'):
        (folder / "outcome.json").write_text(text)
        with pytest.raises(InputError, match="not what `lowland reproduce` wrote"):
            outcomes(tmp_path)


def test_the_page(done):
    text = page([done[1]], "Some paper")
    lines = text.splitlines()
    assert lines[0] == "# Some paper"
    assert "## Fig. 1: the size of batches" in lines
    assert "![Fig. 1: the size of batches](some-fig1.png)" in lines
    assert "**Verdicts**: holds 1, does not hold 1, undecided 1." in text
    assert "| Fig. 1: the size of batches | 1 / 1 / 1 |" in lines
    row = next(line for line in lines if line.startswith("| The loss"))
    assert row.startswith("| The loss \\|l\\| is small.<br>*Table 1* | 0.2")
    assert row.endswith("` **holds** |")
    assert "no number: batch_size takes 2 value(s)" in text
    assert "- differs from the paper: other data" in lines
    assert "- command: `lowland reproduce some:fig1`" in lines
    assert lines.index("<details>") < lines.index("- differs from the paper: other data")


FACTS = {
    "reading": "",
    "file": "some-figS1-norm",
    "settings": {"learning_rate": [0.1, 0.2], "decay_epochs": [None], "layers": [["a", "b"]]},
    "realisations": (3, 4),
    "runs": 8,
    "left_out": ("1 failed at learning_rate 0.2 (seeds 3): it diverged",),
    "differences": (),
    "seconds": 12.3,
}


def test_the_page_shows_intervals_and_what_was_left_out():
    words = "from 0.1 to 0.2", "holds", "without seed 3; 3 seeds"
    finding = Finding(-0.25, -0.4, -0.1, *words, top=0.0, percent=True)
    outcome = Outcome(
        name="some:figS1-norm",
        title="Rates",
        version="full",
        claims=(Judged("It falls with alpha.", "Fig. S1: falls", "claim", (finding,)),),
        readings=(Facts(**FACTS),),
        reason="the rates are too large",
    )
    text = page([outcome, outcome])
    assert "| It falls with α.<br>*Fig. S1: falls* | −25 % [−40, −10] from 0.1 to 0.2<br>`" in text
    assert "- It falls with α. without seed 3; 3 seeds" in text
    assert "- left out: 1 failed at learning_rate 0.2 (seeds 3): it diverged" in text
    assert "`learning_rate` 0.1, 0.2; `decay_epochs` none; `layers` a and b" in text
    assert "- time: 12 s of one process, for training and analysing its runs" in text
    assert "## Fig. S1 (norm): Rates" in text
    assert text.startswith("2 studies of the paper's figures. **Verdicts**: holds 2,")
    assert "- runs: 8, 3 or 4 realisations of each setting" in text


def test_the_terminal_tells_shares_in_per_cent_as_the_page_does():
    share = Finding(-0.25, -0.4, -0.1, "from 0.1 to 0.2", "holds", top=0.0, percent=True)
    plain = dataclasses.replace(share, unit="mean of it", percent=False)
    claims = (Judged("It falls.", "", "claim", (share,)), Judged("It is.", "", "ours", (plain,)))
    outcome = Outcome("mine", "Rates", "full", claims, (Facts(**FACTS),), "")
    console = Console(width=80, file=io.StringIO())
    draw_outcomes(console, [outcome], Path("store"), [])
    printed = console.file.getvalue()
    assert "-25 % [-40, -10] from 0.1 to 0.2" in printed
    assert "-0.25 [-0.4, -0.1] mean of it" in printed


def test_an_interval_is_drawn_against_its_margin():
    """By hand: from -0.4 to 0, with an edge of 0.06 on both sides, in cells of 0.52 / 21."""
    finding = Finding(-0.25, -0.4, -0.1, "", "holds", top=0.0)
    assert strip(finding) == "░░━━━━━━●━━━━━━░░░░··"
    finding = Finding(0.0, -0.1, 0.1, "", "holds", bottom=-0.2, top=0.2)
    drawn = strip(finding)
    assert (drawn.index("░"), drawn.rindex("░")) == (2, 18)
    assert (drawn.index("━"), drawn.index("●"), drawn.rindex("━")) == (6, 10, 14)
    assert len(strip(Finding(1.0, 1.0, 1.0, "", "holds", bottom=1.0))) == 21


@pytest.mark.parametrize("nearer", [1e-3, 0.02, 0.1])
def test_a_drawn_interval_tells_its_verdict_however_close_its_margin(nearer):
    def drawn(low, high):
        return strip(Finding((low + high) / 2, low, high, "", "holds", bottom=-0.2, top=0.2))

    inside = drawn(-0.2 + nearer, 0.2 - nearer)
    assert re.fullmatch("·+░+━*●━*░+·+", inside)
    assert re.fullmatch("·+░+━*●━+·*", drawn(-0.1, 0.2 + nearer))
    assert re.fullmatch("·*━+●━*░+·+", drawn(-0.2 - nearer, 0.1))
    assert re.fullmatch("·+░+·+━*●━*·*", drawn(0.2 + nearer, 0.5))
    assert re.fullmatch("·*━*●━*·+░+·+", drawn(-0.5, -0.2 - nearer))


def test_readings_stand_side_by_side_and_only_claims_count():
    def found(verdict, effect):
        return Finding(effect, effect - 0.1, effect + 0.1, "of it", verdict, bottom=0.0)

    claims = (
        Judged("It rises.", "Fig. 1", "claim", (found("holds", 1), found("does not hold", -1))),
        Judged("It rises again.", "Fig. 1", "restated", (found("holds", 1), found("holds", 1))),
        Judged("It is itself.", "Eq. 1", "check", (found("holds", 1), found("holds", 1))),
    )
    readings = (
        Facts(**{**FACTS, "reading": "as printed", "file": "some-fig1"}),
        Facts(**{**FACTS, "reading": "as in the demo", "file": "some-fig1-demo"}),
    )
    outcome = Outcome("some:fig1", "Rates", "full", claims, readings, "a reason")
    assert outcome.count() == {"holds": 1, "does not hold": 0, "undecided": 0}
    assert outcome.count(1) == {"holds": 0, "does not hold": 1, "undecided": 0}
    text = page([outcome])
    assert "| claim | as printed | as in the demo |" in text
    assert "**Verdicts** as printed: holds 1, does not hold 0, undecided 0." in text
    assert "| Fig. 1: Rates | 1 / 0 / 0 | 0 / 1 / 0 |\n" in text
    assert "**Why claims do not hold**\n\n- Fig. 1: a reason\n" in text
    counted, _, others = text.partition("Not counted:")
    assert "It rises." in counted
    assert all(words in others for words in ("It rises again.", "Eq. 1, check"))
    assert "![Fig. 1: Rates, as in the demo](some-fig1-demo.png)" in text
    assert Outcome.of(json.loads(json.dumps(outcome.to_dict()))) == outcome


def test_what_fails_is_told_first_by_whether_it_does_so_in_every_reading():
    def judged(text, *verdicts, kind="claim"):
        words = {"holds": 1.0, "does not hold": -1.0, "undecided": 0.05}
        findings = [
            Finding(words[v], words[v] - 0.1, words[v] + 0.1, "of it", v, bottom=0.0, percent=True)
            for v in verdicts
        ]
        return Judged(text, "Fig. 1", kind, tuple(findings))

    no = "does not hold"
    claims = (
        judged("It stands.", "holds", "holds"),
        judged("It fails.", no, no),
        judged("It depends.", "holds", no),
        judged("It fails or is open.", no, "undecided"),
        judged("It is open.", "holds", "undecided"),
        judged("It is only said again.", no, no, kind="restated"),
    )
    readings = tuple(Facts(**{**FACTS, "reading": name}) for name in ("printed", "demo"))
    outcome = Outcome("some:fig1", "Rates", "full", claims, readings, "")
    assert "What is open" not in page([outcome])  # its table tells
    text = page([outcome, Outcome("some:fig2", "Sizes", "full", (), readings, "")])
    start = text.index("**What does not hold in any reading**")
    middle = text.index("**What does not hold in one reading only**")
    still_open = text.index("<summary><b>What is open in a reading</b>: 1 claim</summary>")
    end = text.index("<summary><b>What holds in every reading</b>: 1 claim</summary>")
    assert text[start:middle].count("\n- ") == 1
    assert "- Fig. 1: It fails. (printed: −100 % [−110, −90]; demo: −100 % [−110, −90])" in text
    assert text[middle:still_open].count("\n- ") == 2
    assert "It depends. (printed: 100 % [90, 110], holds; demo: −100 %" in text[middle:still_open]
    assert "\n- Fig. 1: It is open. (" in text[still_open:end]
    rest = text[end : text.index("Every claim is judged")]
    assert rest.count("\n- ") == rest.count("- Fig. 1: It stands. (") == 1


def test_a_reason_of_several_figures_is_told_once():
    refuted = Judged("It falls.", "falls", "claim", (Finding(0.1, 0.0, 0.2, "", "does not hold"),))
    facts = (Facts(**FACTS),)
    text = page(
        [
            Outcome("some:fig1", "Rates", "full", (refuted,), facts, "too large\ntoo few"),
            Outcome("some:fig2", "Sizes", "full", (refuted,), facts, "too few"),
            Outcome("some:fig3", "Depth", "full", (), facts, "too deep"),
        ]
    )
    assert "do not hold**\n\n- Fig. 1: too large\n- Fig. 1, Fig. 2: too few\n\n" in text
    assert "Why claims do not hold: too large too few\n" in text
    assert "too deep" not in text


def test_numbers_of_one_name_are_both_kept():
    def called(name, function):
        function.__name__ = name
        return function

    rows = ({"key": "a", "seed": 0, "gap": 1.0}, {"key": "b", "seed": 1, "gap": math.nan})
    runs = Runs(rows, (), Path(), asked={})
    for factor in (1.0, 1.0 + 1e-12, 2.0, 2.0, 3.0):
        runs.column(called("twice told", lambda r, f=factor: f * r.column("gap")))
    assert list(runs.asked) == ["gap", "twice told", "twice told (2)", "twice told (3)"]
    assert [runs.asked[name]["a"] for name in runs.asked] == [1.0, 1.0 + 1e-12, 2.0, 3.0]


def test_a_long_list_of_what_fails_is_to_be_opened():
    finding = Finding(-1.0, -1.1, -0.9, "of it", "does not hold", bottom=0.0)
    claims = tuple(Judged(f"It rises in {i}.", "Fig. 1", "claim", (finding,)) for i in range(13))
    facts = Facts(**FACTS)
    short, long = (
        page([Outcome("some:fig1", "Rates", "full", claims[:n], (facts,), "")]) for n in (12, 13)
    )
    assert "**What does not hold**\n\n- Fig. 1: It rises in 0." in short
    assert short.count("<details>") == 1
    opened = "<details>\n\n<summary><b>What does not hold</b>: 13 claims</summary>\n\n- Fig. 1: It"
    assert opened in long
    assert "It rises in 12. (−1 [−1.1, −0.9])\n\n</details>\n\nEvery claim is judged" in long


@pytest.mark.parametrize(
    ("effect", "half", "note", "told"),
    [
        (0.5, 0.6, "", ", 30 seeds would tell"),  # 10 seeds: 0.35 with 30
        (0.3, 0.6, "", ": about 0 %"),
        (-0.3, 0.6, "", ": about 0 %"),
        (0.3, 0.6, "18 runs of 3 seeds", ", 30 seeds would tell"),  # 0.19 with 30
        (0.5, 0.6, "30 seeds", ": about 0 %"),
    ],
)
def test_an_open_claim_says_whether_more_seeds_would_tell(effect, half, note, told):
    finding = Finding(effect, effect - half, effect + half, "of it", "undecided", note, bottom=0.0)
    finding = dataclasses.replace(finding, percent=True)
    claims = (Judged("It rises.", "Fig. 1", "claim", (finding,)),)
    facts = Facts(**{**FACTS, "realisations": (10,)})
    text = page([Outcome("some:fig1", "Rates", "full", claims, (facts,), "")])
    assert f"**undecided**{told} |" in text


def test_every_reading_is_run_drawn_and_judged(tiny, tmp_path):
    other = Reading(
        *("slowly", Grid(**XOR, learning_rate=0.05, batch_size=[10, 20], seed=range(2))),
        quick=Grid(**XOR, learning_rate=0.05, batch_size=[10, 20], seed=range(2)),
        differences=("slower",),
        suffix="-slow",
    )
    study = dataclasses.replace(tiny, reading="as it is", others=(other,))
    outcome = reproduce(study, tmp_path, version="quick", executor="serial")
    assert [facts.reading for facts in outcome.readings] == ["as it is", "slowly"]
    assert [facts.runs for facts in outcome.readings] == [4, 4]
    assert all(len(judged.findings) == 2 for judged in outcome.claims)
    assert outcomes(tmp_path) == [outcome]
    names = {path.name for path in (tmp_path / outcome.folder).iterdir()}
    assert {"some-fig1.svg", "some-fig1-slow.svg", "some-fig1-slow-runs.csv"} <= names
    rows = drawn(tmp_path / outcome.folder / "some-fig1-slow-runs.csv")
    assert [(row["batch_size"], row["seed"], row["counts"]) for row in rows] == [
        *(("10", "0", "1"), ("10", "1", "1"), ("20", "0", "1"), ("20", "1", "1"))
    ]
    # From these numbers a verdict can be checked.
    losses = np.array([float(row["train_loss"]) for row in rows]).reshape(2, 2)
    finding = outcome.claims[0].findings[1]
    assert finding.effect == pytest.approx(losses.mean())


def test_networks_at_their_limit_count_where_a_reading_says_so(store):
    note = "the loss was 3 after 10 epochs, the limit"
    grid = [fill(store, {"seed": 0}, gap=1.0), fill(store, {"seed": 1}, gap=2.0, note=note)]
    grid.append(fill(store, {"seed": 2}, gap=None, failure="it diverged"))
    assert Runs.of(store.directory, grid).seeds == [0]
    assert Runs.of(store.directory, grid, at_limit=1.0).seeds == [0, 1]
    grid.append(fill(store, {"seed": 3}, gap=4.0, note=note, train_error=0.1))
    assert Runs.of(store.directory, grid, at_limit=1.0).seeds == [0, 1, 3]
    assert Runs.of(store.directory, grid, at_limit=0.01).seeds == [0, 1]


def test_a_reason_is_given_only_for_what_does_not_hold():
    def told(*verdicts, version="full"):
        claims = (
            Judged("It falls.", "falls", "claim", (Finding(0.1, 0.0, 0.2, "of it", verdict),))
            for verdict in verdicts
        )
        reason = "the rates are too large"
        return page(
            [Outcome("some:fig1", "Rates", version, tuple(claims), (Facts(**FACTS),), reason)]
        )

    line = "Why claims do not hold: the rates are too large"
    assert told("does not hold", "does not hold").count(line) == 1
    assert "too large" not in told("holds", "undecided")
    assert "too large" not in told(
        "does not hold", version="quick"
    )  # it was found with the full version


def test_the_full_version_stands_before_the_quick_one_which_says_so(done, tiny, tmp_path):
    out, outcome = tmp_path / "store", done[1]
    shutil.copytree(done[0], out)
    quick = reproduce(tiny, out, version="quick", executor="serial")
    (facts,) = quick.readings
    assert (quick.version, facts.runs, facts.realisations) == ("quick", 4, (2,))
    assert quick.command == "lowland reproduce some:fig1 --quick"
    assert "quick version" in page([quick])
    assert "quick version" not in page([outcome])
    assert (out / quick.folder / f"{quick.file}.svg").is_file()
    assert outcomes(out) == [outcome]
    shutil.rmtree(out / outcome.folder)
    assert outcomes(out) == [quick]


def test_figures_are_in_the_order_of_their_numbers(tmp_path):
    names = ["a:fig2", "a:figS1", "a:figS1-norm", "a:figS2", "a:figS11", "b:fig1"]
    for name in reversed(names):
        one = Outcome(name, "", "full", (), (Facts(**FACTS),), reason="")
        (tmp_path / one.folder).mkdir(parents=True)
        (tmp_path / one.folder / "outcome.json").write_text(json.dumps(one.to_dict()))
    assert [one.name for one in outcomes(tmp_path)] == names


def test_importing_studies_is_cheap():
    code = """if True:
        import sys
        from lowland_studies import find
        assert find("feng-tu")
        print(sorted({"torch", "pandas", "matplotlib", "scipy"} & set(sys.modules)))
    """
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout == "[]\n"
