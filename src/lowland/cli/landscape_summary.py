"""A landscape in a terminal: what it shows, and how far the quadratic holds."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from lowland.budget import in_words
from lowland.manifest import REPORT
from lowland.report.numbers import number

if TYPE_CHECKING:
    from lowland.findings import Landscape, Line, Surface
    from lowland.findings import Path as Way


def draw_landscape(console: Console, title: str, drawn: "Landscape", out: Path) -> None:
    """One block for each part."""
    console.print(Text(title, style="bold"))
    if drawn.surface is not None:
        _surface(console, drawn.surface)
    for line in drawn.lines:
        _line(console, line)
    if drawn.path is not None:
        _path(console, drawn.path)
    for note in drawn.notes:
        console.print(Text(f"note: {note}"))
    console.print()
    console.print(Text(f"page: {out / REPORT}"), soft_wrap=True)


def _surface(console: Console, surface: "Surface") -> None:
    x, y = surface.axes
    size = f"{len(surface.x)} x {len(surface.y)} points"
    console.print(Text(f"Surface, {size} in {in_words(surface.seconds)}"))
    console.print(Text(f"  x: {x.label}, {_range(surface.spans[:2])}"))
    console.print(Text(f"  y: {y.label}, {_range(surface.spans[2:])}"))
    console.print(Text(f"  training loss {_extremes(surface.train)}{_holes(surface.holes)}"))
    if surface.quadratic is not None:
        q = surface.quadratic
        pairs = zip(("xx", "xy", "yy"), q.curvature, q.measured, strict=True)
        told = ", ".join(f"{n} {number(c, 3)} ({number(m, 3)})" for n, c, m in pairs)
        console.print(Text(f"  curvature at the centre, and as drawn: {told}"))
        console.print(Text(f"  {_holds(q.holds)}"))
    _marks(console, "checkpoint", surface.marks)
    if surface.trajectory:
        way = surface.trajectory
        far = max(mark.distance for mark in way)
        console.print(
            Text(f"  trajectory of {len(way)} points, at most {number(far, 3)} from the plane")
        )
    for note in surface.notes:
        console.print(Text(f"  note: {note}"))


def _line(console: Console, line: "Line") -> None:
    console.print(Text(f"Cut, {line.axis.label}, {_range((line.x[0], line.x[-1]))}"))
    console.print(Text(f"  training loss {_extremes(line.train)}{_holes(line.holes)}"))
    if line.quadratic is not None:
        q = line.quadratic
        told = f"{number(q.curvature[0], 3)}, and as drawn {number(q.measured[0], 3)}"
        console.print(Text(f"  curvature at the centre {told}; {_holds(q.holds)}"))
    _marks(console, "checkpoint", line.marks)
    for note in line.notes:
        console.print(Text(f"  note: {note}"))


def _path(console: Console, way: "Way") -> None:
    console.print(Text(f"From {way.names[0]} to {way.names[1]}, {number(way.distance, 3)} apart"))
    table = Table(box=None, pad_edge=False)
    for heading in ("way", "barrier", "test", "highest error", "length"):
        table.add_column(heading, justify="left" if heading == "way" else "right")
    for route in way.routes.values():
        errors = route.test_error if route.test_error is not None else route.train_error
        error = "" if errors is None else f"{np.nanmax(errors):.1%}"
        test = "" if route.test_barrier is None else number(route.test_barrier, 3)
        table.add_row(
            Text(route.title), number(route.barrier, 3), test, error, number(route.length, 3)
        )
    console.print(table)
    for name, why in way.refused.items():
        console.print(Text(f"  not {name}: {why}"))


def _marks(console: Console, what: str, marks: tuple) -> None:
    for mark in marks:
        where = f"({number(mark.x, 3)}, {number(mark.y, 3)})"
        loss = f"loss {number(mark.train, 3)}"
        told = f"  {what} {mark.name}: {where}, {number(mark.distance, 3)} away, its own {loss}"
        console.print(Text(told))


def _range(ends: tuple) -> str:
    return f"{number(ends[0], 3)} to {number(ends[1], 3)}"


def _extremes(values: np.ndarray) -> str:
    if np.isnan(values).all():
        return "is nowhere finite"
    return f"{number(np.nanmin(values), 3)} to {number(np.nanmax(values), 3)}"


def _holes(count: int) -> str:
    return f", {count} holes where it overflows" if count else ""


def _holds(distance: float | None) -> str:
    if distance is None:
        return "the quadratic holds at no distance that was tried"
    return f"the quadratic holds up to {number(distance, 3)} from it"
