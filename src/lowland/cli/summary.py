"""Saved results in a terminal."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from lowland.report.numbers import number

if TYPE_CHECKING:
    from lowland.measures import Measure


def draw_results(console: Console, results: dict[str, Any], answer: str, path: Path) -> None:
    """The answer first, then what it rests on. Text is never markup: some of it is the user's."""
    console.print(Text(results["subject"]["title"], style="bold"))
    console.print(Text(answer))
    console.print()
    table = Table(box=None, pad_edge=False, show_header=False)
    for row in results["measures"]:
        if row["value"] is None:
            value = Text(row["reason"], style="dim")
        else:
            error = f" ± {number(row['stderr'])}" if row["stderr"] is not None else ""
            value = Text(number(row["value"]) + error)
        table.add_row(Text(row["title"]), value)
    console.print(table)
    for check in results["checks"]:
        mark = "ok    " if check["passed"] else "FAILED"
        console.print(Text(f"{mark} {check['name']}: {number(check['value'])}"))
    for note in results["notes"]:
        console.print(Text(f"note: {note}"))
    console.print()
    # Not broken over lines, so that it can be copied.
    console.print(Text(f"report: {path}"), soft_wrap=True)


def draw_measures(console: Console, known: "Iterable[Measure]") -> None:
    """One measure after the other: three columns would leave none of them enough room."""
    for measure in known:
        console.print(Text(measure.name, style="bold"))
        about = [measure.definition, measure.formula]
        if measure.sharper is not None:
            about.append(f"{measure.sharper} is sharper")
        console.print(Padding(Text("\n".join(about)), (0, 0, 0, 2)))
