"""Measuring a problem: what comes of each measure, one after the other, within a budget."""

import functools
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Self

from lowland.budget import DEFAULT, Clock, OutOfBudget, Work, in_words, limit
from lowland.curvature import give_back
from lowland.distributed import ranks
from lowland.errors import InputError
from lowland.figures import draw_measures, drawn_on
from lowland.findings import Decomposition, MeasureRow, Outcome, encode
from lowland.measures.planning import Task
from lowland.measures.registry import Measure, Value, chosen_measures
from lowland.measures.schedule import Progress, Schedule, silent
from lowland.measures.shared import decomposed
from lowland.measures.sharing import FREE, differentiates, share, sharing, work_of
from lowland.measures.subsets import COPIES, Subset
from lowland.problem import Problem, of_a_problem
from lowland.usercode import blame, described

if TYPE_CHECKING:
    import pandas as pd

OUTCOME = tuple(each.name for each in fields(Outcome))  # measures that come first
# What a reader asks for before all: a short budget goes to these and to the split of the gap.
_FIRST = ("largest_eigenvalue", "trace")
_LONG = 1.0  # seconds of a gradient in which warming up does not count


@dataclass(frozen=True)
class Measurement:
    """One measure of one problem: a value with its error, or the reason why there is none."""

    measure: Measure
    value: float | None
    stderr: float | None
    method: str | None
    reason: str | None
    seconds: float
    gradients: float | None = None  # the same in gradients of the training loss, if it takes any
    predicted: float | None = None  # seconds, before it began
    samples: int | None = None  # of the subset that it is from; None if it is from all data
    parts: dict[str, float] = field(default_factory=dict)

    def __repr__(self) -> str:
        if self.value is None:
            return f"{self.measure.name}: {self.reason}"
        error = f" ± {self.stderr:.2g}" if self.stderr is not None else ""
        return f"{self.measure.name}: {self.value:.6g}{error} ({self.method})"

    def row(self) -> MeasureRow:
        """Value and metadata, as they are saved."""
        code = ("function", "cost", "sampled")
        about = {name: value for name, value in vars(self.measure).items() if name not in code}
        about["invariant"] = tuple(sorted(self.measure.invariant))
        rest = {name: value for name, value in vars(self).items() if name != "measure"}
        return MeasureRow(**about, **rest)


class Measurements(Mapping[str, Measurement]):
    """Measurements of one problem by name; ``interrupted`` if some are missing by Ctrl-C."""

    def __init__(self, rows: list[Measurement], interrupted: bool = False) -> None:
        self.interrupted = interrupted
        self._rows = {row.measure.name: row for row in rows}

    def __getitem__(self, name: str) -> Measurement:
        return self._rows[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def __repr__(self) -> str:
        return "\n".join(map(repr, self._rows.values()))

    def plot(self, ax: Any = None) -> Any:
        """Draw the magnitude of each measure with its error on matplotlib axes."""
        return drawn_on(draw_measures, self.rows(), ax)

    def _repr_html_(self) -> str:
        return self.to_frame().to_html(float_format="{:.5g}".format, na_rep="")

    def whole(self) -> Self:
        """The measurements unchanged; raises KeyboardInterrupt if one cut them short."""
        if self.interrupted:
            raise KeyboardInterrupt
        return self

    def rows(self) -> tuple[MeasureRow, ...]:
        """Everything, as it is saved."""
        return tuple(row.row() for row in self._rows.values())

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """Everything by name, ready for JSON."""
        return {row.name: encode(row, {}) for row in self.rows()}

    def to_frame(self) -> "pd.DataFrame":
        """A table with one row per measure."""
        import pandas as pd

        columns = ["value", "stderr", "method", "reason", "seconds", "gradients"]
        return pd.DataFrame(
            [[vars(row)[c] for c in columns] for row in self._rows.values()],
            index=pd.Index(self._rows, name="measure"),
            columns=columns,
        )


@of_a_problem
def measure(
    problem: Problem,
    names: list[str] | str | None = None,
    *,
    budget: float | str | None = None,
    decomposition: Decomposition | None = None,
    progress: Progress = silent,
) -> Measurements:
    """Compute measures of a problem: those named, or all that need no training of their own.

    One that does not apply (no test data, a layer it does not know) gives a row with the reason,
    and the others go on. Ctrl-C ends it with what is done by then; a second one raises at once.

    Args:
        problem: the model and data.
        names: of the measures.
        budget: the time that they may take: ``"90s"``, ``"5m"``, ``"1h30m"``, a number of seconds,
            or ``"none"``. By default five minutes, or none if measures are named. One that does not
            fit gives a row that says how long it would take.
        decomposition: what the measures of the duality are read off; by default that of the layer
            that :func:`lowland.analyze` would choose.
        progress: called with the name of each measure as it begins, a text that also knows how
            much is ``done`` and the seconds ``left`` (see :class:`lowland.budget.Stage`).
    """
    chosen = chosen_measures(names)
    schedule = Schedule(Clock(limit(budget, DEFAULT if names is None else math.inf)), progress)
    with sharing():
        if decomposition is not None:
            share(decomposed.decomposition, problem, decomposition)
        measuring = Measuring(problem, chosen, schedule)
        if names is None or budget is not None:
            with schedule.clock.limited(timed=False):
                measuring.measure_outcome()
            schedule.make_plan(problem, lambda: measuring.costs)
        schedule.run(measuring.tasks)
        return measuring.measurements()


class Measuring:
    """Measures under way: the rows so far, and what is left to do."""

    def __init__(self, problem: Problem, chosen: dict[str, Measure], schedule: Schedule) -> None:
        self.problem, self.chosen, self.schedule = problem, chosen, schedule
        self.rows: dict[str, Measurement] = {}
        self._subset: Subset | None = None  # that the schedule has measures estimated from
        self._works: dict[str, Work] = {}  # what each measure takes, as far as it was asked

    @property
    def tasks(self) -> dict[str, Callable[[], None]]:
        """What computes each measure that has no row yet, by its name."""
        return {
            name: functools.partial(self.measure, name)
            for name in self.chosen
            if name not in self.rows
        }

    @property
    def costs(self) -> dict[str, Task]:
        """The measures as tasks to be planned; one that does not apply takes no time."""
        return {
            name: Task(
                self._work(measure),
                measure.loss,
                first=name in _FIRST,
                sampled=COPIES if measure.sampled else None,
            )
            for name, measure in self.chosen.items()
            if name not in self.rows
        }

    def _work(self, measure: Measure) -> Work:
        """Return what a measure takes; nothing if it does not apply."""
        if measure.name not in self._works:
            lacks = self._lacks(measure)
            self._works[measure.name] = FREE if lacks else work_of(measure.cost, self.problem)
        return self._works[measure.name]

    @functools.cached_property
    def _timed(self) -> float | None:
        """The seconds of a gradient where there is no plan to read them from."""
        return _seconds_of_a_gradient(self.problem)

    def _gradient(self, measure: Measure) -> float | None:
        """Return the seconds of a gradient, in which a measure that takes derivatives is priced."""
        if not differentiates(self._work(measure), self.problem):
            return None
        plan = self.schedule.plan
        return self._timed if plan is None else plan.gradient

    def _lacks(self, measure: Measure) -> str | None:
        """What the measure needs and the problem does not have."""
        if measure.needs_test and not self.problem.has_test:
            return "test data"
        if measure.needs_initial and not self.problem.has_initial:
            return "the initial weights, Problem(initial=...)"
        return None

    def measurements(self) -> Measurements:
        """Everything in the order asked for; what was not computed with the reason."""
        rows = [
            self.rows.get(name) or self._row(measure, 0.0, None, self.schedule.reason(name))
            for name, measure in self.chosen.items()
        ]
        return Measurements(rows, interrupted=self.schedule.clock.interrupted)

    def measure_outcome(self) -> None:
        """Compute losses and errors: whatever the budget, as the rest says little without them."""
        for name in OUTCOME:
            if name in self.chosen:
                self.measure(name)

    def measure(self, name: str) -> None:
        """Compute one measure: its row has the value, or the reason why there is none."""
        give_back(self.problem)
        measure = self.chosen[name]
        gradient = self._gradient(measure)
        began = time.perf_counter()
        try:
            value, reason = self._value(measure)
        except (KeyboardInterrupt, OutOfBudget) as end:
            spent = time.perf_counter() - began
            limit = in_words(self.schedule.clock.allowed)
            out_of_time = f"stopped: the budget of {limit} ran out"
            why = "interrupted" if isinstance(end, KeyboardInterrupt) else out_of_time
            reason = f"{why} after {in_words(spent)}"
            self.rows[name] = self._row(measure, spent, None, reason, gradient)
            raise
        self.rows[name] = self._row(measure, time.perf_counter() - began, value, reason, gradient)

    def _value(self, measure: Measure) -> tuple[Value | None, str | None]:
        if lacks := self._lacks(measure):
            return None, f"does not apply: needs {lacks}"
        try:
            if samples := self.schedule.samples(measure.name):
                self._subset = self._subset or Subset(self.problem, samples)
                value = self._subset.value(measure)
            else:
                loss = measure.loss
                problem = self.problem if loss is None else self.problem.with_loss(loss)
                with problem.measuring():  # once for all that it computes
                    value = measure.function(problem)
        except InputError as error:
            return None, f"does not apply: {error}"
        except Exception as error:  # of the user's code or a defect of ours: the others stand
            where = blame(error) or "in Lowland itself"
            return None, f"failed: {described(error)} ({where})"
        if not math.isfinite(value.value):
            return None, f"is not finite: {value.method}"
        return value, None

    def _row(
        self,
        measure: Measure,
        seconds: float,
        value: Value | None,
        reason: str | None,
        gradient: float | None = None,
    ) -> Measurement:
        return Measurement(
            measure=measure,
            value=value.value if value else None,
            stderr=value.stderr if value else None,
            method=value.method if value else None,
            reason=reason,
            seconds=seconds,
            gradients=None if gradient is None else seconds / gradient,
            predicted=self.schedule.predicted(measure.name),
            samples=self.schedule.samples(measure.name),
            parts=value.parts if value else {},
        )


def _seconds_of_a_gradient(problem: Problem) -> float | None:
    """How long one gradient of the training loss takes, the unit of cost; None if it fails."""
    times = []
    for _ in range(2):  # the first also warms up
        began = time.perf_counter()
        try:
            problem.gradient()
        except Exception:  # the measures that need one say why
            return None
        times.append(time.perf_counter() - began)
        if times[0] > _LONG and ranks() == 1:  # several must do the same
            break
    return max(min(times), 1e-9)
