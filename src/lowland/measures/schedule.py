"""A run in progress: what comes next, how far it is, and how long it will take from there."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

from lowland.budget import Clock, Stage, in_words
from lowland.distributed import ranks
from lowland.errors import InputError
from lowland.findings import Course
from lowland.measures.planning import Plan, Task
from lowland.measures.prices import prices
from lowland.problem import Problem

Progress = Callable[[str], None]
RUN_IT = "budget='none' (--budget none) runs it"


def _subject(problem: Problem) -> str:
    weights = sum(p.numel() for p in problem.params.values())
    size = f"{weights / 1e6:.1f} M" if weights >= 1e6 else f"{weights:,}"
    return f"{problem.count():,} samples, {size} weights"


def silent(stage: str) -> None:
    """Report nothing."""


class Schedule:
    """The clock and the plan of a run, and whom to tell of its stages."""

    def __init__(self, clock: Clock, progress: Progress = silent) -> None:
        self.clock, self.progress = clock, progress
        self.plan: Plan | None = None
        self.finished: set[str] = set()
        self._present: str | None = None  # the task under way
        self._spent = 0.0  # seconds, on all tasks
        self._planned_at = 0.0  # the seconds that were spent when the plan was made

    def make_plan(self, problem: Problem, tasks: Callable[[], Mapping[str, Task]]) -> None:
        """Predict what every task takes, and choose those that fit the time that is left.

        To say what the tasks are may itself take samples through the model.
        """
        if ranks() > 1:  # one process must not stop while others wait for it
            self.clock.allowed = math.inf
            return
        if self.clock.stopped is not None:
            return
        with self.clock.limited(), problem.measuring():
            self.progress("what one gradient takes")
            to_plan = tasks()
            try:
                allowed = self.clock.allowed
                unit_prices = prices(problem, allowed - self.clock.spent)
            except (InputError, RuntimeError):  # no gradient: the measures that need one say why
                return
            self._planned_at = self.clock.spent
            plan = Plan.of(to_plan, unit_prices, allowed - self._planned_at, problem.count())
            self.plan = replace(plan, line=plan.in_words(allowed, _subject(problem)))

    def run(self, tasks: Mapping[str, Callable[[], None]]) -> None:
        """Do the tasks in the order of the plan, until the time is up or Ctrl-C comes."""
        if self.clock.stopped is not None:
            return
        began = self.clock.spent
        with self.clock.limited():
            if self.plan is not None:
                total = self.plan.seconds
                self.progress(Stage(self.plan.line, 0.0, total, total, lasting=True))
            for name in tasks if self.plan is None else self.plan.takes:
                self._present = name
                self.tell(f"measures: {name}" if name.isidentifier() else name)
                tasks[name]()
                self.finished.add(name)
        self._spent = self.clock.spent - began

    def tell(self, text: str) -> None:
        """Tell a stage of the task under way."""
        if self.plan is None:
            self.progress(Stage(text))
            return
        takes, total = self.plan.takes, max(self.plan.seconds, 1e-9)
        left = sum(seconds for name, seconds in takes.items() if name not in self.finished)
        self.progress(Stage(text, 1 - left / total, left, takes.get(self._present or "")))

    def samples(self, name: str) -> int | None:
        """How many samples the plan has for a task; None if it is done on all."""
        return self.plan.samples if self.plan is not None and name in self.plan.sampled else None

    def predicted(self, name: str) -> float | None:
        """The seconds that a task takes by the plan: after the others or, if left out, alone."""
        if self.plan is None:
            return None
        return self.plan.takes.get(name, self.plan.alone.get(name))

    def reason(self, name: str) -> str:
        """Why a task was not done, with the time that it would take."""
        takes = self.plan.alone.get(name) if self.plan is not None else None
        about = f"; it takes about {in_words(takes)}" if takes is not None else ""
        advice = f"{RUN_IT}, or naming it" if name.isidentifier() else RUN_IT
        if self.clock.interrupted:
            return f"interrupted before it began{about}"
        if self.clock.stopped is not None:
            return f"{self.clock.stopped} before it was done{about}: {advice}"
        return f"{self._too_long(takes)}: {advice}"

    def _too_long(self, takes: float | None) -> str:
        """Say what a task does not fit: the budget, what others leave of it, or neither."""
        allowed = self.clock.allowed
        budget = f"the budget of {in_words(allowed)}"
        if takes is None:
            return f"does not fit {budget}"
        left = allowed - self._planned_at - (self.plan.seconds if self.plan is not None else 0.0)
        about = f"it takes about {in_words(takes)}"
        if takes > allowed:
            # Times that read the same would seem to fit.
            same = in_words(takes) == in_words(allowed)
            return f"does not fit {budget}; {'it takes a little more' if same else about}"
        if takes > left:
            room = (
                in_words(left) if left > 0 and in_words(left) != in_words(takes) else "too little"
            )
            return f"the others leave {room} of {budget}; {about}"
        return f"reads what does not fit {budget}"

    def course(self) -> Course:
        """What was planned and what was done, for the saved record."""
        plan, limit = self.plan, self.clock.allowed
        return Course(
            budget=limit if limit < float("inf") else None,
            gradient=plan.gradient if plan else None,
            planned=plan.line if plan else None,
            predicted=plan.seconds if plan else None,
            spent=self._spent,
            samples=plan.samples if plan else None,
            stopped=self.clock.stopped,
            interrupted=self.clock.interrupted,
        )
