"""Every measure of several kinds of networks, each against the plain kind: a table for a page."""

import math

import numpy as np

from lowland_studies.claims import smaller
from lowland_studies.evidence import Runs
from lowland_studies.pages import row_of
from lowland_studies.study import Finding

_LEGEND = (
    "Change from {plain}, in per cent of its mean, with the 95 % interval over realisations; in "
    "bold where 0 is not in it. First come outcomes, then measures: below 0 is flatter, as those "
    "that are smaller where a minimum is sharper count as their negatives. Measures that train "
    "themselves, that settings alone decide, or of which neither side is sharper are left out. "
    "Those with&ensp;† read test data. Levels are not corrected for the number of intervals: where "
    "nothing differs, one in twenty would be bold."
)


def every_measure(runs: Runs, key: str, plain: str) -> str:
    """The Markdown of the table: what the runs have against values of a setting; or nothing."""
    from lowland.measures import registered

    if not runs.rows:
        return ""
    kinds = [kind for kind in dict.fromkeys(row[key] for row in runs.rows) if kind != plain]
    counts = {kind: {"flatter": 0, "sharper": 0, "open": 0} for kind in kinds}
    outcomes: list[str] = []
    sharpness: list[str] = []
    for name, measure in registered().items():
        outcome = measure.family == "outcome"
        if name not in runs.rows[0] or not (outcome or measure.sharper):
            continue
        if _by_settings(runs, name, key):
            continue
        negative = not outcome and measure.sharper == "lower"
        findings = {
            kind: smaller(name, {key: kind}, {key: plain})(runs.where(**{key: [kind, plain]}))
            for kind in kinds
        }
        changes = {kind: _change(finding, negative) for kind, finding in findings.items()}
        title = f"{measure.title}{' (negative)' if negative else ''}"
        title += "&ensp;†" if measure.needs_test else ""
        row = [title, _mean(runs.where(**{key: plain}), name), *map(_told, changes.values())]
        (outcomes if outcome else sharpness).append(row_of(row))
        for kind, change in changes.items():
            if not outcome and change:
                counts[kind][_side(change)] += 1
    head = ["measure", plain, *kinds]
    total = [" / ".join(map(str, count.values())) for count in counts.values()]
    rows = [
        row_of([name.replace("_", " ") for name in head]),
        f"|{' --- |' * len(head)}",
        *outcomes,
        *sharpness,
        row_of(["*flatter / sharper / open*", "", *total]),
    ]
    legend = _LEGEND.format(plain=f"`{plain}`")
    return "\n\n".join(["### Every measure", legend, "\n".join(rows)])


def _by_settings(runs: Runs, name: str, key: str) -> bool:
    """Whether all realisations of a kind have one number, or none: nothing was measured then."""
    for part in runs.by(key).values():
        numbers = part.column(name)
        finite = numbers[np.isfinite(numbers)]
        if len(set(finite)) > 1:
            return False
    return True


def _change(finding: Finding, negative: bool) -> tuple[float, float, float] | None:
    """The effect and its interval in per cent; None where there is no number."""
    if not math.isfinite(finding.effect):
        return None
    numbers = (finding.effect, finding.low, finding.high)
    effect, low, high = (100 * number for number in numbers)
    return (-effect, -high, -low) if negative else (effect, low, high)


def _side(change: tuple[float, float, float]) -> str:
    _, low, high = change
    return "flatter" if high < 0 else "sharper" if low > 0 else "open"


def _told(change: tuple[float, float, float] | None) -> str:
    if change is None:
        return "–"
    effect, low, high = (f"{n:.2g}" if abs(n) < 9.95 else f"{n:.0f}" for n in change)
    text = f"{effect} [{low}, {high}]".replace("-", "−")
    return text if _side(change) == "open" else f"**{text}**"


def _mean(runs: Runs, name: str) -> str:
    numbers = runs.column(name)
    return f"{np.nanmean(numbers):.3g}".replace("-", "−") if np.isfinite(numbers).any() else "–"
