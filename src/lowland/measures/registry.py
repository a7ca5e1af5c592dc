"""Measures and their metadata: a file in this folder is all that a new measure needs.

Whatever shows measures (tables, the report, the docs gallery, the test battery) reads this
registry and never names one.
"""

import difflib
import functools
import importlib
import math
import pkgutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Self

from lowland.budget import DEFAULT, Clock, OutOfBudget, in_words, named
from lowland.errors import InputError
from lowland.findings import Decomposition, MeasureRow, encode
from lowland.measures.schedule import Progress, Schedule, silent
from lowland.measures.shared import decomposed
from lowland.measures.sharing import share, sharing
from lowland.problem import Problem, differentiating
from lowland.usercode import blame, described

if TYPE_CHECKING:
    import pandas as pd

# In the order in which tables show them.
FAMILIES = (
    *("outcome", "curvature", "normalized", "perturbation", "volume", "norms", "bounds"),
    *("gradients", "duality"),
)
# Function-preserving transformations of ReLU networks, and one that keeps only the decision:
# "layers" rescales one layer against the next (Dinh et al. 2017), "units" each hidden unit with a
# factor of its own (Tsuzuku et al., Sec. 5.1), "outputs" multiplies the last layer.
TRANSFORMATIONS = ("layers", "units", "outputs")


@dataclass(frozen=True)
class Value:
    """What a measure's function returns; ``parts`` are terms that it is made of, by name."""

    value: float
    method: str
    stderr: float | None = None
    parts: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Measure:
    """A measure: how to compute it, and all that may be said of it without computing it.

    ``invariant`` names those of ``TRANSFORMATIONS`` that leave it unchanged. The test battery
    checks that it holds where claimed and fails where not. Permuting hidden units, the order of
    samples and how they are batched must leave every measure unchanged.
    """

    name: str
    title: str
    family: str
    formula: str
    definition: str
    citation: str
    sharper: Literal["higher", "lower"] | None
    needs_test: bool
    needs_initial: bool  # the weights that the training started from
    invariant: frozenset[str]
    loss: str | None  # measured with this loss instead of the problem's own
    trains: bool  # optimises or samples for thousands of gradients; runs only when it is named
    function: Callable[[Problem], Value] = field(repr=False)


@dataclass(frozen=True)
class Measurement:
    """One measure of one problem: a value with its error, or the reason why there is none."""

    measure: Measure
    value: float | None
    stderr: float | None
    method: str | None
    reason: str | None
    seconds: float
    gradients: float | None = None  # the same in gradients of the training loss
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
        about = {name: value for name, value in vars(self.measure).items() if name != "function"}
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

    def whole(self) -> Self:
        """The measurements, if no interrupt cut them short; otherwise that interrupt."""
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


_REGISTERED: dict[str, Measure] = {}


def register(
    *,
    title: str,
    family: str,
    formula: str,
    definition: str,
    citation: str,
    sharper: Literal["higher", "lower"] | None,
    needs_test: bool = False,
    needs_initial: bool = False,
    invariant: tuple[str, ...] = (),
    loss: str | None = None,
    trains: bool = False,
) -> Callable[[Callable[[Problem], Value]], Callable[[Problem], Value]]:
    """Make a function of a Problem a measure of the same name."""

    def add(function: Callable[[Problem], Value]) -> Callable[[Problem], Value]:
        name = function.__name__
        _REGISTERED[name] = Measure(
            name=name, title=title, family=family, formula=formula, definition=definition,
            citation=citation, sharper=sharper, needs_test=needs_test, needs_initial=needs_initial,
            invariant=frozenset(invariant), loss=loss, trains=trains, function=function,
        )  # fmt: skip
        return function

    return add


def registered() -> dict[str, Measure]:
    """Every measure by name, family by family: this folder's modules are imported to find them."""
    package = importlib.import_module("lowland.measures")
    for module in sorted(m.name for m in pkgutil.iter_modules(package.__path__)):
        importlib.import_module(f"lowland.measures.{module}")
    order = sorted(_REGISTERED.values(), key=lambda m: (FAMILIES.index(m.family), m.name))
    return {m.name: m for m in order}


def chosen_measures(names: Sequence[str] | str | None) -> dict[str, Measure]:
    """The measures of these names, or all that need no training of their own."""
    known = registered()
    if names is None:
        return {name: m for name, m in known.items() if not m.trains}
    chosen = [names] if isinstance(names, str) else list(names)
    for name in chosen:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise InputError(f"no measure named {name!r}; there are {', '.join(known)}{hint}")
    return {name: known[name] for name in chosen}


@differentiating()
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
    schedule = Schedule(Clock(named(budget, DEFAULT if names is None else math.inf)), progress)
    with sharing():
        if decomposition is not None:
            share(decomposed.decomposition, problem, decomposition)
        measuring = Measuring(problem, chosen, schedule)
        schedule.run(measuring.tasks)
        return measuring.measurements()


class Measuring:
    """Measures under way: the rows so far, and what is left to do."""

    def __init__(self, problem: Problem, chosen: dict[str, Measure], schedule: Schedule) -> None:
        self.problem, self.chosen, self.schedule = problem, chosen, schedule
        self.rows: dict[str, Measurement] = {}
        self._problems: dict[str | None, Problem] = {None: problem}  # with each loss so far
        self._gradient = _seconds_of_a_gradient(problem)

    @property
    def tasks(self) -> dict[str, Callable[[], None]]:
        """What computes each measure that has no row yet, by its name."""
        return {
            name: functools.partial(self.measure, name)
            for name in self.chosen
            if name not in self.rows
        }

    def measurements(self) -> Measurements:
        """Everything in the order asked for; what was not computed with the reason."""
        rows = [
            self.rows.get(name) or self._row(known, 0.0, None, self.schedule.reason(name))
            for name, known in self.chosen.items()
        ]
        return Measurements(rows, interrupted=self.schedule.clock.interrupted)

    def measure(self, name: str) -> None:
        """Compute one measure: its row has the value, or the reason why there is none."""
        began = time.perf_counter()
        known = self.chosen[name]
        try:
            value, reason = self._value(known)
        except (KeyboardInterrupt, OutOfBudget) as end:
            why = "interrupted" if isinstance(end, KeyboardInterrupt) else "stopped: out of time"
            spent = time.perf_counter() - began
            self.rows[name] = self._row(known, spent, None, f"{why} after {in_words(spent)}")
            raise
        self.rows[name] = self._row(known, time.perf_counter() - began, value, reason)

    def _value(self, known: Measure) -> tuple[Value | None, str | None]:
        problem = self.problem
        if known.needs_test and not problem.has_test:
            return None, "does not apply: needs test data"
        if known.needs_initial and not problem.has_initial:
            return None, "does not apply: needs the initial weights, Problem(initial=...)"
        try:
            if known.loss is not None and known.loss not in self._problems:
                self._problems[known.loss] = problem.with_loss(known.loss)
            value = known.function(self._problems[known.loss])
        except InputError as error:
            return None, f"does not apply: {error}"
        except Exception as error:  # of the user's code or a defect of ours: the others stand
            where = blame(error) or "in Lowland itself"
            return None, f"failed: {described(error)} ({where})"
        if not math.isfinite(value.value):
            return None, f"is not finite: {value.method}"
        return value, None

    def _row(
        self, known: Measure, seconds: float, value: Value | None, reason: str | None
    ) -> Measurement:
        return Measurement(
            measure=known,
            value=value.value if value else None,
            stderr=value.stderr if value else None,
            method=value.method if value else None,
            reason=reason,
            seconds=seconds,
            gradients=seconds / self._gradient if self._gradient else None,
            predicted=self.schedule.predicted(known.name),
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
    return max(min(times), 1e-9)
