"""What all figures are made of: plain plotly.js dictionaries. Importing plotly's own classes takes
longer than everything else together, and a picture needs none of their checks.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lowland.findings import Decomposition
from lowland.report import axes
from lowland.report.axes import FLAT, SHARP, Plot, Vector
from lowland.report.numbers import number


@dataclass(frozen=True)
class View:
    """One of the ways to look at a figure, which a reader chooses by its label."""

    label: str
    data: list[Plot]
    layout: Plot


@dataclass(frozen=True)
class Figure:
    """One picture with the sentence that says what to see in it.

    Without `data` it was not drawn, and the caption says why. `terms` are the glossary entries of
    what the axes show. With `others` there is a choice of views, of which the first is `label`.
    """

    key: str
    title: str
    caption: str
    terms: tuple[str, ...] = ()
    data: list[Plot] = field(default_factory=list)
    layout: Plot = field(default_factory=dict)
    wide: bool = False
    tall: bool = False
    label: str = ""
    others: tuple[View, ...] = ()
    notes: tuple[str, ...] = ()  # below the caption, such as the names of numbered points

    @property
    def views(self) -> tuple[View, ...]:
        """All ways to look at it; none if it was not drawn."""
        return (View(self.label, self.data, self.layout), *self.others) if self.data else ()

    @property
    def turns(self) -> bool:
        """Whether it is a body in space."""
        return "scene" in self.layout


def of_views(
    key: str, title: str, caption: str, views: list[View], terms: tuple[str, ...] = (), **more: Any
) -> Figure:
    """A figure with a choice of views."""
    first, *rest = views
    more |= {"label": first.label, "others": tuple(rest)}
    return Figure(key, title, caption, terms, first.data, first.layout, **more)


def sharp_and_flat(
    n: int, n_sharp: int, overlap: bool = False
) -> list[tuple[str, "np.ndarray[Any, np.dtype[np.int64]]", str]]:
    """Split the ranks to draw; with `overlap` the flat curve starts where the sharp one ends."""
    drawn = axes.ranks(n)
    sharp, flat = drawn[drawn < n_sharp], drawn[drawn >= n_sharp - overlap]
    return [("sharp", sharp, SHARP), ("flat", flat, FLAT)]


def bar(name: str, row: str, value: float | None, colour: str, text: str) -> Plot:
    """Draw one horizontal bar."""
    return {
        "type": "bar",
        "orientation": "h",
        "name": name,
        "y": [row],
        "x": [value],
        "marker": {"color": colour},
        "text": [text],
        "textposition": "inside",
        "insidetextanchor": "middle",
        "textangle": 0,
        "constraintext": "none",
        "textfont": {"color": "var(--onfill)"},
        "hovertemplate": f"{name}: %{{x:.4g}}<extra></extra>",
    }


def trace(hover: str | None, **rest: Any) -> Plot:
    """Draw points or a line; `hover` is what the pointer shows."""
    if hover is None:
        return {"type": "scatter", "hoverinfo": "skip", **rest}
    return {"type": "scatter", "hovertemplate": f"{hover}<extra></extra>", **rest}


def drawable(vector: Vector) -> bool:
    """Tell whether a logarithmic axis can show anything of it."""
    return bool(np.any(np.isfinite(vector) & (vector > 0)))


def off_the_axis(vector: Vector) -> str:
    """Say what a logarithmic axis cannot show, or shows only after zooming out."""
    defined = np.isfinite(vector) & (vector > 0)
    text = left_out(int(np.sum(~defined)), "with zero or no value", "not drawn")
    floor = vector[defined].max() / 10.0**axes.MAX_DECADES
    return text + left_out(int(np.sum(vector[defined] < floor)), "far below", "off the axis")


def left_out(count: int, which: str, fate: str) -> str:
    """Say how many directions are missing, and why; nothing if none are."""
    if not count:
        return ""
    noun, verb = ("direction", "is") if count == 1 else ("directions", "are")
    return f" ({number(count)} {noun} {which} {verb} {fate}.)"


def part_of(duality: Decomposition) -> str:
    """Say that not all directions were computed, where that is so."""
    if duality.complete:
        return ""
    n, every = len(duality.sigma_g), duality.setting.directions
    return f" (Known are the first {number(n)} of {number(every)} directions.)"
