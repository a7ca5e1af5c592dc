"""Saved results in a terminal."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from lowland.budget import in_words
from lowland.findings import TRUSTED
from lowland.report.numbers import number
from lowland.report.words import standing
from lowland.wording import counted

if TYPE_CHECKING:
    from lowland.comparison import Comparison
    from lowland.findings import Change, Differences, Solution
    from lowland.measures import Measure, Stress
    from lowland.measures.stressed import Move
    from lowland.results import Analysis
    from lowland.sweep import Summary


def draw_results(console: Console, analysis: "Analysis", path: Path) -> None:
    """The answer first, then what it rests on. Text is never markup: some of it is the user's."""
    results = analysis.results
    console.print(Text(results.subject.title, style="bold"))
    console.print(Text(analysis.answer))
    console.print()
    table = Table(box=None, pad_edge=False, show_header=False)
    for row in results.measures:
        if row.value is None:
            value = Text(row.reason or "", style="dim")
        else:
            error = f" ± {number(row.stderr)}" if row.stderr is not None else ""
            value = Text(number(row.value) + error)
        table.add_row(Text(row.title), value)
    console.print(table)
    if (split := results.duality) is not None:
        console.print(Text(f"layer '{split.layer}' by the {split.setting.dual}-level dual"))
    for check in results.checks:
        mark = "ok    " if check.passed else "FAILED"
        console.print(Text(f"{mark} {check.name}: {number(check.value)}"))
    for note in results.notes:
        console.print(Text(f"note: {note}"))
    console.print()
    course = results.course
    if course.planned is not None:
        console.print(Text(f"plan: {course.planned}"))
    if course.predicted is not None:
        spent, predicted = in_words(course.spent), in_words(course.predicted)
        before = results.seconds - course.spent  # the outcome, pairs, and what a gradient takes
        more = f", after {in_words(before)} to plan it" if before > course.spent / 2 else ""
        console.print(Text(f"it took {spent}, predicted {predicted}{more}"))
    if course.stopped is not None:
        console.print(Text(f"ended early: {course.stopped}"))
    # Not broken over lines, so that it can be copied.
    console.print(Text(f"report: {path}"), soft_wrap=True)


def draw_solutions(console: Console, comparisons: "list[Differences]") -> None:
    """All solutions that are compared, in a table; the others are held against the first."""
    solutions = [comparisons[0].solutions[0], *(its.solutions[1] for its in comparisons)]
    for n, side in enumerate(solutions, start=1):
        console.print(Text(f"{n}: {_named(side)}", style="bold"))
    table = Table(box=None, pad_edge=False)
    for heading in ("", "test loss", "test error", "gap", "sharp", "flat", "sharpness", "size"):
        table.add_column(heading, justify="right")
    for n, side in enumerate(solutions, start=1):
        totals = side.total_g**0.5, side.total_w_data**0.5
        outcome = side.outcome
        parts = (outcome.gap, side.sharp, side.flat)
        shown = (outcome.test_loss, outcome.test_error, *parts, *totals)
        table.add_row(str(n), *("" if v is None else number(v, 3) for v in shown))
    console.print()
    console.print(table)
    console.print()


def _named(side: "Solution") -> str:
    state = standing(side.convergence)
    return f"{side.title}, layer '{side.layer}'" + (f", {state}" if state else "")


def draw_comparison(console: Console, comparison: "Comparison") -> None:
    """The answer, then the change of the gap and what each determinant made of it."""
    results = comparison.results
    for which, side in zip(("first", "second"), results.solutions, strict=True):
        console.print(Text(f"{which + ':':8}{_named(side)}", style="bold"))
    console.print(Text(comparison.answer))
    console.print()
    table = Table(box=None, pad_edge=False)
    for heading in ("change of the paired gap", "", "95 % interval", "sharpest", "others"):
        table.add_column(heading, justify="left" if heading.startswith("change") else "right")
    table.add_row("whole", *_change(results.change), "", "")
    for name, part in results.parts.items():
        halves = (number(half.value, 3) if half else "" for half in (part.sharp, part.flat))
        table.add_row(f"  due to {name}", *_change(part), *halves)
    console.print(table)
    console.print()
    pairs = f"{counted(results.pairs, 'pair')} of samples, by the {results.dual}-level dual"
    console.print(Text(pairs))


def _change(change: "Change") -> tuple[str, str]:
    return number(change.value, 3), f"{number(change.low, 3)} to {number(change.high, 3)}"


def draw_stress(console: Console, title: str, stress: "Stress") -> None:
    """One row per measure: what it was, and how many times larger each transformation made it."""
    console.print(Text(title, style="bold"))
    console.print(
        Text(
            f"The same network with weights rescaled by up to {stress.factor:g}: how many times "
            "larger each measure became. Only 'outputs' changes the function, by a factor. It is "
            "'unknown' where the error of a measure is too large to say."
        )
    )
    console.print()
    ways = list(next(iter(stress.moves.values()), {}))
    table = Table(box=None, pad_edge=False)
    for heading in ("measure", "value", *ways):
        table.add_column(heading, justify="left" if heading == "measure" else "right")
    missing = []
    for name, row in stress.moves.items():
        first = next(iter(row.values()), None)
        if first is None or first.before is None:
            missing.append(name)
            continue
        table.add_row(name, number(first.before, 3), *(_moved(row[by]) for by in ways))
    console.print(table)
    console.print()
    if missing:
        console.print(Text(f"without a value: {', '.join(missing)}"))
    for by, why in stress.skipped.items():
        console.print(Text(f"{by}: {why}"))
    for name, by in stress.broken():
        console.print(Text(f"BROKEN CLAIM: {name} says that {by} cannot move it"))


def _moved(move: "Move") -> str:
    if not move.moved:
        return "none" if move.after is None else move.verdict
    return number(move.ratio, 2) if move.ratio is not None else "moved"


def draw_measures(console: Console, measures: "Iterable[Measure]") -> None:
    """One measure after the other: three columns would leave none of them enough room."""
    family = None
    for measure in measures:
        if measure.family != family:
            family = measure.family
            console.rule(Text(family), align="left")
        console.print(Text(measure.name, style="bold"))
        about = [measure.definition, measure.formula]
        if measure.sharper is not None:
            about.append(f"{measure.sharper} is sharper")
        if measure.trains:
            about.append("runs only when it is named: it optimises or samples for long")
        console.print(Padding(Text("\n".join(about)), (0, 0, 0, 2)))


def draw_sweep(console: Console, summary: "Summary", varied: list[str]) -> None:
    """What was done, what went wrong, and where the numbers are."""
    runs = len(summary.runs)
    there = runs - summary.fresh
    console.print(
        Text(
            f"{counted(runs, 'run')} in {summary.directory}: {summary.fresh} done now"
            + (f", {there} there before" if there else ""),
            style="bold",
        )
    )
    for key, why in summary.damaged.items():
        console.print(Text(f"run {key} was damaged ({why}), set aside and done again"))
    if summary.unconverged:
        console.print(Text(f"{summary.unconverged} did not reach their stop_loss: see `reason`"))
    for key, why in list(summary.failed.items())[:10]:
        console.print(Text(f"failed: {key}: {why}"))
    if len(summary.failed) > 10:
        console.print(Text(f"... and {len(summary.failed) - 10} more failed"))
    _draw_means(console, summary, varied)
    console.print()
    for path in summary.files:
        console.print(Text(f"table: {path}"), soft_wrap=True)


def _draw_means(console: Console, summary: "Summary", varied: list[str]) -> None:
    """The outcome for each setting, over its seeds."""
    from lowland.sweep import Store

    table = Store(summary.directory).table()
    table = table[table["key"].isin(summary.runs) & (table["status"] == "done")]
    keys = [name for name in varied if name not in ("seed", "data_seed")][:3]
    parts = ("test_error", "gap", "paired_gap", "sharp", "flat")
    shown = [name for name in parts if name in table]
    if not len(table) or not keys:
        return
    grouped = table.groupby(keys, dropna=False)
    drawn = Table(box=None, pad_edge=False)
    for heading in (*keys, "runs", *shown):
        drawn.add_column(heading, justify="right")
    for value, rows in list(grouped)[:20]:
        drawn.add_row(
            *map(str, value),
            str(len(rows)),
            *(number(rows[name].astype(float).mean(), 3) for name in shown),
        )
    console.print()
    console.print(drawn)
    if len(grouped) > 20:
        console.print(Text(f"... and {counted(len(grouped) - 20, 'more setting')}"))
    if {"gap", "paired_gap"} <= set(table):
        gap, paired = (table[name].astype(float) for name in ("gap", "paired_gap"))
        apart = int(((paired - gap).abs() > TRUSTED * gap.abs()).sum())
        if apart:
            console.print(
                Text(
                    f"in {apart} of {len(table)} runs the paired samples have another gap, by more "
                    f"than {TRUSTED:.0%}: sharp and flat are parts of paired_gap"
                )
            )


def draw_status(console: Console, directory: Path, sweeps: list[dict[str, Any]]) -> None:
    """A line for each sweep on a directory, and one for each stack that trains now."""
    console.print(Text(f"{counted(len(sweeps), 'sweep')} on {directory}", style="bold"))
    for sweep in sweeps:
        if sweep.get("unreadable"):
            console.print(
                Text(f"{sweep['sweep']}: its plan cannot be read; starting it mends that")
            )
            continue
        parts = [f"{sweep['done']} done"]
        parts += [
            f"{sweep[name]} {name}" for name in ("failed", "unconverged", "missing") if sweep[name]
        ]
        console.print(
            Text(f"{sweep['sweep']}: {counted(sweep['runs'], 'run')}: {', '.join(parts)}")
        )
        for now in sweep["training"]:
            loss = "" if now["loss"] is None else f", loss {now['loss']:.2e}"
            console.print(Text(f"  training: epoch {now['epoch']}{loss}, {now['part']:.0%}"))
