"""The one style of all figures: colours that everybody tells apart, sizes for a column."""

import base64
import html
import io
from collections.abc import Callable
from typing import Any

from lowland.wording import printable

# As in the report: Okabe-Ito hues, darker, so that they also stand on white paper.
SHARP, FLAT, MEAN, NEUTRAL = "#bf4f06", "#0b68a6", "#97527f", "#6d7078"
MAP = "cividis"
FORMATS = ("pdf", "svg", "png")

# A legend over the axes hides nothing.
ABOVE = {"loc": "lower center", "bbox_to_anchor": (0.5, 1.0), "ncols": 3, "borderaxespad": 0.2}
SIZE = (3.4, 2.5)  # inches: one column of a paper
STYLE: Any = {
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "legend.fontsize": 7,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.7,
    "lines.linewidth": 1.3,
    "legend.frameon": False,
    "grid.color": "#dcdcdc",
    "grid.linewidth": 0.4,
    "figure.constrained_layout.use": True,
    "savefig.dpi": 200,
    "pdf.fonttype": 42,  # letters stay letters: editors and journals ask for it
    "svg.fonttype": "none",
    "svg.hashsalt": "lowland",  # the same figure is the same file
}

Draw = Callable[[Any, Any], Any]


def plain(name: str, most: int = 20) -> str:
    """Return a user's text without what matplotlib reads as mathematics; the end of a long one."""
    short = name if len(name) <= most else f"…{name[1 - most :]}"
    return printable(short).replace("$", r"\$")


def drawn_on(draw: Draw, result: Any, ax: Any = None, **projection: Any) -> Any:
    """Draw on these axes, or on new ones of pyplot; the axes."""
    import matplotlib.pyplot as plt

    with plt.rc_context(STYLE):
        if ax is None:
            _, ax = plt.subplots(figsize=SIZE, subplot_kw=projection or None)
        draw(result, ax)
    return ax


def saved(draw: Draw, result: Any, kind: str, **projection: Any) -> bytes:
    """The figure as a file of this kind, without pyplot and its windows."""
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with mpl.rc_context(STYLE):
        figure = Figure(figsize=SIZE)
        FigureCanvasAgg(figure)
        draw(result, figure.add_subplot(**projection))
        content = io.BytesIO()
        # No date: the same results give the same bytes.
        metadata = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}.get(kind)
        figure.savefig(content, format=kind, metadata=metadata)
    return content.getvalue()


def picture(draw: Draw, result: Any, **projection: Any) -> str:
    """The figure and what the result says of itself, as HTML for a notebook."""
    image = base64.b64encode(saved(draw, result, "png", **projection)).decode()
    words = html.escape(repr(result))
    return f'<pre>{words}</pre><img alt="{words}" src="data:image/png;base64,{image}" width="480">'
