"""The figure of a study for print, and the numbers in it as a table."""

import csv
import io
import math
import string
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lowland_studies.evidence import Runs
from lowland_studies.panels import Curve, Panel

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

    from lowland_studies.study import Study

KINDS = ("svg", "pdf", "png", "csv")

_STYLE: Any = {
    "font.size": 8,
    "axes.labelsize": 8.5,
    "axes.titlesize": 8.5,
    "axes.linewidth": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.fontsize": 7.5,
    "legend.title_fontsize": 7.5,
    "legend.frameon": False,
    "lines.linewidth": 1.2,
    "lines.markersize": 4,
    "pdf.fonttype": 42,  # letters stay letters
    "svg.hashsalt": "lowland",  # equal figures are equal files
}
_UNDATED: Any = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}, ".png": None}
_COLOURS = 40  # of a PNG, with the shades between lines and paper
_PANEL = 3.4, 2.4  # inches, with room for a legend beside the axes
_COLUMNS = {4: 2, 7: 4, 8: 4}  # by the number of panels, where it is not three


def draw(study: "Study", runs: Runs, folder: Path, suffix: str = "") -> list[Path]:
    """Write the figure of a study as SVG, PDF and PNG, and the numbers in it as CSV.

    ``suffix`` ends the names of the files, where a study has several readings.
    """
    import matplotlib
    from matplotlib.figure import Figure

    drawn = [(panel, panel.curves(runs)) for panel in study.panels]
    columns = _COLUMNS.get(len(drawn), min(len(drawn), 3))
    rows = math.ceil(len(drawn) / columns)
    paths = [folder / f"{study.file}{suffix}.{kind}" for kind in KINDS]
    with matplotlib.rc_context(_STYLE):
        figure = Figure((_PANEL[0] * columns, _PANEL[1] * rows), layout="constrained")
        for i, (panel, curves) in enumerate(drawn):
            ax = figure.add_subplot(rows, columns, i + 1)
            if len(drawn) > 1:
                ax.set_title(string.ascii_uppercase[i], loc="left", fontweight="bold")
            _draw(ax, panel, curves)
        for path in paths[:-1]:
            figure.savefig(path, dpi=200, metadata=_UNDATED[path.suffix])
    _reduce(paths[KINDS.index("png")])
    paths[-1].write_text(_csv(drawn), encoding="utf-8")
    return paths


def _reduce(path: Path) -> None:
    """Give a PNG a palette: a figure has few colours, and pages are kept in a repository."""
    from PIL import Image

    with Image.open(path) as image:
        few = image.convert("RGB").quantize(_COLOURS, dither=Image.Dither.NONE)
    few.save(path, optimize=True)


def _draw(ax: "Axes", panel: Panel, curves: list[Curve]) -> None:
    ax.set_title(panel.title)
    xlabel, ylabel = panel.labels
    ax.set_xlabel(xlabel)
    ax.set_ylabel(ylabel)
    if not any(np.isfinite(curve.y).any() for curve in curves):
        ax.text(0.5, 0.5, "no converged runs", ha="center", transform=ax.transAxes)
        return
    for axis in panel.log:
        if any((getattr(curve, axis) > 0).any() for curve in curves):
            getattr(ax, f"set_{axis}scale")("log")
    panel.draw(ax, curves)
    _tick(ax.xaxis)
    _tick(ax.yaxis)


def _tick(axis: "Axis") -> None:
    """Choose ticks whose numbers do not overlap on a logarithmic axis of few decades."""
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    if not isinstance(axis.get_major_locator(), LogLocator):
        return
    low, high = axis.get_view_interval()
    axis.set_minor_formatter(NullFormatter())
    if high < 100 * low:
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.set_major_formatter(StrMethodFormatter("{x:g}"))


def _csv(drawn: list[tuple[Panel, list[Curve]]]) -> str:
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["panel", "x_label", "y_label", "curve", "x", "y", "sd", "runs", "seed"])
    for letter, (panel, curves) in zip(string.ascii_uppercase, drawn, strict=False):
        for curve in curves:
            seeds = [""] * len(curve.x) if curve.seeds is None else map(int, curve.seeds)
            rows = zip(curve.x, curve.y, curve.sd, curve.runs, seeds, strict=True)
            for x, y, sd, runs, seed in rows:
                numbers = map(_digits, (x, y, sd))
                table.writerow([letter, *panel.labels, curve.label, *numbers, int(runs), seed])
    return text.getvalue()


def _digits(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.8g}"


def numbers_csv(runs: Runs) -> str:
    """A row for each run: its settings that vary, its seed, and all that claims asked for.

    From these the verdicts can be checked by other means.
    """
    every = runs.with_left_out()
    columns = [n for n in runs.asked or {} if n not in ("seed", *every.varied)]
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow([*every.varied, "seed", "counts", *columns])
    for i, row in enumerate(every.rows):
        numbers = [(runs.asked or {})[name].get(row["key"], math.nan) for name in columns]
        settings = ["" if row[name] is None else row[name] for name in every.varied]
        counts = int(i < len(runs.rows))
        table.writerow([*settings, row["seed"], counts, *(_digits(float(n)) for n in numbers)])
    return text.getvalue()
