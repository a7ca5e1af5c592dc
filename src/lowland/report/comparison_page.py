"""Solutions side by side as a page: on the same axes, landscapes on one scale."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from lowland.findings import Compared, Decomposition, Differences, Solution, Surface
from lowland.report import axes
from lowland.report.axes import FLAT, MEAN, NEUTRAL, SHARP, Plot
from lowland.report.comparison_words import compared
from lowland.report.glossary import GLOSSARY
from lowland.report.page import IN_SPACE, show
from lowland.report.surfaces import POINTS, QUANTITIES, Heights, surface_figures
from lowland.report.traces import Figure, trace
from lowland.report.words import standing

# The parts of a change, with their colours: the determinants look as they do in a report.
PARTS = {
    "sharpness": ("sharpness", SHARP),
    "size": ("size", FLAT),
    "correlation": ("correlation", MEAN),
    "means": ("means", NEUTRAL),
}
DEFINITIONS = {"size": "size_part", "correlation": "correlation_part", "means": "means_part"}
# Colour and dash of each solution; a sixth begins again, with another dash.
LOOKS = ("var(--neutral)", "var(--ink)", FLAT, SHARP, MEAN)
DASHES = ("dot", "solid", "dash", "dashdot")


@dataclass(frozen=True)
class Panel:
    """One comparison with the first solution."""

    name: str  # of the solution that is compared with it
    results: Differences
    answer: str
    parts: list[dict[str, Any]]


def render_comparison(comparisons: Sequence[Compared]) -> str:
    """Make one HTML page of comparisons, each of another solution with the same first one."""
    first = comparisons[0]
    solutions = [first.results.solutions[0], *(its.results.solutions[1] for its in comparisons)]
    splits = [first.sides[0], *(its.sides[1] for its in comparisons)]
    surfaces = [first.surfaces[0], *(its.surfaces[1] for its in comparisons)]
    names = _names(len(solutions))
    change = [
        *_waterfalls(comparisons, names[1:]),
        *_curves(max(its.results.n_sharp for its in comparisons), splits, names),
    ]
    views = _landscapes(surfaces, solutions, names)
    return show(
        "comparison.html.j2",
        [*change, *views],
        [(f"def-{key}", value) for key, value in GLOSSARY.items()],
        first.results.lowland,
        head=first.results,
        named=list(zip(names, solutions, strict=True)),
        panels=[
            Panel(name, its.results, compared(its.results, name), _parts(its.results))
            for name, its in zip(names[1:], comparisons, strict=True)
        ],
        change=change,
        views=views,
        standing=standing,
    )


def _names(count: int) -> list[str]:
    return ["first", "second", "third", "fourth", "fifth"][:count] + [
        f"{n}th" for n in range(6, count + 1)
    ]


def _parts(results: Differences) -> list[dict[str, Any]]:
    return [
        {
            "title": f"due to {PARTS[name][0]}" if name != "means" else "due to the means",
            "definition": f"def-{DEFINITIONS.get(name, name)}",
            **asdict(row),
        }
        for name, row in results.parts.items()
    ]


def _waterfalls(comparisons: Sequence[Compared], names: Sequence[str]) -> list[Figure]:
    """How the first gap becomes each of the others, on one axis."""
    levels = [[0.0], *(_levels(its.results) for its in comparisons)]
    low, high = min(map(min, levels)), max(map(max, levels))
    margin = 0.08 * (high - low) or 0.1
    limits = [low - margin * (low < 0), high + margin]
    return [
        _waterfall(its.results, name, limits, len(comparisons) > 1)
        for its, name in zip(comparisons, names, strict=True)
    ]


def _levels(results: Differences) -> list[float]:
    """Every height that a waterfall reaches, errors included."""
    level = results.paired_gaps[0]
    heights = [*results.paired_gaps]
    for name in PARTS:
        row = results.parts[name]
        heights += [level + row.low, level + row.high]
        level += row.value
    return heights


def _waterfall(results: Differences, name: str, limits: list[float], many: bool) -> Figure:
    """Draw how the first gap becomes the other."""
    first, second = results.paired_gaps
    names, base, height, colours, low, high = ["first"], [0.0], [first], [LOOKS[0]], [0.0], [0.0]
    level = first
    for key, (title, colour) in PARTS.items():
        row = results.parts[key]
        names.append(title)
        base.append(level)
        height.append(row.value)
        colours.append(colour)
        high.append(row.high - row.value)
        low.append(row.value - row.low)
        level += row.value
    for values, value in ((names, name), (base, 0.0), (height, second), (colours, LOOKS[1])):
        values.append(value)  # type: ignore[arg-type]
    low.append(0.0)
    high.append(0.0)
    bars: Plot = {
        "type": "bar",
        "x": names,
        "base": axes.values(np.array(base)),
        "y": axes.values(np.array(height)),
        "marker": {"color": colours},
        "error_y": {
            "type": "data",
            "symmetric": False,
            "array": axes.values(np.array(high)),
            "arrayminus": axes.values(np.array(low)),
            "color": "var(--soft)",
            "thickness": 1.2,
        },
        "hovertemplate": "%{x}: %{y:.4g}<extra></extra>",
    }
    layout = axes.layout(
        axes.linear_axis("") | {"type": "category", "zeroline": False},
        axes.linear_axis("paired gap") | {"range": limits},
        bargap=0.35,
    )
    caption = (
        f"From the first solution's paired gap to the {name}'s: each step is what one determinant "
        "changed, with its 95 % interval; together they make the whole change exactly."
    )
    terms = ("change", "sharpness", "size_part", "correlation_part")
    title = f"What makes the {name} differ" if many else "What makes the difference"
    return Figure(f"waterfall-{name}", title, caption, terms, [bars], layout, wide=not many)


def _curves(n_sharp: int, splits: Sequence[Decomposition], names: Sequence[str]) -> list[Figure]:
    n = max(len(split.sigma_g) for split in splits)
    rows = (
        (
            *("spectrum", "Sharpness", "σ<sub>g,n</sub>", ("sigma_g",), True),
            [split.sigma_g for split in splits],
            "A curve that lies higher is a sharper solution, direction by direction.",
        ),
        (
            *("size", "Size", "S<sub>w,n</sub>", ("s_w", "sigma_w"), True),
            [np.cumsum(split.sigma_w) for split in splits],
            "A curve that lies higher is a larger solution: new data move its weights further.",
        ),
        (
            *("cumulative", "Where the gaps build up", "gap up to n", ("contribution",), False),
            [np.cumsum(split.contribution) for split in splits],
            "The gap added up from the sharpest direction on.",
        ),
    )
    drawn = []
    for key, title, label, terms, log, curves, caption in rows:
        data = []
        for place, (name, curve) in enumerate(zip(names, curves, strict=True)):
            ranks = axes.ranks(len(curve))
            points = {"x": axes.values(ranks + 1), "y": axes.values(curve[ranks], positive=log)}
            colour, dash = LOOKS[place % len(LOOKS)], DASHES[place % len(DASHES)]
            look = {"mode": "lines", "line": {"color": colour, "width": 2, "dash": dash}}
            data.append(trace(**points, **look, name=name, hover=f"{name}, n = %{{x}}: %{{y:.4g}}"))
        axis = axes.log_axis(label, np.concatenate(curves)) if log else axes.linear_axis(label)
        layout = axes.layout(axes.rank_axis(n), axis, **axes.boundary(n_sharp, n), **axes.legend())
        drawn.append(Figure(key, title, caption, terms, data, layout))
    return drawn


def _landscapes(
    surfaces: Sequence[Surface | None], solutions: Sequence[Solution], names: Sequence[str]
) -> list[Figure]:
    """The surfaces around the solutions, with one scale of heights, colours and axes for all."""
    known = [(n, s, its) for n, s, its in zip(names, solutions, surfaces, strict=True) if its]
    if len(known) < 2:
        return []
    heights = {}
    for quantity, _ in QUANTITIES:
        values = [getattr(its, quantity) for *_, its in known]
        present = [v for v in values if v is not None]
        if present:
            heights[quantity] = Heights.of(*present, errors=quantity.endswith("error"))
    spans = np.array([its.spans for *_, its in known])
    low, high = spans.min(0), spans.max(0)
    ranges = [float(low[0]), float(high[1])], [float(low[2]), float(high[3])]
    drawn = []
    for name, solution, surface in known:
        title = f"Around the {name}: {solution.title}"
        solid, flat = surface_figures(
            surface, f"surface-{name}", heights, ranges, title, POINTS // len(known) + 25
        )
        drawn += [solid, flat] if len(known) <= IN_SPACE else [flat]
    return drawn
