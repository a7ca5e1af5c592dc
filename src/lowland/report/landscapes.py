"""The figures of a landscape: its surface, cuts with their quadratic, ways between minima."""

from collections.abc import Sequence

import numpy as np

from lowland.findings import Landscape, Line, Path
from lowland.report import axes
from lowland.report.axes import FLAT, INK, MEAN, NEUTRAL, SHARP, Plot
from lowland.report.numbers import number
from lowland.report.surfaces import QUANTITIES, Heights, surface_figures
from lowland.report.traces import Figure, View, of_views, trace


def landscape_figures(landscape: Landscape) -> list[Figure]:
    """All that the landscape has, in the order in which it is read."""
    figures = []
    if landscape.surface is not None:
        figures += surface_figures(landscape.surface)
    if landscape.lines:
        figures.append(cuts(landscape.lines, wide=landscape.path is None))
    if landscape.path is not None:
        figures.append(ways(landscape.path))
    return figures


def cuts(lines: Sequence[Line], wide: bool = False) -> Figure:
    """The loss along each direction, with its quadratic."""
    views = [
        View(_label(i, line, lines), _cut(line), _cut_layout(line)) for i, line in _placed(lines)
    ]
    notes = tuple(
        f"{_label(i, line, lines)}: {'; '.join((_trust(line), *line.notes))}"
        for i, line in _placed(lines)
    )
    caption = (
        "The loss along one direction of weight space through the solution. The dotted curve is "
        "the quadratic that the Hessian gives at the centre; it stands for the loss between the "
        "two thin lines, which are one where it hardly holds."
    )
    return of_views(
        "cuts",
        "Cuts through the loss",
        caption,
        views,
        ("quadratic",),
        notes=notes,
        wide=wide,
        tall=wide,
    )


def _placed(lines: Sequence[Line]) -> list[tuple[int, Line]]:
    return list(enumerate(lines, 1))


def _label(place: int, line: Line, lines: Sequence[Line]) -> str:
    same = sum(other.axis.label == line.axis.label for other in lines)
    return f"{line.axis.label} ({place})" if same > 1 else line.axis.label


def _trust(line: Line) -> str:
    quadratic = line.quadratic
    if quadratic is None:
        return "no quadratic was computed"
    product, measured = quadratic.curvature[0], quadratic.measured[0]
    held = "not even at the nearest points"
    if quadratic.holds is not None:
        held = f"up to {number(quadratic.holds, 2)} units"
    return (
        f"curvature {number(product, 4)} by the Hessian, {number(measured, 4)} by the losses "
        f"themselves; the quadratic holds {held}"
    )


def _cut(line: Line) -> list[Plot]:
    drawn = []
    for name, colour, dash in (("train", FLAT, "solid"), ("test", SHARP, "solid")):
        values = getattr(line, name)
        if values is not None:
            words = "training" if name == "train" else "test"
            points = {"x": axes.values(line.x), "y": axes.values(values)}
            look = {"mode": "lines", "line": {"color": colour, "width": 2.5, "dash": dash}}
            hover = f"{words} loss at %{{x:.3g}}: %{{y:.4g}}"
            drawn.append(trace(**points, **look, name=f"{words} loss", hover=hover))
    if line.quadratic is not None:
        points = {"x": axes.values(line.x), "y": axes.values(line.quadratic.along(line.x))}
        look = {"mode": "lines", "line": {"color": NEUTRAL, "width": 2, "dash": "dot"}}
        drawn.append(trace(**points, **look, name="quadratic", hover="quadratic: %{y:.4g}"))
    if line.marks:
        points = {
            "x": axes.values(np.array([mark.x for mark in line.marks])),
            "y": axes.values(np.array([mark.train for mark in line.marks])),
        }
        look = {"mode": "markers+text", "marker": {"color": MEAN, "size": 8}}
        look |= {"text": [str(i + 1) for i in range(len(line.marks))], "textposition": "top center"}
        hover = "checkpoint %{text}: its own training loss %{y:.4g}"
        drawn.append(trace(**points, **look, name="checkpoints", hover=hover))
    return drawn


def _cut_layout(line: Line) -> Plot:
    every = np.concatenate([v for v in (line.train, line.test) if v is not None])
    every = every[np.isfinite(every)]
    scale = Heights.of(every)
    up = axes.linear_axis("loss")
    if scale.log:
        up = axes.log_axis("loss", every)
    elif every.size:  # the quadratic may leave the picture
        low, high = float(every.min()), float(every.max())
        margin = 0.06 * (high - low) or 0.1
        up |= {"range": [low - margin, high + margin]}
    across = axes.linear_axis("distance, in units of the direction") | {"zeroline": False}
    layout = axes.layout(across, up, **axes.legend())
    if line.quadratic is not None and line.quadratic.holds is not None:
        r = line.quadratic.holds
        thin = {"color": NEUTRAL, "width": 1}
        layout["shapes"] = [
            {"type": "line", "x0": x, "x1": x, "y0": 0, "y1": 1, "yref": "paper", "line": thin}
            for x in (-r, r)
        ]
    return layout


WAYS = {
    "straight": (NEUTRAL, "solid"),
    "aligned": (FLAT, "solid"),
    "renormalised": (MEAN, "solid"),
    "curve": (SHARP, "solid"),
}


def ways(path: Path) -> Figure:
    """The losses on the ways between two minima."""
    views = []
    for name, words in QUANTITIES:
        routes = {key: its for key, its in path.routes.items() if getattr(its, name) is not None}
        if not routes:
            continue
        data = []
        factor = 100 if name.endswith("error") else 1
        for key, route in routes.items():
            colour, dash = WAYS.get(key, (INK, "dash"))
            points = {"x": axes.values(route.t), "y": axes.values(factor * getattr(route, name))}
            look = {"mode": "lines", "line": {"color": colour, "width": 2.5, "dash": dash}}
            hover = f"{words} at %{{x:.2f}}: %{{y:.4g}}"
            data.append(trace(**points, **look, name=key, hover=hover))
        unit = f"{words}, %" if factor == 100 else words
        across = axes.linear_axis("from the first model (0) to the second (1)")
        layout = axes.layout(across | {"zeroline": False}, axes.linear_axis(unit), **axes.legend())
        views.append(View(words, data, layout))
    barriers = "; ".join(
        f"{route.title}: {number(route.barrier, 3)}" for route in path.routes.values()
    )
    names = " to ".join(path.names)
    caption = (
        f"From {names}, {number(path.distance, 3)} apart in weight space: a barrier is how far the "
        f"training loss rises above the straight line between its ends ({barriers})."
    )
    notes = tuple(f"{name}: {why}" for name, why in path.refused.items())
    return of_views("ways", "Ways between two minima", caption, views, ("barrier",), notes=notes)
