"""A surface of a landscape: as a body that turns, and from above.

Losses that span decades are drawn by their logarithm, with the losses themselves at the ticks.
Names of the user do not enter a figure: points are numbered there and named below.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lowland.findings import Axis, Mark, Surface
from lowland.report import axes
from lowland.report.axes import CLEAR, GRID, INK, Plot
from lowland.report.numbers import number, percent
from lowland.report.traces import Figure, View, of_views, trace

SCALE = "Cividis"  # the same for every reader, colour-blind or not, and in grey
POINTS = 75  # along an axis, at most: a page stays small, and a screen shows no more
SEEN = 0.02  # of the span: what is smaller cannot be seen
DECADES = 1.5  # a surface that spans more is drawn by its logarithm
QUANTITIES = (
    ("train", "training loss"),
    ("test", "test loss"),
    ("train_error", "training error"),
    ("test_error", "test error"),
)


@dataclass(frozen=True)
class Heights:
    """How values become heights and colours: as they are, or by their logarithm."""

    low: float
    high: float
    log: bool

    @classmethod
    def of(cls, *values: np.ndarray, errors: bool = False) -> "Heights":
        """The common scale of several arrays."""
        every = np.concatenate([v[np.isfinite(v)] for v in values])
        if not every.size:
            return cls(0.0, 1.0, False)
        if errors:
            return cls(0.0, 100 * max(float(every.max()), 0.01), False)
        least, most = float(every.min()), float(every.max())
        log = least > 0 and math.log10(most / least) > DECADES
        return cls(least, most, log)

    def height(self, values: np.ndarray) -> np.ndarray:
        """Where values are drawn."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.log10(values) if self.log else values

    @property
    def range(self) -> list[float]:
        """From the lowest to the highest, with a margin."""
        low, high = (float(self.height(np.array(v))) for v in (self.low, self.high))
        margin = 0.04 * (high - low) or 0.1
        return [low - margin, high + margin]

    @property
    def ticks(self) -> Plot:
        """The tick labels of a logarithm, which are the values themselves."""
        if not self.log:
            return {}
        first, last = math.ceil(math.log10(self.low)), math.floor(math.log10(self.high))
        steps = [10.0**k for k in range(first, last + 1)]
        if len(steps) < 3:
            steps = sorted({m * 10.0**k for k in range(first - 1, last + 1) for m in (1, 2, 5)})
            steps = [v for v in steps if self.low <= v <= self.high]
        return {"tickvals": [math.log10(v) for v in steps], "ticktext": [f"{v:.3g}" for v in steps]}


def surface_figures(
    surface: Surface,
    key: str = "surface",
    heights: dict[str, Heights] | None = None,
    ranges: tuple[list[float], list[float]] | None = None,
    title: str = "The loss around the solution",
    points: int = POINTS,
) -> list[Figure]:
    """A surface that turns, and its contours; on given scales where several are compared."""
    about = _about(surface)
    surface = _thinned(surface, points)
    present = [(name, words) for name, words in QUANTITIES if getattr(surface, name) is not None]
    solid, flat = [], []
    for name, words in present:
        errors = name.endswith("error")
        factor = 100 if errors else 1
        values = factor * getattr(surface, name)
        scale = (heights or {}).get(name) or Heights.of(getattr(surface, name), errors=errors)
        unit = f"{words}, %" if errors else words
        solid.append(
            View(words, _solid(surface, name, values, scale, unit), _room(scale, unit, ranges))
        )
        layout = _plane(surface, ranges)
        flat.append(View(words, _contours(surface, values, scale, unit), layout))
    holes = ""
    if surface.holes:
        holes = f" Holes are points where the loss overflows ({number(surface.holes)})."
    names = tuple(_named(i, mark) for i, mark in enumerate(surface.marks, 1))
    own = ""
    if surface.marks or surface.trajectory:
        own = (
            " Points of the training and checkpoints stand at their own loss, which is the "
            "surface's only where they lie in its plane."
        )
    quadratic = surface.quadratic
    if quadratic is None:
        ring = ""
    elif quadratic.holds is None:
        ring = " The local quadratic of the Hessian does not even hold at the nearest points."
    elif quadratic.holds < SEEN * max(map(abs, surface.spans)):
        ring = (
            " The local quadratic of the Hessian is right to 10 % of its own change up to "
            f"{number(quadratic.holds, 2)} units, a ring too small to be drawn."
        )
    else:
        ring = (
            " Within the dotted ring the local quadratic of the Hessian is right to 10 % of its "
            f"own change (up to {number(quadratic.holds, 2)} units)."
        )
    return [
        of_views(
            key,
            title,
            about + own + holes,
            solid,
            ("landscape", "filter_norm"),
            tall=True,
        ),
        of_views(
            f"{key}-contours",
            "The same from above",
            "Cross: the analysed weights." + ring + _way_words(surface.trajectory),
            flat,
            ("quadratic",),
            tall=True,
            notes=(*names, *surface.notes),
        ),
    ]


def _about(surface: Surface) -> str:
    return (
        f"{_axis_words(surface)}; {number(surface.samples[0])} training samples at each of "
        f"{number(surface.train.size)} points."
    )


def _thinned(surface: Surface, most: int) -> Surface:
    """The same with at most so many points along an axis, from end to end."""
    across, up = (
        np.unique(np.linspace(0, len(v) - 1, min(len(v), most)).round().astype(int))
        for v in (surface.x, surface.y)
    )
    losses = {
        name: values[np.ix_(up, across)]
        for name, _ in QUANTITIES
        if (values := getattr(surface, name)) is not None
    }
    return replace(surface, x=surface.x[across], y=surface.y[up], **losses)


def _axis_words(surface: Surface) -> str:
    x, y = surface.axes
    words = f"x: {_axis(x)}; y: {_axis(y)}" if x != y else f"both axes: {_axis(x)}"
    if abs(surface.cosine) > 0.01:
        words += f" (cosine of the angle between them {number(surface.cosine, 2)})"
    return words[0].upper() + words[1:]


def _axis(axis: Axis) -> str:
    words = f"{axis.label} (one unit is {number(axis.norm, 3)} long, the weights "
    words += f"{number(axis.weight_norm, 3)}"
    if axis.explained is not None:
        words += f"; {percent(axis.explained, 0)} of the training's variance"
    if axis.eigenvalue is not None:
        words += f"; eigenvalue {number(axis.eigenvalue, 3)}"
    return words + ")"


def _way_words(trajectory: Sequence[Mark]) -> str:
    if not trajectory:
        return ""
    far = max(mark.distance for mark in trajectory)
    return (
        f" White: the {number(len(trajectory))} recorded points of the training, at most "
        f"{number(far, 3)} away from the plane; the fainter, the further."
    )


def _named(place: int, mark: Mark) -> str:
    away = f", {number(mark.distance, 3)} from the plane" if mark.distance > 0 else ""
    test = f", test loss {number(mark.test, 3)}" if mark.test is not None else ""
    return f"{place}: {mark.name}{away}; its own training loss {number(mark.train, 3)}{test}"


def _grid(values: np.ndarray) -> list[list[float | None]]:
    return [axes.values(row) for row in values]


def _solid(
    surface: Surface, name: str, values: np.ndarray, scale: Heights, unit: str
) -> list[Plot]:
    """The surface, with the training and checkpoints at their own values."""
    low, high = scale.range
    body: Plot = {
        "type": "surface",
        "name": unit,
        "x": axes.values(surface.x),
        "y": axes.values(surface.y),
        "z": _grid(scale.height(values)),
        **({"customdata": _grid(values)} if scale.log else {}),
        "colorscale": SCALE,
        "cmin": low,
        "cmax": high,
        "showscale": False,
        "contours": {
            "z": {
                "show": True,
                "start": low,
                "end": high,
                "size": (high - low) / 14,
                "color": "rgba(255,255,255,0.35)",
                "width": 1,
            }
        },
        "hovertemplate": f"{unit}: %{{{'customdata' if scale.log else 'z'}:.4g}}<extra></extra>",
    }
    drawn = [body]
    factor = 100 if name.endswith("error") else 1
    for title, marks, mode, colour in (
        ("training", surface.trajectory, "lines+markers", "var(--sharp)"),
        ("checkpoints", surface.marks, "markers+text", "var(--ink)"),
    ):
        at = [(mark, getattr(mark, name)) for mark in marks]
        at = [(mark, value) for mark, value in at if value is not None and math.isfinite(value)]
        if not at:
            continue
        heights = scale.height(factor * np.array([value for _, value in at]))
        points: Plot = {
            "type": "scatter3d",
            "name": title,
            "mode": mode,
            "x": axes.values(np.array([mark.x for mark, _ in at])),
            "y": axes.values(np.array([mark.y for mark, _ in at])),
            "z": axes.values(np.clip(heights, low, high)),
            "customdata": axes.values(factor * np.array([value for _, value in at])),
            "marker": {"color": colour, "size": 4},
            "line": {"color": colour, "width": 4},
            "hovertemplate": f"own {unit}: %{{customdata:.4g}}<extra>{title}</extra>",
        }
        if "text" in mode:
            points["text"] = [str(marks.index(mark) + 1) for mark, _ in at]
            points["textfont"] = {"color": "var(--ink)", "size": 14}
        drawn.append(points)
    return drawn


def _room(scale: Heights, unit: str, ranges: tuple[list[float], list[float]] | None = None) -> Plot:
    """The layout of a body in space."""

    def side(title: str, **more: Any) -> Plot:
        return {
            "title": {"text": title, "font": {"size": 12}},
            "color": INK,
            "gridcolor": GRID,
            "showbackground": False,
            "zeroline": False,
            "tickfont": {"size": 10},
            "showspikes": False,
            **more,
        }

    return {
        "font": {"family": axes.FONT, "size": 12, "color": INK},
        "paper_bgcolor": CLEAR,
        "margin": {"l": 0, "r": 0, "t": 0, "b": 0},
        "showlegend": False,
        "scene": {
            "xaxis": side("x", **({"range": ranges[0]} if ranges else {})),
            "yaxis": side("y", **({"range": ranges[1]} if ranges else {})),
            "zaxis": side(unit, range=scale.range, **scale.ticks),
            "camera": {"eye": {"x": 1.35, "y": -1.55, "z": 1.0}},
            "aspectratio": {"x": 1, "y": 1, "z": 0.75},
            "dragmode": "orbit",
        },
        "hoverlabel": axes.layout({}, {})["hoverlabel"],
        "modebar": {"bgcolor": CLEAR, "color": GRID, "activecolor": INK},
    }


def _contours(surface: Surface, values: np.ndarray, scale: Heights, unit: str) -> list[Plot]:
    """The surface from above, with the training, the checkpoints and the centre."""
    low, high = scale.range
    field: Plot = {
        "type": "contour",
        "name": unit,
        "x": axes.values(surface.x),
        "y": axes.values(surface.y),
        "z": _grid(scale.height(values)),
        **({"customdata": _grid(values)} if scale.log else {}),
        "colorscale": SCALE,
        "zmin": low,
        "zmax": high,
        "contours": {"start": low, "end": high, "size": (high - low) / 16},
        "line": {"width": 0.6, "color": "rgba(255,255,255,0.5)"},
        "colorbar": {
            "thickness": 10,
            "outlinewidth": 0,
            "tickfont": {"size": 10},
            "len": 0.9,
            **scale.ticks,
        },
        "hovertemplate": f"{unit}: %{{{'customdata' if scale.log else 'z'}:.4g}}<extra></extra>",
    }
    drawn = [field]
    way = surface.trajectory
    if way:
        far = max(mark.distance for mark in way) or 1.0
        near = [1 - 0.75 * mark.distance / far for mark in way]
        drawn.append(
            trace(
                x=axes.values(np.array([mark.x for mark in way])),
                y=axes.values(np.array([mark.y for mark in way])),
                mode="lines+markers",
                line={"color": "rgba(255,255,255,0.8)", "width": 1.5},
                marker={
                    "size": 7,
                    "color": "#ffffff",
                    "opacity": [round(o, 3) for o in near],
                    "line": {"width": 1, "color": "#000000"},
                },
                customdata=[[mark.step, _short(mark.distance), _short(mark.train)] for mark in way],
                name="training",
                hover="step %{customdata[0]}: %{customdata[1]} from the plane, own training "
                "loss %{customdata[2]}",
            )
        )
    if surface.marks:
        marks = surface.marks
        drawn.append(
            trace(
                x=axes.values(np.array([mark.x for mark in marks])),
                y=axes.values(np.array([mark.y for mark in marks])),
                mode="markers+text",
                marker={"size": 18, "color": "#ffffff", "line": {"width": 1, "color": "#000000"}},
                text=[str(i + 1) for i in range(len(marks))],
                textfont={"color": "#000000", "size": 12},
                customdata=[[_short(mark.distance), _short(mark.train)] for mark in marks],
                name="checkpoints",
                hover="checkpoint %{text}: %{customdata[0]} from the plane, own training loss "
                "%{customdata[1]}",
            )
        )
    centre = {"symbol": "cross", "size": 11, "color": "#d55e00"}
    centre |= {"line": {"width": 1, "color": "#ffffff"}}
    drawn.append(
        trace(x=[0.0], y=[0.0], mode="markers", marker=centre, name="analysed", hover="analysed")
    )
    return drawn


def _short(value: float) -> float | None:
    return float(f"{value:.5g}") if math.isfinite(value) else None


def _plane(surface: Surface, ranges: tuple[list[float], list[float]] | None) -> Plot:
    x0, x1, y0, y1 = surface.spans
    across, up = ranges or ([x0, x1], [y0, y1])
    layout = axes.layout(
        axes.linear_axis("x, in units of its direction") | {"zeroline": False, "range": across},
        axes.linear_axis("y, in units of its direction") | {"zeroline": False, "range": up},
    )
    quadratic = surface.quadratic
    if quadratic is not None and quadratic.holds is not None:
        r = quadratic.holds
        ring = {"color": "#ffffff", "width": 2, "dash": "dot"}
        box = {"x0": -r, "x1": r, "y0": -r, "y1": r}
        layout["shapes"] = [{"type": "circle", **box, "line": ring}]
    return layout
