"""The page of a paper: what stands, what does not, and every claim with its drawn interval."""

import math
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

from lowland_studies.reproduction import VERDICTS, Facts, Judged, Outcome
from lowland_studies.study import Finding, Verdict

_CELLS = 21  # of a drawn interval
_AFFORDABLE = 30  # realisations: an effect that these do not tell from its margin is about that
_LEGEND = (
    "Every claim is judged by the 95 % interval of its effect over realisations: it *holds* if the "
    "interval lies where the claim says (drawn `░`), *does not hold* if it lies elsewhere (`·`), "
    "and is *undecided* if it reaches both; `●` is the effect, `━` its interval. What is said of "
    "several values at once holds if it does at each, and fails if it does at one of them by an "
    "interval of a level corrected for their number, which is wider than the one drawn; where one "
    "of several values is enough, it holds by that. Rises and falls are those of a straight line; "
    "per cents are of the mean, unless they say of what. Where an axis of a figure is logarithmic, "
    "so is what its *r* correlates; claims say what theirs do. Checks, which cannot fail where the "
    "code is right, claims that are judged elsewhere as well, and questions of ours are not "
    "counted."
)
_GREEK = {
    "alpha": "α",
    "beta": "β",
    "rho": "ρ",
    "sigma": "σ",
    "mu": "μ",
    "lambda": "λ",
}
_SEEDS = re.compile(r"(\d+) seeds")  # in a note: the number of realisations that were judged
_LINES, _FOLDED = 12, 0  # of a list that is not folded away
_LETTERS = re.compile(rf"(?<![A-Za-z])({'|'.join(_GREEK)})(?![A-Za-z])")


def page(outcomes: Sequence[Outcome], title: str = "") -> str:
    """The Markdown of a paper's figures, with the verdict on each claim.

    Figures are expected beside the page, under the names they have in the store.
    """
    told = [_summary(outcomes), _why(outcomes), _standing(outcomes), _LEGEND]
    head = [f"# {title}" if title else "", *told]
    return "\n\n".join(filter(None, [*head, *map(_section, outcomes)])) + "\n"


# --- what came of it -----------------------------------------------------------------------------


def _summary(outcomes: Sequence[Outcome]) -> str:
    """How many claims stand, in all and by study."""
    names = _names(outcomes)
    lines = [f"{_studies(outcomes)}{_all_counted(outcomes, names)}", ""]
    lines.append(f"| study | {' | '.join(_column(name) for name in names)} |")
    lines.append(f"| --- |{' --- |' * len(names)}")
    for outcome in outcomes:
        counts = [_brief(_count_of(outcome, name)) for name in names]
        version = "" if outcome.version == "full" else f", {outcome.version}"
        lines.append(row_of((f"{outcome.heading}{version}", *counts)))
    return "\n".join(lines)


def _why(outcomes: Sequence[Outcome]) -> str:
    """Why claims do not hold: each reason once, with the figures that it is of."""
    figures: dict[str, list[str]] = {}
    for outcome in outcomes:
        for reason in _reasons(outcome):
            figures.setdefault(reason, []).append(outcome.figure)
    lines = [f"- {', '.join(names)}: {reason}" for reason, names in figures.items()]
    return "\n\n".join(["**Why claims do not hold**", "\n".join(lines)]) if lines else ""


def _reasons(outcome: Outcome) -> list[str]:
    """Why claims of a study do not hold, if any does not; found with the full version."""
    if outcome.version != "full" or not _refuted(outcome):
        return []
    return [in_letters(reason) for reason in outcome.reason.splitlines()]


def _studies(outcomes: Sequence[Outcome]) -> str:
    """How many studies of a paper's figures there are; nothing where a page is of one claim."""
    if all(outcome.name == outcome.paper for outcome in outcomes):
        return ""
    return (
        f"{len(outcomes)} {'study' if len(outcomes) == 1 else 'studies'} of the paper's figures. "
    )


def _standing(outcomes: Sequence[Outcome]) -> str:
    """The claims by what became of them in all readings.

    What is open and what holds is folded away, and left out where the page is of one study, whose
    table tells.
    """
    lists: dict[str, list[str]] = {"fail": [], "depend": [], "open": [], "stand": []}
    for outcome in outcomes:
        for judged in outcome.claims:
            if judged.kind == "claim":
                line = f"- {outcome.figure}: {in_letters(judged.text)} {_effects(judged, outcome)}"
                lists[_fate(judged)].append(line)
    several = any(len(outcome.readings) > 1 for outcome in outcomes)
    parts = [
        *_listed(f"What does not hold{' in any reading' if several else ''}", lists["fail"]),
        *_listed("What does not hold in one reading only", lists["depend"]),
    ]
    if len(outcomes) > 1:
        where = " in a reading" if several else "", " in every reading" if several else ""
        parts += _listed(f"What is open{where[0]}", lists["open"], _FOLDED)
        parts += _listed(f"What holds{where[1]}", lists["stand"], _FOLDED)
    return "\n\n".join(parts)


def _fate(judged: Judged) -> str:
    """What became of a claim in all readings: it stands, fails, is open, or depends on them."""
    verdicts = {finding.verdict for finding in judged.findings}
    if "does not hold" in verdicts:
        return "fail" if len(verdicts) == 1 else "depend"
    return "open" if "undecided" in verdicts else "stand"


def _listed(heading: str, lines: Sequence[str], most: int = _LINES) -> list[str]:
    """Lines under a heading; a long list is to be opened, so that the summary fits a screen."""
    if len(lines) <= most:
        return [f"**{heading}**", "\n".join(lines)] if lines else []
    claims = "1 claim" if len(lines) == 1 else f"{len(lines)} claims"
    summary = f"<summary><b>{heading}</b>: {claims}</summary>"
    return ["<details>", summary, "\n".join(lines), "</details>"]


def _effects(judged: Judged, outcome: Outcome) -> str:
    """The effect in each reading, with its verdict where they differ."""
    differ = len({finding.verdict for finding in judged.findings}) > 1
    told = []
    for finding, facts in zip(judged.findings, outcome.readings, strict=True):
        name = f"{facts.reading}: " if facts.reading else ""
        verdict = f", {finding.verdict}" if differ else ""
        told.append(f"{name}{effect_of(finding)}{verdict}")
    return f"({'; '.join(told)})"


def _names(outcomes: Sequence[Outcome]) -> list[str]:
    """The names of all readings, in the order in which they come."""
    return list(dict.fromkeys(f.reading for outcome in outcomes for f in outcome.readings))


def _count_of(outcome: Outcome, name: str) -> dict[Verdict, int] | None:
    """The verdicts of a reading, if the study has it."""
    readings = [facts.reading for facts in outcome.readings]
    return outcome.count(readings.index(name)) if name in readings else None


def _all_counted(outcomes: Sequence[Outcome], names: Sequence[str]) -> str:
    parts = []
    for name in names:
        total: Counter[Verdict] = Counter()
        for outcome in outcomes:
            total.update(_count_of(outcome, name) or {})
        parts.append((f"**Verdicts** {name}" if name else "**Verdicts**") + f": {_told(total)}.")
    return " ".join(parts)


def _column(name: str) -> str:
    words = "holds / does not / undecided"
    return f"{name}: {words}" if name else words


def _brief(count: dict[Verdict, int] | None) -> str:
    return "–" if count is None else " / ".join(str(count[v]) for v in VERDICTS)


def _told(count: dict[Verdict, int]) -> str:
    return ", ".join(f"{verdict} {count[verdict]}" for verdict in VERDICTS)


def _refuted(outcome: Outcome) -> bool:
    return any(outcome.count(i)["does not hold"] for i in range(len(outcome.readings)))


# --- a study -------------------------------------------------------------------------------------


def _section(outcome: Outcome) -> str:
    lines = [f"## {outcome.heading}"]
    for facts in outcome.readings:
        told = f"{outcome.heading}, {facts.reading}" if facts.reading else outcome.heading
        lines.append(f"![{told}]({facts.file}.png)")
    if outcome.version == "quick":
        lines.append("*The quick version: fewer and smaller runs than the paper's.*")
    if reasons := _reasons(outcome):
        lines.append(f"Why claims do not hold: {' '.join(reasons)}")
    counted = [judged for judged in outcome.claims if judged.kind == "claim"]
    others = [judged for judged in outcome.claims if judged.kind != "claim"]
    if counted:
        lines.append(_table(counted, outcome.readings))
    if others:
        lines += ["Not counted:", _table(others, outcome.readings)]
    if outcome.annex:
        lines.append(outcome.annex)
    lines += [_folded(outcome), f"- command: `{outcome.command}`"]
    return "\n\n".join(lines)


def _table(claims: Sequence[Judged], readings: Sequence[Facts]) -> str:
    """A row for each claim, with what every reading says to it."""
    names = [facts.reading or "ours, with 95 % interval" for facts in readings]
    rows = [f"| claim | {' | '.join(names)} |", f"| --- |{' --- |' * len(names)}"]
    for judged in claims:
        kind = "" if judged.kind == "claim" else f", {judged.kind}"
        sentence = f"{in_letters(judged.text)}<br>*{in_letters(judged.paper)}{kind}*"
        each = zip(judged.findings, readings, strict=True)
        rows.append(
            row_of((sentence, *(_ours(f, max(r.realisations, default=0)) for f, r in each)))
        )
    return "\n".join(rows)


def row_of(cells: Sequence[str]) -> str:
    """A row of a Markdown table."""
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _ours(finding: Finding, realisations: int) -> str:
    """The effect with its interval in numbers and drawn, and the verdict."""
    if not math.isfinite(finding.effect):
        return f"no number: {in_letters(finding.note)}<br>**{finding.verdict}**"
    numbers = effect_of(finding)
    verdict = f"**{finding.verdict}**{_power(finding, realisations)}"
    return f"{numbers} {in_letters(finding.unit)}<br>`{strip(finding)}` {verdict}"


def _power(finding: Finding, realisations: int) -> str:
    """What more realisations would do for an undecided claim.

    An interval shrinks as the root of their number. Where even `_AFFORDABLE` would leave the margin
    inside it, the effect is the margin as far as anybody can tell.
    """
    margins = [bound for bound in (finding.bottom, finding.top) if bound is not None]
    if finding.verdict != "undecided" or not margins or not realisations or finding.over != "seeds":
        return ""
    judged = _SEEDS.search(finding.note)  # a claim about some of the runs may have fewer
    realisations = int(judged[1]) if judged else realisations
    margin = min(margins, key=lambda bound: abs(finding.effect - bound))
    reach = (finding.high - finding.low) / 2
    if abs(finding.effect - margin) > reach * math.sqrt(realisations / _AFFORDABLE):
        return f", {_AFFORDABLE} seeds would tell"
    about = f"{_number(100 * margin)} %" if finding.percent else _number(margin)
    return f": about {about}"


def effect_of(finding: Finding) -> str:
    """The effect with its interval, in numbers."""
    if not math.isfinite(finding.effect):
        return "no number"
    return finding.interval.replace("-", "−")


def _number(value: float) -> str:
    return f"{value:.3g}".replace("-", "−")


def strip(finding: Finding) -> str:
    """An interval as a line of characters: where the claim holds is shaded, the effect a dot.

    On which side of a margin an end of the interval lies is seen, however close it is.
    """
    bounds = [bound for bound in (finding.bottom, finding.top) if bound is not None]
    points = [finding.low, finding.high, finding.effect, *bounds]
    edge = 0.15 * (max(points) - min(points)) or 1.0
    left, right = min(points) - edge, max(points) + edge
    width = (right - left) / _CELLS

    def cell(value: float) -> int:
        return min(_CELLS - 1, int((value - left) / width))

    bottom = -1 if finding.bottom is None else cell(finding.bottom)
    top = _CELLS if finding.top is None else cell(finding.top)
    drawn = ["░" if bottom <= i <= top else "·" for i in range(_CELLS)]
    first = _beside(cell(finding.low), finding.low, finding, bottom, top)
    last = max(first, _beside(cell(finding.high), finding.high, finding, bottom, top))
    for i in range(first, last + 1):
        drawn[i] = "━"
    drawn[min(max(cell(finding.effect), first), last)] = "●"
    return "".join(drawn)


def _beside(cell: int, end: float, finding: Finding, bottom: int, top: int) -> int:
    """The cell of an end of an interval, with one left free between it and a margin it is beyond.

    ``bottom`` and ``top`` are the first and the last cell of where the claim holds.
    """
    if finding.bottom is not None:
        cell = max(cell, bottom + 1) if end >= finding.bottom else min(cell, bottom - 2)
    if finding.top is not None:
        cell = min(cell, top - 1) if end <= finding.top else max(cell, top + 2)
    return min(max(cell, 0), _CELLS - 1)


def in_letters(text: str) -> str:
    """The names of Greek letters as the letters themselves."""
    return _LETTERS.sub(lambda name: _GREEK[name[1]], text)


# --- what is folded away -------------------------------------------------------------------------


def _folded(outcome: Outcome) -> str:
    """Settings, runs, files and what was left out, of each reading, to be opened."""
    parts = ["<details>", "<summary>Settings, runs, files</summary>"]
    for i, facts in enumerate(outcome.readings):
        if facts.reading:
            parts.append(f"**{facts.reading[:1].upper()}{facts.reading[1:]}**")
        parts.append(_facts(facts))
        notes = [
            f"- {in_letters(judged.text)} {in_letters(judged.findings[i].note)}"
            for judged in outcome.claims
            if judged.findings[i].note and not _SEEDS.fullmatch(judged.findings[i].note)
        ]
        if notes:
            parts += ["How the claims were judged:", "\n".join(notes)]
    return "\n\n".join([*parts, "</details>"])


def _facts(facts: Facts) -> str:
    told = {
        "settings": "; ".join(
            f"`{name}` {', '.join(map(_value, values))}"
            for name, values in facts.settings.items()
            if name != "seed"
        ),
        "runs": f"{facts.runs}, {_either(facts.realisations)} realisations of each setting",
        "time": f"{facts.seconds:.0f} s of one process, for training and analysing its runs, "
        "which studies share",
        "files": f"[numbers of every run]({facts.file}-runs.csv); the command writes the figure as "
        "SVG and PDF, and the numbers in it",
    }
    lines = [f"- {name}: {text}" for name, text in told.items()]
    lines += (f"- differs from the paper: {text}" for text in facts.differences)
    lines += (f"- left out: {text}" for text in facts.left_out)
    return "\n".join(lines)


def _either(numbers: Sequence[int]) -> str:
    *most, last = map(str, numbers)
    return f"{', '.join(most)} or {last}" if most else last


def _value(value: Any) -> str:
    if isinstance(value, list):
        return " and ".join(map(str, value)) or "none"
    return f"{value:g}" if isinstance(value, float) else "none" if value is None else str(value)
