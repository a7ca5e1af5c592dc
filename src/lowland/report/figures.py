"""The figures of the report on one solution."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lowland.findings import Decomposition, LayerRow, Results
from lowland.report import axes
from lowland.report.axes import FLAT, MEAN, NEUTRAL, SHARP, Plot, Vector
from lowland.report.directions import OVER_DIRECTIONS
from lowland.report.landscapes import landscape_figures
from lowland.report.numbers import number, percent
from lowland.report.spectra import spectrum_figures
from lowland.report.traces import Figure, View, bar, drawable, of_views, trace
from lowland.wording import counted

LAYER_VIEWS = {
    "sharpness": ("sigma_g", SHARP),
    "size": ("sigma_w", FLAT),
    "weight norm": ("weight_norm", NEUTRAL),
}


@dataclass(frozen=True)
class Parts:
    """The figures of a report, by the part that shows them."""

    gap: list[Figure]
    directions: list[Figure]
    spectrum: list[Figure]
    landscape: list[Figure]
    training: list[Figure]

    @property
    def every(self) -> list[Figure]:
        """All of them, in the order in which they are read."""
        return [*self.gap, *self.directions, *self.spectrum, *self.landscape, *self.training]


def figures(results: Results) -> Parts:
    """Draw everything the results allow."""
    gap, directions, course = [], [], []
    if results.duality is not None:
        gap.append(split(results.outcome.gap, results.duality))
        drawn = (draw(title, results.duality) for draw, title in OVER_DIRECTIONS)
        directions = [figure for figure in drawn if figure is not None]
    if results.layer_rows:
        gap.append(by_layer(results.layer_rows))
    if len(results.layer_rows) > 1:
        directions.append(norms(results.layer_rows))
    record = results.origin.training
    if record is not None and "loss" in record.curves:
        course.append(training(np.asarray(record.curves["loss"], dtype=float)))
    return Parts(
        gap,
        directions,
        spectrum_figures(results.spectrum) if results.spectrum is not None else [],
        landscape_figures(results.landscape) if results.landscape is not None else [],
        course,
    )


def split(gap: float | None, duality: Decomposition) -> Figure:
    """Draw the paired gap as one bar of its parts, below the gap it should explain."""
    title = "The gap and its parts"
    whole, sharp, flat = duality.eq9, duality.sharp, duality.flat
    if not all(part is not None and math.isfinite(part) for part in (gap, whole, sharp, flat)):
        return Figure("split", title, "Not drawn: a part of the gap is not defined.", ("gap",))
    parts = [("sharp part", sharp, SHARP), ("flat part", flat, FLAT)]
    mean = whole - duality.eq11
    if abs(mean) > 0.005 * abs(whole):  # thinner than its own outline otherwise
        parts.append(("mean term", mean, MEAN))
    data = [bar("gap", "gap", gap, NEUTRAL, number(gap, 3)) | {"showlegend": False}]
    for name, value, colour in parts:
        shared = whole > 0 and not duality.targets_dominate
        text = percent(value / whole, 0) if shared else number(value, 3)
        wide = abs(value) > 0.2 * max(abs(part) for _, part, _ in parts)
        data.append(bar(name, "paired gap", value, colour, text if wide else ""))
    carry, others = ("carries", "carry"), duality.setting.directions - duality.n_sharp
    caption = (
        f"Lower bar: the {counted(duality.n_sharp, 'sharpest direction', carry)} "
        f"{number(sharp, 3)} of the paired gap of {number(whole, 3)}, and the "
        f"{counted(others, 'other', carry)} {number(flat, 3)}; upper bar: the gap over all "
        "samples, which the pairs should stand for."
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
    return Figure("split", title, caption, terms, data, layout)


def by_layer(rows: Sequence[LayerRow]) -> Figure:
    """Draw what determines the gap in every layer: its parts, or sharpness, size and norm."""
    title = "Layer by layer"
    useful = [row for row in rows if row.trusted]
    if not useful:
        return Figure("layers", title, "Not drawn: no layer has a useful dual.")
    places = np.array([rows.index(row) + 1 for row in useful])
    names = [row.layer for row in rows]
    parts = {"sharp part": ("sharp", SHARP), "flat part": ("flat", FLAT)}
    views = [View("parts of the gap", *_layer_bars(useful, places, names, parts))]
    for label, (name, colour) in LAYER_VIEWS.items():
        bars = _layer_bars(useful, places, names, {label: (name, colour)})
        views.append(View(label, *bars))
    caption = (
        "The same gap seen in the weights of each layer: what differs is how much of it lies in "
        "sharp directions. Choose a layer below, or by a click on its bar."
    )
    if len(useful) < len(rows):
        left = counted(len(rows) - len(useful), "layer", ("is", "are"))
        caption += f" ({left} left out, without a useful dual.)"
    return of_views("layers", title, caption, views, ("sharp", "flat", "total_g", "total_w"))


def _layer_bars(
    rows: Sequence[LayerRow],
    places: Vector,
    names: Sequence[str],
    series: dict[str, tuple[str, str]],
) -> tuple[list[Plot], Plot]:
    """Bars over the layers, and their layout."""
    data: list[Plot] = [
        {
            "type": "bar",
            "name": label,
            "x": axes.values(places),
            "y": axes.values(np.array([getattr(row, name) for row in rows], dtype=float)),
            "marker": {"color": colour},
            "customdata": [axes.shown(row.layer) for row in rows],
            "hovertemplate": f"layer %{{customdata}}, {label}: %{{y:.4g}}<extra></extra>",
        }
        for label, (name, colour) in series.items()
    ]
    across = axes.linear_axis("layer, from input to output") | {"zeroline": False}
    marked = range(0, len(names), max(1, math.ceil(len(names) / 20)))
    across |= {"range": [0.4, len(names) + 0.6], "tickvals": [i + 1 for i in marked]}
    across["ticktext"] = [axes.shown(names[i]) for i in marked]
    up = "part of the paired gap" if len(series) > 1 else next(iter(series))
    more = axes.legend() if len(series) > 1 else {}
    layout = axes.layout(across, axes.linear_axis(up), barmode="relative", bargap=0.4, **more)
    return data, layout


def norms(rows: Sequence[LayerRow]) -> Figure:
    """Draw the total dual variance against the weight norm of every layer, as in Fig. 2B."""
    norm = np.array([row.weight_norm for row in rows])
    size = np.array([row.sigma_w for row in rows]) ** 2
    title = "Size against weight norm"
    if not (drawable(norm) and drawable(size)):
        return Figure("norms", title, "Not drawn: a norm is zero or not defined.")
    points = {"x": axes.values(size, positive=True), "y": axes.values(norm, positive=True)}
    labels = {"text": [axes.shown(row.layer) for row in rows], "textposition": "top center"}
    look = {"mode": "markers+text", "marker": {"color": NEUTRAL, "size": 8}}
    hover = "layer %{text}: T = %{x:.3g}, norm %{y:.3g}"
    layout = axes.layout(
        axes.log_axis("T<sub>w</sub>, total dual variance", size),
        axes.log_axis("weight norm", norm),
    )
    caption = (
        "Each point is a layer: between solutions of one layer the paper "
        "finds that both grow together, between layers they need not."
    )
    data = [trace(**points, **labels, **look, name="layers", hover=hover)]
    return Figure("norms", title, caption, ("weight_norm", "total_w"), data, layout)


def training(loss: Vector) -> Figure:
    """Draw the training loss after each epoch."""
    title = "The training"
    if not drawable(loss):
        return Figure("training", title, "Not drawn: no loss is positive and finite.")
    epochs = np.unique(np.linspace(0, len(loss) - 1, min(len(loss), axes.MAX_POINTS)).astype(int))
    points = {"x": axes.values(epochs + 1), "y": axes.values(loss[epochs], positive=True)}
    look = {"mode": "lines+markers" if len(loss) < 30 else "lines", "line": {"color": NEUTRAL}}
    data = [trace(**points, **look, name="training loss", hover="epoch %{x}: %{y:.4g}")]
    layout = axes.layout(axes.linear_axis("epoch"), axes.log_axis("training loss", loss))
    layout["xaxis"]["zeroline"] = False
    caption = "Mean training loss of each epoch: the analysed weights are those at the right end."
    return Figure("training", title, caption, ("train_loss", "epochs"), data, layout, wide=True)
