"""The league table: its grid, its statistics against transcriptions by hand, and its words."""

import itertools
import math
import subprocess
import sys

import numpy as np
import pytest
from scipy import stats

from lowland.errors import InputError
from lowland.experiment import Configuration
from lowland.experiment.recording import recorded
from lowland.experiment.subject import Subject
from lowland.measures import registered
from lowland.sweep import Grid, run
from lowland.training import train
from lowland_studies import find, outcomes, page, reproduce
from lowland_studies.details import halves
from lowland_studies.evidence import Runs
from lowland_studies.league import STUDY
from lowland_studies.league.claims import picks_better, predicts
from lowland_studies.league.found import GAPS
from lowland_studies.league.networks import DATA_SETS, STOP, grid, quick
from lowland_studies.league.picking import Choices
from lowland_studies.league.table import SETTINGS, fooled, league, settings_of
from lowland_studies.league.words import told
from lowland_studies.study import Study, recording

MEASURES = ["weight_norm", "trace", "path_norm", "near_zero_share", "gradient_variance"]
MEASURES += ["pac_bayes_magnitude", "vc_dimension"]


def small():
    """Eight tiny networks, of which rescalings are tried on four."""
    common = {
        "data": "digits",
        "per_class": 10,
        "network": ["64-8-10", "64-16-10"],
        "learning_rate": [0.05, 0.2],
        "stop_loss": 0.1,
        "max_epochs": 400,
        "measures": MEASURES,
    }
    return Grid(**common, batch_size=5, details=recording("halves", "stressed")) + Grid(
        **common, batch_size=20, details=recording("halves")
    )


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    folder = tmp_path_factory.mktemp("league")
    run(small(), folder, executor="serial")
    return folder


@pytest.fixture(scope="module")
def runs(store):
    return Runs.of(store, small())


# --- the networks --------------------------------------------------------------------------------


def test_the_grid_is_large_and_varies_every_setting(monkeypatch, tmp_path):
    monkeypatch.delenv("LOWLAND_DATA", raising=False)
    without = grid()
    assert {c.data for c in without} == {"digits", "mnist5k"}
    for data in DATA_SETS:
        if data.folder is not None:
            (tmp_path / data.folder).mkdir()
    monkeypatch.setenv("LOWLAND_DATA", str(tmp_path))
    whole = grid()
    assert {c.data for c in whole} == {data.name for data in DATA_SETS}
    assert sum(c.data != "fashion_mnist" for c in whole) >= 300
    rows = [{**c.to_dict(), "key": ""} for c in whole]
    settings = settings_of(Runs(tuple(rows), (), tmp_path))
    assert list(settings) == list(SETTINGS)
    assert {c.stop_loss for c in whole} == {STOP}
    # Every setting, the data among them, has pairs of networks that differ in it alone.
    columns = list(zip(*settings.values(), strict=True))
    alone = {
        names[0]
        for a, b in itertools.combinations(columns, 2)
        if len(names := [n for n, x, y in zip(settings, a, b, strict=True) if x != y]) == 1
    }
    assert alone == set(SETTINGS)
    assert {name for c in quick() for name in c.measures} <= set(registered())


def test_it_is_found_by_name_and_read_without_torch():
    assert find("league") == [STUDY]
    code = (
        "import sys; from lowland_studies import find; find('league'); "
        "print(sorted({'torch', 'scipy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# --- what runs record for it ---------------------------------------------------------------------


def test_halves_of_the_test_data_by_hand():
    configuration = Configuration(data="digits", per_class=5, network="64-8-10", max_epochs=1)
    subject = Subject.of(configuration)
    training = train(subject.model, subject.train, subject.settings)
    X, y = subject.test
    numbers = halves(recorded(configuration, subject, training)).numbers
    wrong = (subject.model(X).argmax(1) != y).double()
    first, second = [], []
    for label in range(10):  # alternately, and on with the next class where the last one ended
        for i in (y == label).nonzero()[:, 0]:
            (first if len(first) == len(second) else second).append(int(i))
    assert numbers["first_test_error"] == pytest.approx(float(wrong[first].mean()))
    assert numbers["second_test_error"] == pytest.approx(float(wrong[second].mean()))
    assert abs(len(first) - len(second)) <= 1


@pytest.mark.slow
def test_rescalings_tell_which_measures_are_fooled(runs):
    assert fooled(runs, "trace") is True
    assert fooled(runs, "weight_norm") is True
    assert fooled(runs, "path_norm") is False
    assert fooled(runs.where(batch_size=20), "trace") is None  # not tried


# --- the table -----------------------------------------------------------------------------------


@pytest.mark.slow
def test_every_measure_is_ranked(runs):
    table = league(runs, "command", {})
    entries = {entry.name: entry for entry in table.entries}
    recorded = {name for name in registered() if name in runs.rows[0]}
    assert set(MEASURES) <= set(entries) <= recorded
    trace = entries["trace"]
    tau = stats.kendalltau(runs.column("trace"), runs.column("gap"))[0]
    assert trace.ranks["gap"].kendall.value == pytest.approx(tau)
    error_gap = runs.column("test_error") - runs.column("train_error")
    rho = stats.spearmanr(runs.column("trace"), error_gap)[0]
    assert trace.ranks["error_gap"].spearman.value == pytest.approx(rho)
    assert trace.gradients > 0
    # a lower share is the sharper one, so that its negative is ranked
    share = entries["near_zero_share"]
    assert share.sign == -1
    assert share.ranks["gap"].models == np.isfinite(runs.column("near_zero_share")).sum()
    coefficients = [entry.ranks["gap"].granulated.value for entry in entries.values()]
    finite = [c for c in coefficients if math.isfinite(c)]
    assert finite == sorted(finite, reverse=True)
    assert table.settings["width"] == [int(row["network"].split("-")[1]) for row in runs.rows]
    assert set(table.settings["learning_rate"]) == {"low", "high"}
    assert set(table.gaps) == set(GAPS)


@pytest.mark.slow
def test_nothing_is_ranked_without_networks(runs):
    nothing = runs.where(seed=7)
    with pytest.raises(InputError, match="0 networks"):
        league(nothing, "command", {})
    assert predicts("trace", 1)(nothing).verdict == "undecided"
    assert picks_better("trace")(nothing).verdict == "undecided"


# --- picking -------------------------------------------------------------------------------------


def world(seed=0, n=150):
    """Networks whose test error is their own plus the noise of each half."""
    random = np.random.default_rng(seed)
    truth = random.uniform(0.1, 0.3, 2 * n)
    errors = random.binomial(50, truth, (2, 2 * n)) / 50
    return Choices(np.repeat(["a", "b"], n), errors, np.full(2 * n, 50)), truth


def test_picks_by_hand():
    choices, truth = world()
    measure = truth + np.random.default_rng(1).normal(0, 0.05, len(truth))
    changes = []
    for drawn in choices._drawn:
        for candidates in drawn[0]:
            for validation, test in (choices.errors, choices.errors[::-1]):
                lowest = min(candidates, key=lambda i: validation[i])
                error = validation[lowest]
                margin = math.sqrt(error * (1 - error) / 50)
                near = [i for i in candidates if validation[i] <= error + margin]
                flattest = min(near, key=lambda i: measure[i])
                changes.append(test[flattest] - test[lowest])
    assert choices.judge(measure).value == pytest.approx(np.mean(changes))


def test_what_knows_the_truth_picks_better_and_its_opposite_worse():
    choices, truth = world()
    best, last = choices.judge(truth), choices.judge(-truth)
    assert best.high < 0 < last.low
    nothing = choices.judge(np.full(len(truth), np.nan))  # the first of those near the lowest
    assert math.isfinite(nothing.value)


# --- claims --------------------------------------------------------------------------------------


def made(slope, tmp_path):
    """Rows of 32 networks whose gap goes with the path norm by this slope, beside noise."""
    random = np.random.default_rng(0)
    axes = itertools.product((0.1, 0.2), (10, 25), ("64-30-10", "64-60-10"), range(4))
    rows = []
    for rate, batch, network, seed in axes:
        norm = random.normal()
        gap = slope * norm + 0.3 * random.normal()
        rows.append(
            {"data": "digits", "optimizer": "sgd", "learning_rate": rate, "batch_size": batch}
            | {"network": network, "seed": seed, "gap": gap, "path_norm": norm, "key": ""}
        )
    return Runs(tuple(rows), (), tmp_path)


@pytest.mark.parametrize(("slope", "verdict"), [(1, "holds"), (-1, "does not hold")])
def test_claims_about_measures_can_hold_and_fail(slope, verdict, tmp_path):
    finding = predicts("path_norm", 1)(made(slope, tmp_path))
    assert finding.verdict == verdict
    assert predicts("path_norm", -1)(made(slope, tmp_path)).effect == -finding.effect


# --- the whole, as `lowland reproduce league` has it ---------------------------------------------


@pytest.mark.slow
def test_the_study_has_a_table_and_a_page(store, tmp_path):
    study = Study(**{**vars(STUDY), "grid": small(), "quick": small(), "claims": STUDY.claims[2:3],
                     "panels": STUDY.panels[1:2]})  # fmt: skip
    outcome = reproduce(study, store, executor="serial")
    html = (store / outcome.folder / "league-table.html").read_text(encoding="utf-8")
    assert "<h1>Which measure predicts the gap</h1>" in html
    assert len(html) < 3e6
    text = page(outcomes(store))
    assert "8 networks on digits, all trained to a loss of 0.1" in text
    assert "| Path norm | " in text
    assert "| Hessian trace&ensp;⚠ | " in text
    assert "`league-table.html`" in text
    assert "The larger the path norm, the larger the gap." in text


@pytest.mark.slow
def test_words_leave_out_what_is_not_defined(runs):
    text = told(league(runs.where(network="64-8-10"), "command", {}))
    assert "nan" not in text


@pytest.mark.slow
def test_words_say_where_rescalings_were_not_tried(runs):
    text = told(league(runs.where(batch_size=20), "command", {}))
    assert "| Path norm&ensp;? | " in text
