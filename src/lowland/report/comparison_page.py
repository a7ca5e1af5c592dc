"""Two solutions side by side: the answer in words, the figures and the page."""

from dataclasses import asdict

import numpy as np

from lowland.findings import Decomposition, Differences
from lowland.report import axes, numbers
from lowland.report.axes import FLAT, MEAN, NEUTRAL, SHARP, Plot
from lowland.report.glossary import GLOSSARY
from lowland.report.numbers import number, percent
from lowland.report.page import show
from lowland.report.traces import Figure, trace

# The parts of a change, with their colours: the determinants look as they do in a report.
PARTS = {
    "sharpness": ("sharpness", SHARP),
    "size": ("size", FLAT),
    "correlation": ("correlation", MEAN),
    "means": ("means", NEUTRAL),
}
FIRST, SECOND = "var(--neutral)", "var(--ink)"


def compared(results: Differences) -> str:
    """Say in two sentences which solution generalises better and what makes the difference."""
    change = results.change
    first, second = results.paired_gaps
    spread = f"(95 % interval {number(change.low, 3)} to {number(change.high, 3)})"
    gaps = f"paired gap {number(second, 3)} against {number(first, 3)}"
    if change.low <= 0 <= change.high:
        return (
            f"On {number(results.pairs)} common pairs the two solutions do not differ beyond "
            f"chance: {gaps}, a change of {number(change.value, 3)} {spread}. No cause is "
            "therefore named."
        )
    word = "worse" if change.value > 0 else "better"
    doubt = ""
    if results.gauge == "given":
        doubt = (
            " The weights are taken as they are scaled: rescaling hidden units would move shares "
            "between sharpness and size (lowland analyze --gauge balanced excludes that)."
        )
    return (
        f"The second solution generalises {word}: {gaps}, a change of {number(change.value, 3)} "
        f"{spread}. {_cause(results)}{doubt}"
    )


def _cause(results: Differences) -> str:
    change = results.change.value
    same = {name: row for name, row in results.parts.items() if row.value * change > 0}
    name = max(same, key=lambda key: abs(same[key].value), default=None)
    if name is None:
        return "Its parts cancel, so that no single cause can be named."
    row = same[name]
    what = {
        "sharpness": "sharper" if change > 0 else "flatter",
        "size": "larger" if change > 0 else "smaller",
    }.get(name)
    why = f"it is {what}" if what else f"its {name} changed"
    sure = row.low * row.high > 0
    doubt = "" if sure else ", though its interval includes zero"
    rivals = {"sharpness": ("size", results.sharpness_over_size)}
    rivals["size"] = ("sharpness", 1 - results.sharpness_over_size)
    odds = ""
    if name in rivals:
        other, share = rivals[name]
        odds = f", and it weighs more than {other} in {percent(share, 0)} of the resamples"
    return (
        f"The main reason is that {why}: {number(row.value, 3)} of the change "
        f"({number(row.low, 3)} to {number(row.high, 3)}){doubt}{odds}."
    )


def render_comparison(results: Differences, sides: tuple[Decomposition, Decomposition]) -> str:
    """Make one HTML page of a comparison of two decompositions."""
    drawn = [_waterfall(results), *_curves(results, sides)]
    definitions = [(f"def-{key}", value) for key, value in GLOSSARY.items()]
    keys = {"size": "size_part", "correlation": "correlation_part", "means": "means_part"}
    parts = [
        {
            "title": f"due to {PARTS[name][0]}" if name != "means" else "due to the means",
            "definition": f"def-{keys.get(name, name)}",
            **asdict(row),
        }
        for name, row in results.parts.items()
    ]
    return show(
        "comparison.html.j2",
        drawn,
        definitions,
        results.lowland,
        results=results,
        answer=compared(results),
        parts=parts,
        number=numbers.number,
    )


def _waterfall(results: Differences) -> Figure:
    """Draw how the first gap becomes the second."""
    first, second = results.paired_gaps
    names, base, height, colours, low, high = ["first"], [0.0], [first], [FIRST], [0.0], [0.0]
    at = first
    for name, (title, colour) in PARTS.items():
        row = results.parts[name]
        names.append(title)
        base.append(at)
        height.append(row.value)
        colours.append(colour)
        high.append(row.high - row.value)
        low.append(row.value - row.low)
        at += row.value
    for values, value in ((names, "second"), (base, 0.0), (height, second), (colours, SECOND)):
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
        axes.linear_axis("paired gap"),
        bargap=0.35,
    )
    caption = (
        "From the first solution's paired gap to the second's: each step is what one determinant "
        "changed, with its 95 % interval; together they make the whole change exactly."
    )
    terms = ("change", "sharpness", "size_part", "correlation_part")
    return Figure("waterfall", "What makes the difference", caption, terms, [bars], layout, True)


def _curves(results: Differences, sides: tuple[Decomposition, Decomposition]) -> list[Figure]:
    n = max(len(side.sigma_g) for side in sides)
    spectra = [side.sigma_g for side in sides]
    sizes = [np.cumsum(side.sigma_w) for side in sides]
    totals = [np.cumsum(side.contribution) for side in sides]
    rows = (
        ("spectrum", "Sharpness", spectra, "σ<sub>g,n</sub>", ("sigma_g",), True),
        ("size", "Size", sizes, "S<sub>w,n</sub>", ("s_w", "sigma_w"), True),
        ("cumulative", "Where the gaps build up", totals, "gap up to n", ("contribution",), False),
    )
    captions = (
        "A curve that lies higher is a sharper solution, direction by direction.",
        "A curve that lies higher is a larger solution: new data move its weights further.",
        "The gap added up from the sharpest direction on.",
    )
    drawn = []
    for (key, title, curves, label, terms, log), caption in zip(rows, captions, strict=True):
        data = []
        for name, curve, colour, dash in zip(
            ("first", "second"), curves, (FIRST, SECOND), ("dot", "solid"), strict=True
        ):
            at = axes.ranks(len(curve))
            points = {"x": axes.values(at + 1), "y": axes.values(curve[at], positive=log)}
            look = {"mode": "lines", "line": {"color": colour, "width": 2, "dash": dash}}
            data.append(trace(**points, **look, name=name, hover=f"{name}, n = %{{x}}: %{{y:.4g}}"))
        axis = axes.log_axis(label, np.concatenate(curves)) if log else axes.linear_axis(label)
        layout = axes.layout(
            axes.rank_axis(n), axis, **axes.boundary(results.n_sharp, n), **axes.legend()
        )
        drawn.append(Figure(key, title, caption, terms, data, layout))
    return drawn
