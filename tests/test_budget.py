"""The budget: reading it, keeping to it, and ending early with all that was done."""

import json
import math
import signal
import time
from dataclasses import replace

import pytest
import torch
from torch import nn

import lowland as ll
from commandline import ANALYZE, MINE, run_inside
from lowland import budget
from lowland.errors import InputError
from lowland.measures import registry
from test_duality import make_problem

OUTCOME = ("train_loss", "test_loss", "train_error", "test_error", "gap")


@pytest.fixture
def project(tmp_path):
    (tmp_path / "mine.py").write_text(MINE)
    return tmp_path


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        *((90, 90.0), (0.5, 0.5), ("90", 90.0), ("90s", 90.0), ("5m", 300.0), ("5min", 300.0)),
        *(("1h30m", 5400.0), ("1h 30m", 5400.0), ("2h", 7200.0), ("1.5h", 5400.0)),
        *(("1m30", 90.0), (" None ", math.inf), ("none", math.inf), (math.inf, math.inf)),
    ],
)
def test_a_budget_is_read(given, expected):
    assert budget.seconds(given) == expected


@pytest.mark.parametrize(
    "given", ["", "5 apples", "m5", "-3", -3, 0, "0s", math.nan, True, "1.2.3"]
)
def test_what_is_no_budget_is_refused_with_what_was_expected(given):
    with pytest.raises(InputError, match=r"'90s', '5m' or '1h30m'.*got "):
        budget.seconds(given)


def test_work_that_runs_out_of_time_stops_between_passes_over_the_data():
    problem = make_problem()
    clock = budget.Clock(0.01)
    with clock.limited():
        while True:
            problem.losses("train")
    assert clock.stopped == "the budget of 10 ms ran out"
    assert not clock.interrupted
    problem.losses("train")  # the limit ends with the block


def test_losses_and_errors_are_measured_whatever_the_budget():
    rows = ll.measure(make_problem(), budget=1e-6)
    assert all((row.value is not None) == (name in OUTCOME) for name, row in rows.items())
    assert "ran out" in rows["trace"].reason


def test_a_part_of_a_run_ends_quietly_and_the_run_goes_on_unless_its_own_time_is_up():
    problem, clock, passes = make_problem(), budget.Clock(3600), 0
    with clock.limited():
        with budget.at_most(0.0):
            problem.losses("train")
            passes += 1
        problem.losses("train")
        passes += 1
    assert passes == 1
    assert clock.stopped is None
    short = budget.Clock(0.0)
    with short.limited(), budget.at_most(3600):
        problem.losses("train")
    assert short.stopped is not None


def interrupting(name: str, count: int = 1):
    """A progress callback that sends Ctrl-C when a stage of this name begins."""

    def progress(stage: str) -> None:
        if stage.endswith(name):
            for _ in range(count):
                signal.raise_signal(signal.SIGINT)

    return progress


def test_an_interrupted_measure_call_returns_what_was_done():
    names = ["weight_norm", "train_loss", "trace", "fisher_trace"]
    rows = ll.measure(make_problem(), names, progress=interrupting("trace"))
    assert rows.interrupted
    assert [row.value is not None for row in rows.values()] == [True, True, False, False]
    assert rows["fisher_trace"].reason == "interrupted before it began"
    with pytest.raises(KeyboardInterrupt):
        rows.whole()


class Interrupted(nn.Module):
    """Sends Ctrl-C in a forward pass of its choice."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.passes = nn.Linear(3, 2), -1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.passes -= 1
        if self.passes == 0:
            signal.raise_signal(signal.SIGINT)
        return self.inner(x)


def test_an_interrupt_within_a_measure_leaves_no_trace_on_the_model():
    model = Interrupted().train()
    x, y = torch.randn(6, 3), torch.arange(6) % 2
    problem = ll.Problem(model, train=(x, y))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    model.passes = 12
    rows = ll.measure(problem, ["train_loss", "expected_sharpness", "weight_norm"])
    assert rows["expected_sharpness"].reason.startswith("interrupted after ")
    assert rows["weight_norm"].reason == "interrupted before it began"
    assert model.training
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_an_interrupted_analysis_is_returned_and_saved(tmp_path):
    out = tmp_path / "out"
    analysis = ll.analyze(make_problem(), out=out, progress=interrupting("fisher_trace"))
    results = ll.load(out).results
    assert results.course.interrupted
    assert results.course.stopped == "interrupted"
    assert results.outcome == analysis.results.outcome
    assert results.outcome.gap is not None
    reasons = {row.name: row.reason for row in results.measures}
    assert reasons["fisher_trace"].startswith("interrupted before it began")
    assert all(reasons[name] is None for name in OUTCOME)


def test_an_interrupt_before_any_step_of_the_explanation_keeps_the_outcome():
    progress = interrupting("pairs of test and training samples")
    results = ll.analyze(make_problem(), progress=progress).results
    assert results.outcome.gap is not None
    assert results.duality is None
    assert results.convergence.gradient is None
    assert results.convergence.state in ("unknown", "untrained")
    assert all(row.value is None for row in results.measures if row.name not in OUTCOME)


def test_an_interrupt_while_costs_are_told_keeps_the_outcome(monkeypatch):
    def interrupted(problem):
        signal.raise_signal(signal.SIGINT)

    measures = registry.registered()
    dear = replace(measures["path_norm"], cost=interrupted)
    monkeypatch.setattr(registry, "_REGISTERED", {**measures, "path_norm": dear})
    results = ll.analyze(make_problem()).results
    assert results.course.interrupted
    assert results.course.planned is None
    assert results.outcome.gap is not None
    assert all(row.value is None for row in results.measures if row.name not in OUTCOME)
    assert ll.measure(make_problem(), budget="1m").interrupted


def test_a_network_that_is_not_trained_is_told_whenever_the_analysis_ends():
    torch.manual_seed(0)
    model, x = nn.Linear(3, 2), torch.randn(40, 3)
    y = (model(x)[:, 0] > model(x)[:, 1]).long()  # always wrong
    problem = ll.Problem(model, train=(x[:20], y[:20]), test=(x[20:], y[20:]))
    analysis = ll.analyze(problem, progress=interrupting("pairs of test and training samples"))
    assert analysis.results.convergence.state == "untrained"
    assert analysis.answer.startswith("This network is not trained")


def test_an_interrupt_before_there_is_an_outcome_raises():
    with pytest.raises(KeyboardInterrupt):
        ll.analyze(make_problem(), progress=interrupting("losses and errors"))


def test_a_second_interrupt_raises_and_writes_nothing(tmp_path, monkeypatch):
    def again(model):
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr("lowland.analysis.run.weights_bytes", again)
    with pytest.raises(KeyboardInterrupt):
        ll.analyze(make_problem(), out=tmp_path / "out", progress=interrupting("fisher_trace"))
    assert not list(tmp_path.iterdir())


def test_a_stress_test_that_is_interrupted_raises():
    model = Interrupted()
    problem = ll.Problem(model, train=(torch.randn(6, 3), torch.arange(6) % 2))
    model.passes = 10
    with pytest.raises(KeyboardInterrupt):
        ll.stress(problem, ["expected_sharpness"])


# --- the command line -----------------------------------------------------------------------------

STOPPED = MINE + (
    "\n\nimport signal\n\npasses = []\n\n\nclass Stops(nn.Sequential):\n"
    "    def forward(self, x):\n        passes.append(1)\n"
    "        if len(passes) == 400:\n            signal.raise_signal(signal.SIGINT)\n"
    "        return super().forward(x)\n\n\n"
    "def stops():\n    return Stops(*model())\n"
)


def test_an_interrupted_command_prints_and_writes_what_was_done(project):
    (project / "mine.py").write_text(STOPPED)
    line = ("analyze", "--model", "mine:stops", *ANALYZE[3:])
    ran = run_inside(*line, "--quiet", "--json", cwd=project)
    assert ran.code == 130
    assert ran.err == "lowland: stopped; what was done by then is in out\n"
    saved = json.loads(ran.out)
    assert saved["course"]["interrupted"]
    assert ll.load(project / "out").results.course.interrupted
    done = [row["value"] is not None for row in saved["measures"]]
    assert any(done)
    assert not all(done)


def test_measures_budget_and_title_are_options(project):
    names = ("--measures", "trace,weight_norm", "--measures", "margin")
    ran = run_inside(
        *ANALYZE, *names, "--budget", "1h", "--title", "mine", "--quiet", "--json", cwd=project
    )
    assert ran.code == 0, ran.err
    saved = json.loads(ran.out)
    assert saved["subject"]["title"] == "mine"
    assert saved["course"]["budget"] == 3600.0
    assert [row["name"] for row in saved["measures"]] == [
        *OUTCOME,
        "trace",
        "weight_norm",
        "margin",
    ]
    ran = run_inside(*ANALYZE, "--measures", "none", "--quiet", "--json", cwd=project)
    assert [row["name"] for row in json.loads(ran.out)["measures"]] == list(OUTCOME)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--budget", "soon"), "budget is a time such as '90s'"),
        (("--measures", "trce"), "no measure named 'trce'"),
    ],
)
def test_a_wrong_option_is_one_line(project, options, says):
    ran = run_inside(*ANALYZE, *options, "--quiet", cwd=project)
    assert (ran.code, ran.out) == (2, "")
    assert says in ran.err
    assert ran.err.count("\n") == 1


def test_lines_of_progress_are_not_more_than_can_be_read(monkeypatch, capsys):
    from lowland.cli.terminal import progress

    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    with progress(quiet=False) as say:
        say(budget.Stage("the plan", 0.0, 100.0, lasting=True))
        for i in range(40):
            say(budget.Stage(f"measures: m{i}", i / 100, 100.0 - i, 0.01))
        now[0] = 6.0
        say(budget.Stage("measures: late", 0.4, 60.0, 0.01))
        say(budget.Stage("measures: long", 0.4, 60.0, 30.0))
    assert capsys.readouterr().err.splitlines() == [
        "lowland: the plan",
        "lowland: measures: m0 (0% done, about 1 min 40 s left)",
        "lowland: measures: late (40% done, about 1 min left)",
        "lowland: measures: long (40% done, about 1 min left)",
    ]
