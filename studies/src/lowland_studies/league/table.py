"""The league table: every measure as a predictor of the gap, over the networks of a store."""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any, Literal

import numpy as np

from lowland.errors import InputError
from lowland.results import load
from lowland_studies.evidence import Runs
from lowland_studies.league.found import GAPS, Entry, League
from lowland_studies.league.picking import Choices
from lowland_studies.league.ranking import Models
from lowland_studies.study import Finding

# Settings that networks differ in, and are matched by.
SETTINGS = (
    *("data", "learning_rate", "batch_size", "decay", "init_scale", "width", "depth", "dropout"),
    *("label_noise", "optimizer", "seed"),
)
# Rescalings that leave the function as it is.
_RESCALINGS = ("layers", "units")


def league(runs: Runs, command: str, verdicts: Mapping[str, Finding]) -> League:
    """Judge every recorded measure but outcomes, the best first by its granulated coefficient.

    Measures that read test data come last: they describe the gap rather than predict it.
    ``verdicts`` are what became of sentences about measures.
    """
    from lowland.measures import registered

    if len(runs) < 2:
        raise InputError(f"{len(runs)} networks reached their training loss; a rank needs two")
    settings = settings_of(runs)
    gaps = {name: gap_of(runs, name) for name in GAPS}
    models = {name: Models(gap, settings) for name, gap in gaps.items()}
    notes = _notes(runs)
    choices = choices_of(runs, notes)
    entries, values = [], {}
    for name, measure in registered().items():
        if measure.family == "outcome" or name not in runs.rows[0]:
            continue
        sign: Literal[1, -1] = -1 if measure.sharper == "lower" else 1
        numbers = runs.column(name)
        if not np.isfinite(numbers).any():
            continue
        values[name] = [_rounded(number) for number in numbers]
        entries.append(
            Entry(
                name=name,
                title=measure.title,
                family=measure.family,
                sign=sign,
                tested=measure.needs_test,
                fooled=fooled(runs, name),
                gradients=notes.costs.get(name),
                ranks={gap: chosen.rank(sign * numbers) for gap, chosen in models.items()},
                picked=choices.judge(sign * numbers),
            )
        )
    entries.sort(key=lambda e: (e.tested, -_number(e.ranks["gap"].granulated.value)))
    return League(
        settings=settings,
        gaps={name: [_rounded(gap) or 0.0 for gap in column] for name, column in gaps.items()},
        values=values,
        entries=tuple(entries),
        verdicts=tuple(f"{text} {_told(finding)}" for text, finding in verdicts.items()),
        stop_loss=max(row["stop_loss"] for row in runs.rows),
        left_out=len(runs.left_out),
        command=command,
    )


def settings_of(runs: Runs) -> dict[str, list[Any]]:
    """What each network was trained with, by the names of SETTINGS that vary.

    Learning rates are low or high among those of the same data and optimiser, since no rate suits
    all of them; the sizes of a network are the width and number of its hidden layers.
    """
    rates: dict[tuple[str, str], list[float]] = {}
    for row in (*runs.rows, *runs.left_out):
        rates.setdefault((row["data"], row["optimizer"]), []).append(row["learning_rate"])
    settings: dict[str, list[Any]] = {name: [] for name in SETTINGS}
    for row in runs.rows:
        of_alike = rates[row["data"], row["optimizer"]]
        _, *hidden, _ = row["network"].split("-")
        derived = {
            "learning_rate": "low" if row["learning_rate"] == min(of_alike) else "high",
            "width": int(hidden[0]),
            "depth": len(hidden),
        }
        for name in SETTINGS:
            settings[name].append(derived.get(name, row.get(name)))
    return {n: values for n, values in settings.items() if n == "data" or len(set(values)) > 1}


def gap_of(runs: Runs, name: str) -> np.ndarray:
    """The gap in loss, or that in error, of each network."""
    if name == "gap":
        return runs.column("gap")
    return runs.column("test_error") - runs.column("train_error")


def choices_of(runs: Runs, notes: "Notes | None" = None) -> Choices:
    """The choice among networks of the same data by one half of the test data."""
    return Choices(
        np.array([row["data"] for row in runs.rows]),
        np.stack([runs.column(f"{half}_test_error") for half in ("first", "second")]),
        np.array((notes or _notes(runs)).test_samples) // 2,
    )


def fooled(runs: Runs, name: str) -> bool | None:
    """Whether a rescaling moved a measure of one of the networks that it was tried on.

    None where it was not tried, or too noisy to say.
    """
    verdicts = Counter(row.get(f"stress.{name}.{by}") for row in runs.rows for by in _RESCALINGS)
    if verdicts["moved"]:
        return True
    return False if verdicts["same"] else None


@dataclass(frozen=True)
class Notes:
    """What single analyses tell beside the table of runs."""

    costs: dict[str, float]  # of each measure, in gradients: the median where it was told
    test_samples: list[int]  # of each network


def _notes(runs: Runs) -> Notes:
    costs: dict[str, list[float]] = {}
    samples = []
    for row in runs.rows:
        results = load(runs.folder / row["key"]).results
        samples.append(results.subject.test_samples)
        for measured in results.measures:
            if measured.gradients is not None:
                costs.setdefault(measured.name, []).append(measured.gradients)
    return Notes({name: median(numbers) for name, numbers in costs.items()}, samples)


def _told(finding: Finding) -> str:
    numbers = f"{finding.effect:.2f} [{finding.low:.2f}, {finding.high:.2f}]"
    return f"({finding.unit}: {numbers}) {finding.verdict}."


def _rounded(value: float) -> float | None:
    return float(f"{value:.5g}") if math.isfinite(value) else None


def _number(value: float) -> float:
    return value if math.isfinite(value) else -math.inf
