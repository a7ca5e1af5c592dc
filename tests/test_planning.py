"""Plans: what fits a budget, in which order, and what it is said to take."""

from dataclasses import replace

import pytest
import torch
from torch import nn

import lowland as ll
from lowland.budget import UNITS, Clock, Work
from lowland.measures import Copies, Measuring, Schedule, Task, chosen_measures, registered
from lowland.measures.planning import Plan, Prices
from lowland.measures.prices import prices
from lowland.measures.sharing import once, work_of
from test_duality import make_problem

SECOND = dict.fromkeys(UNITS, 1.0)


@once(Work(gradients=10))
def spectrum(problem):
    return None


@once(Work(gradients=1, needs=(spectrum,)))
def leading(problem):
    return None


def plan(tasks, allowed, count=1000):
    known = Prices(SECOND, lambda function: function.cost)
    return Plan.of(tasks, known, allowed, count)


def test_every_measure_says_what_it_takes():
    problem = make_problem()
    for name, known in registered().items():
        work = work_of(known.cost, problem)
        assert isinstance(work, Work), name
        assert all(getattr(work, unit) >= 0 for unit in UNITS), name
        assert all(hasattr(function, "cost") for function in work.needs), name


def test_shared_work_is_counted_once_and_cheap_tasks_come_first():
    tasks = {
        "largest": Task(Work(needs=(leading,))),
        "norm": Task(Work(forwards=0.5, needs=(spectrum,))),
        "share": Task(Work(needs=(spectrum,))),
        "rise": Task(Work(forwards=3)),
        "none": Task(Work()),
    }
    made = plan(tasks, allowed=100)
    # after the spectrum, which is paid for by the first to need it, the rest is cheap
    assert made.takes == {"none": 0, "rise": 3, "share": 10, "norm": 0.5, "largest": 1}
    assert made.alone == {"largest": 11, "norm": 10.5, "share": 10, "rise": 3, "none": 0}
    assert made.seconds == 14.5


def test_the_same_work_for_another_loss_is_other_work():
    tasks = {"a": Task(Work(needs=(spectrum,))), "b": Task(Work(needs=(spectrum,)), loss="mse")}
    assert plan(tasks, 100).seconds == 20


def test_what_does_not_fit_is_left_out_and_said():
    tasks = {"cheap": Task(Work(forwards=2)), "dear": Task(Work(gradients=20))}
    made = plan(tasks, allowed=10)
    assert list(made.takes) == ["cheap"]
    line = made.in_words(10, "1,000 samples, 5 weights")
    assert line == (
        "one gradient takes 1.0 s here (1,000 samples, 5 weights); 1 measure: about 2.0 s of "
        "10 s; 1 does not fit (dear): --budget none does that"
    )


def test_what_comes_first_does_so_whatever_it_takes():
    tasks = {
        "cheap": Task(Work(forwards=1)),
        "the split": Task(Work(gradients=8), first=True),
        "a minimum": Task(Work(gradients=2), first=True),
    }
    assert list(plan(tasks, 100).takes) == ["the split", "a minimum", "cheap"]


def test_what_reads_a_task_comes_after_it_or_not_at_all():
    """One analysis, one decomposition: no measure makes another one of its own."""
    tasks = {
        "part": Task(Work(needs=(spectrum,))),
        "the split": Task(Work(gradients=60), first=True, gives=(spectrum,)),
    }
    assert plan(tasks, 100).takes == {"the split": 60, "part": 0}
    assert plan(tasks, 50).takes == {}
    smaller = {**tasks, "the split": replace(tasks["the split"], sampled=Copies(1, 1))}
    assert plan(smaller, 50, count=1024).takes == {"the split": 15, "part": 0}


def test_a_subset_takes_what_all_samples_do_not_and_the_cheap_ones_keep_all():
    sampled = Copies(passes=2, flops=5)
    tasks = {
        "cheap": Task(Work(forwards=4), sampled=sampled),
        "dear": Task(Work(needs=(spectrum,)), sampled=sampled),
        "dearer": Task(Work(gradients=20, flops=0.1), sampled=sampled),
        "bound": Task(Work(forwards=30)),
    }
    made = plan(tasks, allowed=14, count=1024)
    # 10 s are left for 2 x 30 gradients on a share of 1/8, and 5 x 0.1 s
    assert made.samples == 128
    assert made.sampled == {"dear", "dearer"}
    assert made.takes == pytest.approx({"cheap": 4, "dear": 2.5, "dearer": 5.5})
    assert "; 2 of them on 128 samples; 1 does not fit (bound)" in made.in_words(14, "")
    # few samples are not divided further
    assert plan(tasks, allowed=14, count=200).samples is None


def test_what_another_goes_through_all_samples_for_is_not_done_again_on_a_subset():
    sampled = Copies(passes=2, flops=1)
    tasks = {
        "share": Task(Work(forwards=1, needs=(spectrum,))),  # of all samples
        "norm": Task(Work(needs=(spectrum,)), sampled=sampled),
        "largest": Task(Work(needs=(leading,)), sampled=sampled),
        "dear": Task(Work(gradients=40), sampled=sampled),
        "never": Task(Work(gradients=4000), sampled=sampled),  # so that the subset is the least
    }
    made = plan(tasks, allowed=19, count=1024)
    assert made.sampled == {"dear"}
    # 11 s for the share and what it needs; what others read of it is theirs for nothing
    assert made.takes == pytest.approx({"dear": 5, "share": 11, "norm": 0, "largest": 1})
    # without time for all samples, a subset's is all there is
    made = plan(tasks, allowed=16, count=1024)
    assert made.sampled == {"dear", "norm", "largest"}
    assert "share" not in made.takes


def test_prices_are_positive_and_in_proportion_to_the_samples():
    known = prices(make_problem())
    assert set(known.units) == set(UNITS)
    assert all(seconds > 0 for seconds in known.units.values())


def test_prices_that_a_short_run_has_no_time_for_are_those_usual():
    units = prices(make_problem(), allowed=0.0).units
    assert set(units) == set(UNITS)
    usual = {"products": 3, "columns": 3, "ggn_columns": 3, "diagonals": 10, "fishers": 2}
    assert {unit: units[unit] / units["gradients"] for unit in usual} == pytest.approx(usual)


def test_prices_of_a_model_that_has_no_second_derivatives_are_those_usual():
    class Opaque(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return 2 * x

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx, grad):
            return 2 * grad

    class Model(nn.Linear):
        def forward(self, x):
            return Opaque.apply(super().forward(x))

    problem = ll.Problem(Model(3, 2), train=(torch.randn(8, 3), torch.arange(8) % 2))
    assert set(prices(problem).units) == set(UNITS)


def test_an_analysis_under_a_short_budget_says_what_is_missing_and_how_long_it_takes():
    problem = make_problem()
    results = ll.analyze(problem, budget=1e-3).results
    assert results.outcome.gap is not None
    assert results.course.budget == 1e-3
    missing = [row for row in results.measures if row.value is None and not row.needs_initial]
    assert missing
    for row in missing:
        assert "budget" in row.reason or row.reason.startswith("does not apply")


def test_a_budget_that_runs_out_within_a_measure_stops_there():
    schedule = Schedule(Clock(0.2))  # without a plan, as if the prediction were wrong
    measuring = Measuring(
        make_problem(), chosen_measures(["weight_norm", "local_entropy", "trace"]), schedule
    )
    schedule.run(measuring.tasks)
    rows = measuring.measurements()
    assert rows["weight_norm"].value is not None
    assert rows["local_entropy"].reason.startswith("stopped: the budget of 0.2 s ran out after ")
    assert rows["trace"].reason.startswith("the budget of 0.2 s ran out")
    assert not rows.interrupted


def test_stages_know_how_far_the_run_is():
    stages = []
    ll.measure(make_problem(), ["trace", "weight_norm"], budget="1h", progress=stages.append)
    first, announced, *rest = stages
    assert first == "what one gradient takes"
    assert announced.lasting
    assert announced.startswith("one gradient takes ")
    assert rest == ["measures: trace", "measures: weight_norm"]  # what is asked for before all
    assert rest[0].done == 0
    assert rest[1].left <= rest[0].left
