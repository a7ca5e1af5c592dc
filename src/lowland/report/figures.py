"""The figures of the report, as plain plotly.js dictionaries: importing plotly's own classes takes
longer than everything else together, and a picture needs none of their checks.
"""

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lowland.errors import InputError
from lowland.report import axes
from lowland.report.axes import FLAT, MEAN, NEUTRAL, SHARP, Plot, Vector
from lowland.report.numbers import number, percent


@dataclass(frozen=True)
class Figure:
    """One picture with the sentence that says what to see in it.

    Without `data` it was not drawn, and the caption says why. `terms` are the glossary entries of
    what the axes show.
    """

    key: str
    title: str
    caption: str
    terms: tuple[str, ...] = ()
    data: list[Plot] = field(default_factory=list)
    layout: Plot = field(default_factory=dict)
    wide: bool = False


def figures(results: dict[str, Any], arrays: dict[str, Vector]) -> list[Figure]:
    """Draw everything the results allow, in the order in which it is read."""
    drawn = []
    duality = results["duality"]
    if duality is not None:
        _same_length(arrays)
        drawn.append(split(results["outcome"]["gap"], duality))
        for draw, title, names in _OVER_DIRECTIONS:
            missing = [name for name in names if f"duality/{name}" not in arrays]
            if missing:
                reason = f"Not drawn: {' and '.join(missing)} was not saved with these results."
                drawn.append(Figure(draw.__name__, title, reason))
            else:
                vectors = [np.asarray(arrays[f"duality/{name}"], dtype=float) for name in names]
                drawn.append(draw(title, duality, *vectors))
    if "training/loss" in arrays:
        drawn.append(training(np.asarray(arrays["training/loss"], dtype=float)))
    return drawn


def split(gap: float | None, duality: dict[str, Any]) -> Figure:
    """Draw the paired gap as one bar of its parts, below the gap it should explain."""
    title = "The gap and its parts"
    whole, sharp, flat = duality["eq9"], duality["sharp"], duality["flat"]
    if not all(part is not None and math.isfinite(part) for part in (gap, whole, sharp, flat)):
        return Figure("split", title, "Not drawn: a part of the gap is not defined.", ("gap",))
    parts = [("sharp part", sharp, SHARP), ("flat part", flat, FLAT)]
    mean = whole - duality["eq11"]
    if abs(mean) > 0.005 * abs(whole):  # thinner than its own outline otherwise
        parts.append(("mean term", mean, MEAN))
    data = [_bar("gap", "gap", gap, NEUTRAL, number(gap, 3)) | {"showlegend": False}]
    for name, value, colour in parts:
        text = percent(value / whole, 0) if whole > 0 else number(value, 3)
        wide = abs(value) > 0.2 * max(abs(part) for _, part, _ in parts)
        data.append(_bar(name, "paired gap", value, colour, text if wide else ""))
    caption = (
        f"Lower bar: the {number(duality['n_sharp'])} sharpest directions carry "
        f"{number(sharp, 3)} of the paired gap of {number(whole, 3)} and the other "
        f"{number(duality['directions'] - duality['n_sharp'])} carry {number(flat, 3)}; upper "
        "bar: the gap over all samples, which the pairs should stand for."
    )
    layout = axes.layout(
        axes.linear_axis("test loss − training loss"),
        {"automargin": True, "autorange": "reversed", "ticklabelstandoff": 6},
        barmode="relative",
        bargap=0.3,
        showlegend=True,
        legend={"orientation": "h", "x": 0, "y": 1.04, "yanchor": "bottom"},
    )
    layout["margin"]["t"] = 40
    terms = ("gap", "paired_gap", "sharp", "flat", "mean_term")
    return Figure("split", title, caption, terms, data, layout, wide=True)


def cumulative(title: str, duality: dict[str, Any], contribution: Vector) -> Figure:
    """Draw the contributions of Eq. 11 added up from the sharpest direction on."""
    n, n_sharp = len(contribution), duality["n_sharp"]
    total = np.cumsum(np.where(np.isfinite(contribution), contribution, 0.0))
    caption = (
        "Contributions added up from the sharpest direction on: a curve that rises early says "
        "that a few sharp directions carry the gap, one that rises late that many flat ones do."
    )
    data = []
    for name, part, colour in _sharp_and_flat(n, n_sharp, overlap=True):
        line = {"x": axes.values(part + 1), "y": axes.values(total[part]), "name": name}
        fill = {"fill": "tozeroy", "fillcolor": colour.replace(")", "-fill)")}
        look = {"mode": "lines", "line": {"color": colour, "width": 2.5}}
        data.append(_trace(**line, **fill, **look, hover="up to n = %{x}: %{y:.4g}"))
    layout = axes.layout(
        axes.rank_axis(n),
        axes.linear_axis("part of the gap from directions 1 to n"),
        **axes.boundary(n_sharp, n),
    )
    undefined = int(np.sum(~np.isfinite(contribution)))
    caption += _left_out(undefined, "without a defined contribution", "counted as zero")
    caption += _part_of(n, duality)
    return Figure("cumulative", title, caption, ("contribution", "n_sharp"), data, layout)


def spectrum(title: str, duality: dict[str, Any], sigma_g: Vector) -> Figure:
    """Draw σ_g against rank, as in the paper's Fig. 3A."""
    n, n_sharp = len(sigma_g), duality["n_sharp"]
    caption = (
        "How strongly the loss reacts in each direction: a steep drop, where there is one, "
        "separates a few sharp directions from many flat ones."
    )
    if not _drawable(sigma_g):
        return Figure("spectrum", title, "Not drawn: every σ_{g,n} is zero or not defined.")
    data = []
    for name, part, colour in _sharp_and_flat(n, n_sharp):
        points = {"x": axes.values(part + 1), "y": axes.values(sigma_g[part], positive=True)}
        look = {"mode": "markers", "marker": {"color": colour, "size": 7 if colour == SHARP else 4}}
        data.append(_trace(**points, **look, name=name, hover="n = %{x}: σ = %{y:.3g}"))
    layout = axes.layout(
        axes.rank_axis(n),
        axes.log_axis("σ<sub>g,n</sub>  (loss per unit of weight)", sigma_g),
        **axes.boundary(n_sharp, n),
    )
    caption += _off_the_axis(sigma_g) + _part_of(n, duality)
    return Figure("spectrum", title, caption, ("sigma_g", "n_sharp"), data, layout)


def size(title: str, duality: dict[str, Any], sigma_w: Vector) -> Figure:
    """Draw S_w,n against rank, as in the paper's Fig. 3B."""
    n, n_sharp = len(sigma_w), duality["n_sharp"]
    total = np.cumsum(np.where(np.isfinite(sigma_w), sigma_w, 0.0))
    caption = (
        "How far new data move the weights, summed over the directions up to n: a smaller "
        "solution lowers this curve, and slope one means that no direction is preferred."
    )
    if not _drawable(total):
        return Figure("size", title, "Not drawn: every σ_{w,n} is zero or not defined.")
    data = []
    for name, part, colour in _sharp_and_flat(n, n_sharp, overlap=True):
        points = {"x": axes.values(part + 1), "y": axes.values(total[part], positive=True)}
        look = {"mode": "lines", "line": {"color": colour, "width": 2.5}}
        data.append(_trace(**points, **look, name=name, hover="up to n = %{x}: %{y:.4g}"))
    layout = axes.layout(
        axes.rank_axis(n),
        axes.log_axis("S<sub>w,n</sub>  (in units of weight)", total),
        **axes.boundary(n_sharp, n),
    )
    return Figure("size", title, caption + _part_of(n, duality), ("s_w", "sigma_w"), data, layout)


def curvature(title: str, duality: dict[str, Any], sigma_g: Vector, eigenvalue: Vector) -> Figure:
    """Draw H_n against σ_g,n², as in the paper's Fig. 2A, where both are positive."""
    n, n_sharp = len(sigma_g), duality["n_sharp"]
    squared = sigma_g**2
    both = np.isfinite(squared) & (squared > 0) & np.isfinite(eigenvalue) & (eigenvalue > 0)
    if not both.any():
        return Figure("curvature", title, "Not drawn: no direction has H_{n} > 0 and σ_{g,n} > 0.")
    caption = (
        "Each point is a direction: where the points follow the dotted line of slope one, σ_{g,n} "
        "measures the same sharpness as the Hessian, which the paper finds for the largest values."
    )
    data = []
    for name, part, colour in _sharp_and_flat(n, n_sharp):
        part = part[both[part]]
        points = {"x": axes.values(squared[part]), "y": axes.values(eigenvalue[part])}
        size = 8 if colour == SHARP else 4
        look = {"mode": "markers", "marker": {"color": colour, "size": size, "opacity": 0.75}}
        ranks = {"customdata": axes.values(part + 1)}
        hover = "n = %{customdata}: σ² = %{x:.3g}, H = %{y:.3g}"
        data.append(_trace(**points, **look, **ranks, name=name, hover=hover))
    # Through the middle of the sharpest directions: where the paper finds H_n ∝ σ_g,n².
    sharpest = np.flatnonzero(both)[: max(n_sharp, 1)]
    ratio = float(np.median(eigenvalue[sharpest] / squared[sharpest]))
    ends = np.array([squared[both].min(), squared[both].max()])
    guide = {"x": axes.values(ends), "y": axes.values(ratio * ends)}
    dotted = {"mode": "lines", "line": {"color": NEUTRAL, "width": 1.5, "dash": "dot"}}
    data.append(_trace(**guide, **dotted, name="slope one", hover=None))
    layout = axes.layout(
        axes.log_axis("σ<sub>g,n</sub><sup>2</sup>", squared[both]),
        axes.log_axis("H<sub>n</sub>, eigenvalue of the Hessian", eigenvalue[both]),
    )
    caption += _left_out(int(np.sum(~both)), "with H_{n} ≤ 0 or σ_{g,n} = 0", "left out")
    return Figure("curvature", title, caption, ("eigenvalue", "sigma_g"), data, layout)


def training(loss: Vector) -> Figure:
    """Draw the training loss after each epoch."""
    title = "The training"
    if not _drawable(loss):
        return Figure("training", title, "Not drawn: no loss is positive and finite.")
    epochs = np.unique(np.linspace(0, len(loss) - 1, min(len(loss), axes.MAX_POINTS)).astype(int))
    points = {"x": axes.values(epochs + 1), "y": axes.values(loss[epochs], positive=True)}
    look = {"mode": "lines+markers" if len(loss) < 30 else "lines", "line": {"color": NEUTRAL}}
    data = [_trace(**points, **look, name="training loss", hover="epoch %{x}: %{y:.4g}")]
    layout = axes.layout(axes.linear_axis("epoch"), axes.log_axis("training loss", loss))
    layout["xaxis"]["zeroline"] = False
    caption = "Mean training loss of each epoch: the analysed weights are those at the right end."
    return Figure("training", title, caption, ("train_loss", "epochs"), data, layout, wide=True)


_OVER_DIRECTIONS = (
    (cumulative, "Where the gap builds up", ("contribution",)),
    (spectrum, "Sharpness of each direction", ("sigma_g",)),
    (size, "Size of the solution", ("sigma_w",)),
    (curvature, "Sharpness against curvature", ("sigma_g", "eigenvalue")),
)


def _same_length(arrays: dict[str, Vector]) -> None:
    shapes = {name: np.shape(a) for name, a in arrays.items() if name.startswith("duality/")}
    if len(set(shapes.values())) > 1 or any(len(shape) != 1 for shape in shapes.values()):
        raise InputError(
            f"the arrays of the duality must be vectors of one length, but came as {shapes}; "
            "run the analysis again to save them anew"
        )


def _sharp_and_flat(
    n: int, n_sharp: int, overlap: bool = False
) -> list[tuple[str, "np.ndarray[Any, np.dtype[np.int64]]", str]]:
    """Split the ranks to draw; with `overlap` the flat curve starts where the sharp one ends."""
    drawn = axes.ranks(n)
    sharp, flat = drawn[drawn < n_sharp], drawn[drawn >= n_sharp - overlap]
    return [("sharp", sharp, SHARP), ("flat", flat, FLAT)]


def _bar(name: str, row: str, value: float | None, colour: str, text: str) -> Plot:
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


def _trace(hover: str | None, **rest: Any) -> Plot:
    if hover is None:
        return {"type": "scatter", "hoverinfo": "skip", **rest}
    return {"type": "scatter", "hovertemplate": f"{hover}<extra></extra>", **rest}


def _drawable(vector: Vector) -> bool:
    return bool(np.any(np.isfinite(vector) & (vector > 0)))


def _off_the_axis(vector: Vector) -> str:
    """Say what a logarithmic axis cannot show, or shows only after zooming out."""
    defined = np.isfinite(vector) & (vector > 0)
    text = _left_out(int(np.sum(~defined)), "with zero or no value", "not drawn")
    floor = vector[defined].max() / 10.0**axes.MAX_DECADES
    return text + _left_out(int(np.sum(vector[defined] < floor)), "far below", "off the axis")


def _left_out(count: int, which: str, fate: str) -> str:
    if not count:
        return ""
    noun, verb = ("direction", "is") if count == 1 else ("directions", "are")
    return f" ({number(count)} {noun} {which} {verb} {fate}.)"


def _part_of(n: int, duality: dict[str, Any]) -> str:
    if n >= duality["directions"]:
        return ""
    return f" (Known are the first {number(n)} of {number(duality['directions'])} directions.)"
