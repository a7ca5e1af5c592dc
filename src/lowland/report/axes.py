"""Axes, colours and numbers as plotly.js reads them: plain dictionaries, every one valid JSON.

Colours are the names of the style sheet's variables, `var(--sharp)`; the page's script looks them
up when it draws, which is how one figure follows the light, the dark and the printed page.
Text of the user enters a figure as :func:`shown` only: plotly would read a part of HTML in it.
"""

import html
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowland.wording import printable

Plot = dict[str, Any]
Vector = NDArray[np.float64]

SHARP, FLAT, MEAN = "var(--sharp)", "var(--flat)", "var(--mean)"
NEUTRAL = "var(--neutral)"
INK, GRID = "var(--soft)", "var(--line)"
CLEAR = "rgba(0,0,0,0)"
FONT = "-apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"  # as in style.css

# A curve on a logarithmic axis shows no more than this many distinct points on any screen.
MAX_POINTS = 1500
# Rounding noise at 1e-18 would otherwise squeeze the spectrum into the top of its figure.
MAX_DECADES = 10


def ranks(n: int) -> NDArray[np.int64]:
    """Choose the 0-based ranks to draw: all, or of a large layer some, evenly on a log axis."""
    if n <= MAX_POINTS:
        return np.arange(n)
    return np.unique(np.geomspace(1, n, MAX_POINTS).round().astype(np.int64)) - 1


def values(vector: NDArray[Any], positive: bool = False) -> list[float | None]:
    """Turn an array into JSON numbers; null, which plotly skips, for what its axis cannot show."""
    return [
        float(f"{v:.6g}") if math.isfinite(v) and (v > 0 or not positive) else None for v in vector
    ]


def log_axis(title: str, vector: NDArray[Any]) -> Plot:
    """Make a logarithmic axis over the values within `MAX_DECADES` of the largest."""
    # Plotly sets powers a quarter larger than plain numbers: the small size makes them equal.
    axis = _axis(title) | {"type": "log", "exponentformat": "power", "tickfont": {"size": 10.5}}
    drawn = vector[np.isfinite(vector) & (vector > 0)]
    if not drawn.size:
        return axis
    drawn = drawn[drawn >= drawn.max() / 10.0**MAX_DECADES]
    low, high = np.log10(drawn.min()), np.log10(drawn.max())
    margin = max(0.05 * (high - low), 0.1)
    # Labels at every decade collide beyond six of them; few need the digits in between.
    axis["dtick"] = math.ceil((high - low) / 6) if high - low > 1.5 else "D1"
    return axis | {"range": [float(low - margin), float(high + margin)]}


def rank_axis(n: int) -> Plot:
    """Make the axis of all figures over directions: the rank n, logarithmic, from 1 on."""
    axis = _axis("rank n, sharpest first") | {"type": "log", "exponentformat": "none", "dtick": 1}
    return axis | {"range": [-0.05, math.log10(max(n, 2)) + 0.03]}


def linear_axis(title: str) -> Plot:
    """Make a linear axis whose zero is visible."""
    return _axis(title) | {"zeroline": True, "zerolinecolor": INK, "zerolinewidth": 1}


def layout(xaxis: Plot, yaxis: Plot, **more: Any) -> Plot:
    """Put two axes into the common layout: no frame, no legend unless asked for."""
    return {
        "xaxis": xaxis,
        "yaxis": yaxis,
        "font": {"family": FONT, "size": 13, "color": INK},
        "paper_bgcolor": CLEAR,
        "plot_bgcolor": CLEAR,
        "margin": {"l": 64, "r": 12, "t": 16, "b": 52},
        "showlegend": False,
        "modebar": {"bgcolor": CLEAR, "color": GRID, "activecolor": INK},
        "hoverlabel": {
            "bgcolor": "var(--page)",
            "bordercolor": GRID,
            "font": {"color": "var(--ink)"},
        },
        **more,
    }


def boundary(n_sharp: int, n: int) -> Plot:
    """Mark where the sharp directions end, as part of a layout over ranks."""
    if not 0 < n_sharp < n:
        return {}
    x = n_sharp + 0.5
    line = {"color": INK, "width": 1, "dash": "dot"}
    label = {
        "x": math.log10(x),  # plotly wants the logarithm for notes, not for shapes
        "y": 1,
        "yref": "paper",
        "yanchor": "top",
        "xanchor": "left",
        "xshift": 4,
        "showarrow": False,
        "text": f"n<sub>s</sub> = {n_sharp}",
    }
    shape = {"type": "line", "x0": x, "x1": x, "yref": "paper", "y0": 0, "y1": 1, "line": line}
    return {"shapes": [shape], "annotations": [label]}


def legend() -> Plot:
    """Show the names of the curves above the figure, as part of a layout."""
    above = {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"}
    return {"showlegend": True, "legend": above, "margin": {"l": 64, "r": 12, "t": 48, "b": 52}}


def shown(name: str, most: int = 24) -> str:
    """Return a name of the user's as plotly shows it, without HTML; of a long one its end."""
    short = name if len(name) <= most else f"…{name[1 - most :]}"
    return html.escape(printable(short), quote=False)


def _axis(title: str) -> Plot:
    return {
        "title": {"text": title, "standoff": 10, "font": {"size": 13}},
        "gridcolor": GRID,
        "linecolor": INK,
        "tickcolor": INK,
        "zeroline": False,
        "automargin": True,
    }
