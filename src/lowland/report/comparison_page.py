"""Two solutions side by side: the answer in words, the figures and the page."""

import math
from dataclasses import asdict

import numpy as np

from lowland.findings import Decomposition, Differences
from lowland.report import axes, numbers
from lowland.report.axes import FLAT, MEAN, NEUTRAL, SHARP, Plot
from lowland.report.glossary import GLOSSARY
from lowland.report.numbers import number, percent
from lowland.report.page import show
from lowland.report.traces import Figure, trace
from lowland.report.words import FEW, standing

# The parts of a change, with their colours: the determinants look as they do in a report.
PARTS = {
    "sharpness": ("sharpness", SHARP),
    "size": ("size", FLAT),
    "correlation": ("correlation", MEAN),
    "means": ("means", NEUTRAL),
}
FIRST, SECOND = "var(--neutral)", "var(--ink)"


def compared(results: Differences) -> str:
    """Say which solution does better on unseen data, then which gap is smaller and why.

    A smaller gap is called better generalisation only where both fit their training data
    comparably (``Differences.alike_fits``): the gap of an untrained network is next to nothing.
    """
    return " ".join([*_unfinished(results), _on_unseen_data(results), *_gaps(results)])


def _unfinished(results: Differences) -> list[str]:
    """Name those that are no minima, before anything is said about them."""
    states = [standing(side.convergence) for side in results.solutions]
    if states[0] is not None and states[0] == states[1]:
        return [f"Careful: both solutions are {states[0]}."]
    named = [
        f"the {which} solution is {state}"
        for which, state in zip(("first", "second"), states, strict=True)
        if state is not None
    ]
    return [f"Careful: {' and '.join(named)}."] if named else []


def _on_unseen_data(results: Differences) -> str:
    """Compare test losses and errors, each against its standard error."""
    first, second = (side.outcome for side in results.solutions)
    losses = f"test loss {number(second.test_loss, 3)} against {number(first.test_loss, 3)}"
    verdicts = [_lower(results, "test_loss")]
    numbers = losses
    if first.test_error is not None and second.test_error is not None:
        verdicts.append(_lower(results, "test_error"))
        numbers += f", test error {percent(second.test_error)} against {percent(first.test_error)}"
    if set(verdicts) == {None}:
        return (
            "On unseen data the two solutions are not told apart, within the error of this test "
            f"set ({numbers})."
        )
    if {"first", "second"} <= set(verdicts):
        loss, error = verdicts
        return (
            f"On unseen data the {loss} solution has the smaller loss and the {error} one the "
            f"smaller error ({numbers})."
        )
    (better,) = set(verdicts) - {None}
    title = results.solutions[0 if better == "first" else 1].title
    return f"The {better} solution, {title}, does better on unseen data ({numbers})."


def _lower(results: Differences, name: str) -> str | None:
    """Which solution has the lower number; None within two standard errors, or if not known."""
    first, second = (getattr(side.outcome, name) for side in results.solutions)
    errors = [getattr(side, f"{name}_stderr") for side in results.solutions]
    if first is None or second is None or None in errors:
        return None
    if abs(second - first) <= 2 * math.hypot(*errors):
        return None
    return "second" if second < first else "first"


def _gaps(results: Differences) -> list[str]:
    change = results.change
    first, second = results.paired_gaps
    spread = f"(95 % interval {number(change.low, 3)} to {number(change.high, 3)})"
    gaps = f"paired gap {number(second, 3)} against {number(first, 3)}"
    if results.pairs < FEW:
        return [
            f"Their {number(results.pairs)} common pairs are too few to tell their gaps apart "
            f"({gaps}).",
            "No cause is therefore named.",
        ]
    if change.low <= 0 <= change.high:
        return [
            f"On {number(results.pairs)} common pairs their gaps do not differ beyond chance: "
            f"{gaps}, a change of {number(change.value, 3)} {spread}.",
            "No cause is therefore named.",
        ]
    if not results.alike_fits:
        losses = [number(side.outcome.train_loss, 3) for side in results.solutions]
        smaller = "second" if change.value < 0 else "first"
        return [
            f"The {smaller} one has the smaller gap ({gaps}), but that does not mean that it "
            f"generalises better: the two do not fit their training data comparably (training loss "
            f"{losses[1]} against {losses[0]})."
        ]
    word = "worse" if change.value > 0 else "better"
    sentences = [
        f"The second solution generalises {word}: {gaps}, a change of {number(change.value, 3)} "
        f"{spread}.",
        _cause(results),
    ]
    if results.gauge == "given":
        sentences.append(
            "The weights are taken as they are scaled: rescaling hidden units would move shares "
            "between sharpness and size (lowland analyze --gauge balanced excludes that)."
        )
    return sentences


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
    if row.low <= 0 <= row.high:
        return (
            f"No cause is named: the largest part of the change is due to {name} "
            f"({number(row.value, 3)}), but its interval includes zero ({number(row.low, 3)} to "
            f"{number(row.high, 3)})."
        )
    rivals = {"sharpness": ("size", results.sharpness_over_size)}
    rivals["size"] = ("sharpness", 1 - results.sharpness_over_size)
    odds = ""
    if name in rivals:
        other, share = rivals[name]
        odds = f", and it weighs more than {other} in {percent(share, 0)} of the resamples"
    return (
        f"The main reason is that {why}: {number(row.value, 3)} of the change "
        f"({number(row.low, 3)} to {number(row.high, 3)}){odds}."
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
        standing=standing,
        parts=parts,
        number=numbers.number,
    )


def _waterfall(results: Differences) -> Figure:
    """Draw how the first gap becomes the second."""
    first, second = results.paired_gaps
    names, base, height, colours, low, high = ["first"], [0.0], [first], [FIRST], [0.0], [0.0]
    level = first
    for name, (title, colour) in PARTS.items():
        row = results.parts[name]
        names.append(title)
        base.append(level)
        height.append(row.value)
        colours.append(colour)
        high.append(row.high - row.value)
        low.append(row.value - row.low)
        level += row.value
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
            ranks = axes.ranks(len(curve))
            points = {"x": axes.values(ranks + 1), "y": axes.values(curve[ranks], positive=log)}
            look = {"mode": "lines", "line": {"color": colour, "width": 2, "dash": dash}}
            data.append(trace(**points, **look, name=name, hover=f"{name}, n = %{{x}}: %{{y:.4g}}"))
        axis = axes.log_axis(label, np.concatenate(curves)) if log else axes.linear_axis(label)
        layout = axes.layout(
            axes.rank_axis(n), axis, **axes.boundary(results.n_sharp, n), **axes.legend()
        )
        drawn.append(Figure(key, title, caption, terms, data, layout))
    return drawn
