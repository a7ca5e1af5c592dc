"""What the verb prints: the studies there are, and what became of claims."""

import math
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from lowland_studies.reproduction import Outcome


def draw_studies(console: Console, rows: list[dict[str, Any]]) -> None:
    """The studies that can be reproduced."""
    table = Table(box=None, pad_edge=False)
    for heading, side in (
        ("study", "left"),
        ("what", "left"),
        ("runs", "right"),
        ("quick", "right"),
        ("original", "right"),
    ):
        table.add_column(heading, justify=side)  # type: ignore[arg-type]
    for row in rows:
        original = str(row["original_runs"] or "")  # empty where nothing was scaled down
        runs = (str(row["runs"]), str(row["quick_runs"]), original)
        table.add_row(row["name"], Text(row["title"]), *runs)
    console.print(table)


def _of(reading: str) -> str:
    return f" ({reading})" if reading else ""


def draw_outcomes(
    console: Console, outcomes: list[Outcome], store: Path, pages: list[Path]
) -> None:
    """Every claim with its verdict, and where the figures are."""
    for outcome in outcomes:
        console.print(Text(f"{outcome.name}: {outcome.title}", style="bold"))
        table = Table(box=None, pad_edge=False, show_header=False)
        table.add_column(no_wrap=True)
        table.add_column()
        for judged in outcome.claims:
            for facts, finding in zip(outcome.readings, judged.findings, strict=True):
                numbers = f"{finding.interval} {finding.unit}"
                effect = numbers if math.isfinite(finding.effect) else f"no number: {finding.note}"
                reading = f"{facts.reading}: " if facts.reading else ""
                check = "" if judged.kind == "claim" else f" ({judged.kind})"
                table.add_row(finding.verdict, Text(f"{judged.text}{check}\n{reading}{effect}"))
        console.print(table)
        for facts in outcome.readings:
            for why in facts.left_out:
                console.print(Text(f"left out{_of(facts.reading)}: {why}"))
            figure = store / outcome.folder / f"{facts.file}.svg"
            console.print(Text(f"figure{_of(facts.reading)}: {figure}"), soft_wrap=True)
        console.print()
    for path in pages:
        console.print(Text(f"page: {path}"), soft_wrap=True)
