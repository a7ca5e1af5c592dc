"""The density of eigenvalues, and single eigenvalues with their residuals."""

from typing import Any

import numpy as np

from lowland.figures.style import FLAT, NEUTRAL, SHARP

DEPTH = 1e-7  # of the highest point: eigenvalues in a million weights are seen one by one


def draw_density(density: Any, ax: Any) -> None:
    """A density, with two standard errors, logarithmic upwards.

    It has ``grid``, ``density``, ``stderr`` and ``exact``, as arrays or tensors.
    """
    x, y, error = (_array(getattr(density, name)) for name in ("grid", "density", "stderr"))
    floor = y.max() * DEPTH
    ax.semilogy(x, np.where(y > floor, y, np.nan), color=FLAT)
    if not density.exact:
        low, high = (y - 2 * error).clip(floor), (y + 2 * error).clip(floor)
        ax.fill_between(x, low, high, color=FLAT, alpha=0.2, linewidth=0)
    ax.set(xlabel="eigenvalue", ylabel="share per unit", ylim=(floor, None))


def draw_eigenvalues(pairs: Any, ax: Any) -> None:
    """Eigenvalues by rank, with their residuals: ``values`` and ``residuals``."""
    values, residuals = _array(pairs.values), _array(pairs.residuals)
    ranks = np.arange(1, len(values) + 1)
    ax.bar(ranks, values, color=SHARP, width=0.6)
    ax.errorbar(ranks, values, residuals, fmt="none", ecolor=NEUTRAL, capsize=2, linewidth=1)
    ax.axhline(0, color=NEUTRAL, linewidth=0.7)
    ax.xaxis.get_major_locator().set_params(integer=True)
    ax.set(xlabel="rank", ylabel="eigenvalue")


def _array(values: Any) -> np.ndarray:
    """Of a tensor or an array."""
    return np.asarray(values.cpu() if hasattr(values, "cpu") else values, dtype=float)
