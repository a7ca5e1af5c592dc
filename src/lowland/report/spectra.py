"""The figures of the whole network's spectrum."""

import numpy as np

from lowland.findings import WholeSpectrum
from lowland.report import axes
from lowland.report.axes import FLAT, NEUTRAL, SHARP
from lowland.report.numbers import number
from lowland.report.traces import Figure, drawable, trace
from lowland.wording import counted

# Decades below the highest point that the density shows: one eigenvalue of many weights lies low.
DEPTH = 7.0


def spectrum_figures(spectrum: WholeSpectrum) -> list[Figure]:
    """The density of all eigenvalues, and the largest ones by themselves."""
    return [density(spectrum), leading(spectrum)]


def density(spectrum: WholeSpectrum) -> Figure:
    """Draw the density on a logarithmic scale, with its error."""
    title = "All eigenvalues of the Hessian"
    values = spectrum.density
    if not drawable(values):
        return Figure("density", title, "Not drawn: the density is zero or not defined.")
    floor = max(float(values.max()) * 10**-DEPTH, 1 / (10 * spectrum.size * spectrum.bandwidth))
    high = np.maximum(values + 2 * spectrum.stderr, floor)
    low = np.maximum(values - 2 * spectrum.stderr, floor)
    grid = axes.values(spectrum.grid)
    data = []
    if not spectrum.exact:
        around = {"mode": "lines", "line": {"width": 0, "color": FLAT}}
        data.append(trace(x=grid, y=axes.values(low), **around, name="less two errors", hover=None))
        data.append(
            trace(
                x=grid,
                y=axes.values(high),
                **around,
                fill="tonexty",
                fillcolor="var(--flat-fill)",
                name="plus two errors",
                hover=None,
            )
        )
    shown = np.where(values > floor, values, np.nan)
    look = {"mode": "lines", "line": {"color": FLAT, "width": 2}}
    hover = "eigenvalue %{x:.3g}: density %{y:.3g}"
    data.append(trace(x=grid, y=axes.values(shown), **look, name="density", hover=hover))
    up = axes.log_axis("share of eigenvalues per unit", np.array([floor, high.max()]))
    layout = axes.layout(axes.linear_axis("eigenvalue"), up)
    how = (
        "every one of them"
        if spectrum.exact
        else f"estimated from {counted(spectrum.products, 'product')}, with two standard errors"
    )
    caption = (
        f"The {counted(spectrum.size, 'eigenvalue')} of the whole network's Hessian ({how}): most "
        "lie at zero, the flat directions, and few far to the right, the sharp ones. Each is "
        f"spread by a Gaussian of width {number(spectrum.bandwidth, 2)}."
    )
    return Figure("density", title, caption, ("density", "hessian"), data, layout)


def leading(spectrum: WholeSpectrum) -> Figure:
    """Draw the largest eigenvalues with their residuals."""
    title = "The sharpest directions"
    values, residuals = spectrum.leading()
    if not len(values):
        return Figure("leading", title, "Not drawn: no single eigenvalue has been found.")
    ranks = np.arange(1, len(values) + 1)
    bars = {
        "type": "bar",
        "name": "eigenvalue",
        "x": axes.values(ranks),
        "y": axes.values(values),
        "marker": {"color": SHARP},
        "error_y": {
            "type": "data",
            "array": axes.values(residuals),
            "color": NEUTRAL,
            "thickness": 1.5,
        },
        "hovertemplate": "n = %{x}: %{y:.5g} ± %{error_y.array:.2g}<extra></extra>",
    }
    across = axes.linear_axis("rank") | {"zeroline": False, "dtick": 1}
    layout = axes.layout(across, axes.linear_axis("eigenvalue"), bargap=0.45)
    worst = float((residuals / values).max())
    caption = (
        f"The {number(len(values))} largest eigenvalues that are known one by one. The bars' lines "
        "are residuals: an eigenvalue of the Hessian lies within them. Here they are "
        + (f"at most {worst:.1g} of the value." if worst > 0 else "0, of an exact spectrum.")
    )
    return Figure("leading", title, caption, ("eigenvalue_residual",), [bars], layout)
