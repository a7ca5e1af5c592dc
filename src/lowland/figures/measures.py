"""Measures with their standard errors, on one logarithmic axis."""

import math
from typing import Any

from lowland.figures.style import FLAT, NEUTRAL, SHARP, plain


def draw_measures(rows: Any, ax: Any) -> None:
    """Each measure's magnitude; open circles are negative. ``rows`` are findings' MeasureRows."""
    shown = [row for row in rows if row.value is not None and math.isfinite(row.value)]
    shown = [row for row in shown if row.value != 0][::-1]
    for place, row in enumerate(shown):
        colour = {"higher": SHARP, "lower": FLAT}.get(row.sharper, NEUTRAL)
        fill = colour if row.value > 0 else "none"
        ax.plot(abs(row.value), place, "o", color=colour, markerfacecolor=fill, markersize=3)
        if row.stderr:
            low = max(abs(row.value) - 2 * row.stderr, 1e-3 * abs(row.value))
            ax.plot([low, abs(row.value) + 2 * row.stderr], [place, place], color=colour, lw=0.8)
    ax.set_yticks(range(len(shown)), [plain(row.title, 60) for row in shown], fontsize=5)
    ax.set(xscale="log", xlabel="magnitude, with two standard errors")
    if len(shown) > 12 and hasattr(ax.figure, "set_size_inches"):
        ax.figure.set_size_inches(4.6, 0.13 * len(shown) + 0.8)
