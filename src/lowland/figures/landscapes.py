"""Lines, surfaces and paths of a landscape. Points without a finite loss stay holes."""

import math
from typing import Any

import numpy as np

from lowland.figures.style import ABOVE, FLAT, MAP, MEAN, NEUTRAL, SHARP, plain

LEVELS = 16
DECADES = 1.5  # losses that span more are drawn by their logarithm
ROUTES = {"straight": NEUTRAL, "aligned": FLAT, "renormalised": MEAN, "curve": SHARP}


def draw_line(line: Any, ax: Any) -> None:
    """The losses along a direction, with the quadratic of the Hessian and where it holds."""
    ax.plot(line.x, line.train, color=FLAT, label="training loss")
    if line.test is not None:
        ax.plot(line.x, line.test, color=SHARP, label="test loss")
    drawn = [v for v in (line.train, line.test) if v is not None]
    every = np.concatenate(drawn)
    every = every[np.isfinite(every)]
    if line.quadratic is not None:
        ax.plot(line.x, line.quadratic.along(line.x), ":", color=NEUTRAL, label="quadratic")
        for side in (-1, 1) if line.quadratic.holds is not None else ():
            ax.axvline(side * line.quadratic.holds, color=NEUTRAL, linewidth=0.6)
    for place, mark in enumerate(line.marks, 1):
        ax.plot(mark.x, mark.train, "o", color=MEAN, markersize=4)
        ax.annotate(str(place), (mark.x, mark.train))
    if every.size and every.min() > 0 and every.max() / every.min() > 10**DECADES:
        ax.set(yscale="log", ylim=(float(every.min()) / 1.5, float(every.max()) * 1.5))
    elif every.size:  # the quadratic may leave the picture
        margin = 0.06 * float(np.ptp(every)) or 0.1
        ax.set_ylim(float(every.min()) - margin, float(every.max()) + margin)
    ax.set(xlabel=plain(line.axis.label, 40), ylabel="loss")
    ax.legend(**ABOVE)


def draw_surface(surface: Any, ax: Any) -> None:
    """Contours of the training loss, with the training, the checkpoints and the centre."""
    from matplotlib.colors import LogNorm

    levels, log = _levels(surface.train)
    values = np.ma.masked_invalid(surface.train)
    norm = LogNorm(levels[0], levels[-1]) if log else None
    look = {"levels": levels, "norm": norm, "cmap": MAP}
    filled = ax.contourf(surface.x, surface.y, values, **look)
    ax.contour(
        surface.x, surface.y, values, levels=levels, colors="white", linewidths=0.3, alpha=0.6
    )
    bar = ax.figure.colorbar(filled, ax=ax, label="training loss")
    if log:
        bar.set_ticks(_decades(levels), labels=[f"{v:g}" for v in _decades(levels)])
        bar.minorticks_off()
    bar.ax.tick_params(labelsize=6)
    way = surface.trajectory
    if way:
        ax.plot([m.x for m in way], [m.y for m in way], "-", color="white", linewidth=0.8)
        far = max(m.distance for m in way) or 1.0
        for mark in way:  # the further from the plane, the fainter
            near = 1 - 0.75 * mark.distance / far
            ax.plot(
                mark.x, mark.y, "o", color="white", markersize=3, alpha=near, mec="black", mew=0.4
            )
    for place, mark in enumerate(surface.marks, 1):
        box = {"boxstyle": "circle", "fc": "white", "ec": "black", "linewidth": 0.5}
        ax.annotate(str(place), (mark.x, mark.y), fontsize=6, ha="center", va="center", bbox=box)
    ax.plot(0, 0, "P", color="#d55e00", markersize=6, mec="white", mew=0.6)
    quadratic = surface.quadratic
    if quadratic is not None and quadratic.holds is not None:
        turn = np.linspace(0, 2 * np.pi, 200)
        r = quadratic.holds
        ax.plot(r * np.cos(turn), r * np.sin(turn), ":", color="white", linewidth=1)
    first, last, bottom, top = surface.spans
    ax.set(xlim=(first, last), ylim=(bottom, top))
    ax.set(xlabel=plain(surface.axes[0].label, 40), ylabel=plain(surface.axes[1].label, 40))


def draw_solid(surface: Any, ax: Any) -> None:
    """The surface in space, with the training at its own losses; axes of projection "3d"."""
    levels, log = _levels(surface.train)
    heights = np.log10(surface.train) if log else surface.train
    x, y = np.meshgrid(surface.x, surface.y)
    ax.plot_surface(x, y, heights, cmap=MAP, linewidth=0, rcount=80, ccount=80, antialiased=True)
    way = [mark for mark in surface.trajectory if math.isfinite(mark.train)]
    if way:
        own = np.array([mark.train for mark in way])
        own = np.clip(own, levels[0], levels[-1])
        own = np.log10(own) if log else own
        places = [m.x for m in way], [m.y for m in way]
        ax.plot(*places, own, "o-", color=SHARP, markersize=2.5, linewidth=1, zorder=10)
    if log:
        ticks = _decades(levels)
        ax.set_zticks(np.log10(ticks), [f"{v:g}" for v in ticks])
    ax.view_init(elev=32, azim=-50)
    ax.tick_params(labelsize=5, pad=-2)
    ax.set_xlabel("x", labelpad=-8)
    ax.set_ylabel("y", labelpad=-8)
    ax.set_zlabel("training loss", labelpad=-6, fontsize=6)


def draw_path(path: Any, ax: Any) -> None:
    """The training loss on every way between two models, and the test loss, dashed."""
    for name, route in path.routes.items():
        colour = ROUTES.get(name, MEAN)
        ax.plot(route.t, route.train, color=colour, label=f"{plain(name)} {route.barrier:.3g}")
        if route.test is not None:
            ax.plot(route.t, route.test, "--", color=colour, linewidth=0.8)
    ax.set(xlabel="from the first model (0) to the second (1)", ylabel="loss (dashed: test)")
    ax.legend(**ABOVE | {"ncols": 2}, title="barrier")


def _levels(values: np.ndarray) -> tuple[np.ndarray, bool]:
    """Contour levels, and whether they are logarithmic."""
    finite = values[np.isfinite(values)]
    if not finite.size:
        return np.array([0.0, 1.0]), False
    low, high = float(finite.min()), float(finite.max())
    if low > 0 and high / low > 10**DECADES:
        return np.geomspace(low, high, LEVELS), True
    return np.linspace(low, high if high > low else low + 1, LEVELS), False


def _decades(levels: np.ndarray) -> list[float]:
    """The powers of ten among the levels."""
    low, high = math.ceil(math.log10(levels[0])), math.floor(math.log10(levels[-1]))
    return [10.0**k for k in range(low, high + 1)]
