"""Measures and their metadata: a file in this folder is all that a new measure needs.

Whatever shows measures (tables, the report, the docs gallery, the test battery) reads this
registry and never names one.
"""

import difflib
import importlib
import pkgutil
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Literal

from lowland.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

    from lowland.problem import Problem


@dataclass(frozen=True)
class Value:
    """What a measure's function returns."""

    value: float
    method: str
    stderr: float | None = None


@dataclass(frozen=True)
class Measure:
    """A measure: how to compute it, and all that may be said of it without computing it.

    ``invariant`` names the transformations that leave it unchanged: ``"rescaling"`` stands for the
    function-preserving rescalings of ReLU networks (Dinh et al. 2017). The test battery checks
    that it holds where claimed and fails where not. Permuting hidden units, the order of samples
    and how they are batched must leave every measure unchanged.
    """

    name: str
    title: str
    formula: str
    definition: str
    citation: str
    sharper: Literal["higher", "lower"] | None
    needs_test: bool
    invariant: frozenset[str]
    function: Callable[["Problem"], Value] = field(repr=False)


@dataclass(frozen=True)
class Measurement:
    """One measure of one problem: a value with its error, or the reason why there is none."""

    measure: Measure
    value: float | None
    stderr: float | None
    method: str | None
    reason: str | None
    seconds: float

    def __repr__(self) -> str:
        if self.value is None:
            return f"{self.measure.name}: {self.reason}"
        error = f" ± {self.stderr:.2g}" if self.stderr is not None else ""
        return f"{self.measure.name}: {self.value:.6g}{error} ({self.method})"

    def to_dict(self) -> dict[str, object]:
        """Value and metadata, ready for JSON."""
        known = asdict(self.measure)
        del known["function"]
        known["invariant"] = sorted(self.measure.invariant)
        rest = {k: v for k, v in vars(self).items() if k != "measure"}
        return {**known, **rest}


class Measurements(Mapping[str, Measurement]):
    """Measurements of one problem by name."""

    def __init__(self, rows: list[Measurement]) -> None:
        self._rows = {row.measure.name: row for row in rows}

    def __getitem__(self, name: str) -> Measurement:
        return self._rows[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def __repr__(self) -> str:
        return "\n".join(map(repr, self._rows.values()))

    def to_dict(self) -> dict[str, dict[str, object]]:
        """Everything by name, ready for JSON."""
        return {name: row.to_dict() for name, row in self._rows.items()}

    def to_frame(self) -> "pd.DataFrame":
        """A table with one row per measure."""
        import pandas as pd

        columns = ["value", "stderr", "method", "reason", "seconds"]
        return pd.DataFrame(
            [[vars(row)[c] for c in columns] for row in self._rows.values()],
            index=pd.Index(self._rows, name="measure"),
            columns=columns,
        )


_REGISTERED: dict[str, Measure] = {}


def register(
    *,
    title: str,
    formula: str,
    definition: str,
    citation: str,
    sharper: Literal["higher", "lower"] | None,
    needs_test: bool = False,
    invariant: tuple[str, ...] = (),
) -> Callable[[Callable[["Problem"], Value]], Callable[["Problem"], Value]]:
    """Make a function of a Problem a measure of the same name."""

    def add(function: Callable[["Problem"], Value]) -> Callable[["Problem"], Value]:
        name = function.__name__
        _REGISTERED[name] = Measure(
            name, title, formula, definition, citation, sharper, needs_test, frozenset(invariant),
            function,
        )  # fmt: skip
        return function

    return add


def registered() -> dict[str, Measure]:
    """Every measure by name: the modules of this folder are imported to find them."""
    package = importlib.import_module("lowland.measures")
    for module in sorted(m.name for m in pkgutil.iter_modules(package.__path__)):
        importlib.import_module(f"lowland.measures.{module}")
    return dict(sorted(_REGISTERED.items()))


def measure(problem: "Problem", names: list[str] | str | None = None) -> Measurements:
    """Compute measures of a problem: all of them, or those named.

    One that does not apply (no test data, a layer it does not know) gives a row with the reason,
    and the others go on.
    """
    known = registered()
    chosen = list(known) if names is None else [names] if isinstance(names, str) else list(names)
    for name in chosen:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise InputError(f"no measure named {name!r}; there are {', '.join(known)}{hint}")
    return Measurements([_run(known[name], problem) for name in chosen])


def _run(chosen: Measure, problem: "Problem") -> Measurement:
    began = time.perf_counter()
    if chosen.needs_test and not problem.has_test:
        return Measurement(chosen, None, None, None, "does not apply: needs test data", 0.0)
    try:
        found = chosen.function(problem)
    except InputError as error:
        seconds = time.perf_counter() - began
        return Measurement(chosen, None, None, None, f"does not apply: {error}", seconds)
    seconds = time.perf_counter() - began
    return Measurement(chosen, found.value, found.stderr, found.method, None, seconds)
