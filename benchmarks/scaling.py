"""How cost grows: the top 10 eigenpairs of one layer's block, against its width and samples."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import peers
from contest import OURS
from matplotlib.figure import Figure
from measure import Timing, interleaved, once
from rows import eigenpairs_error, our_eigenpairs
from workloads import layer_of_width

import lowland as ll

K, TOLERANCE = 10, 1e-3
WIDTHS, AT_WIDTH = (32, 64, 128, 256, 512, 1024, 2048), 128
SAMPLES, AT_SAMPLES = (1000, 2000, 4000, 8000, 16000, 32000, 60000), 1000
CONTESTANTS = {
    OURS: our_eigenpairs(K, TOLERANCE),
    "curvlinops + SciPy eigsh": peers.curvlinops_eigsh(K, TOLERANCE),
    "hessian-eigenthings Lanczos": peers.eigenthings_eigenpairs(K, TOLERANCE),
}
# A contestant that took longer is not run on anything larger: its curve ends there.
PATIENCE_SECONDS = 40
REPEATS = 3


@dataclass(frozen=True)
class Point:
    contestant: str
    axis: str
    at: int
    seconds: float


def measure(say: Callable[[str], None]) -> list[Point]:
    """Medians of three runs in turn, or one run where that took over a second."""
    sizes = [("width", (width, AT_SAMPLES)) for width in WIDTHS]
    sizes += [("samples", (AT_WIDTH, count)) for count in SAMPLES]
    points: list[Point] = []
    for axis, (width, count) in sizes:
        try:
            w = layer_of_width(width, count)
        except ll.InputError as missing:  # more than 4,000 images need LOWLAND_DATA
            say(f"  {count:,} samples: {missing}")
            continue
        at = width if axis == "width" else count
        tired = {p.contestant for p in points if p.axis == axis and p.seconds > PATIENCE_SECONDS}
        works = {name: make(w) for name, make in CONTESTANTS.items() if name not in tired}
        results = {name: once(work) for name, work in works.items()}
        warm = {name: seconds for name, (_, seconds) in results.items()}
        fast = {name: works[name] for name, seconds in warm.items() if seconds < 1}
        timings = {name: Timing((seconds,)) for name, seconds in warm.items()}
        timings |= interleaved(fast, warm, REPEATS)
        for name, (pairs, _) in results.items():
            error = eigenpairs_error(w, pairs, results[OURS][0])
            if error > TOLERANCE:
                say(f"  {axis} {at}: {name} left out, its error is {error:.1e}")
                continue
            points.append(Point(name, axis, at, timings[name].median))
            say(f"  {axis} {at}: {name} {timings[name]}")
    return points


def draw(points: list[Point], path: Path) -> None:
    """Both curves, log-log."""
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    axes = figure.subplots(1, 2, sharey=True)
    titles = {
        "width": f"width of the layer ({AT_SAMPLES:,} samples)",
        "samples": f"samples (layer of {AT_WIDTH} x {AT_WIDTH})",
    }
    for ax, (axis, title) in zip(axes, titles.items(), strict=True):
        for name, marker in zip(CONTESTANTS, "osD", strict=True):
            chosen = [p for p in points if p.axis == axis and p.contestant == name]
            ax.loglog(
                [p.at for p in chosen], [p.seconds for p in chosen], marker=marker, label=name
            )
        sizes = sorted({p.at for p in points if p.axis == axis})
        ax.set_xticks(sizes, [f"{size:,}" for size in sizes])
        ax.minorticks_off()
        ax.set_xlabel(title)
        ax.grid(alpha=0.3)
    axes[0].set_ylabel("seconds")
    axes[0].legend(frameon=False)
    figure.suptitle(f"Top {K} eigenpairs of one layer to residual {TOLERANCE:g}")
    figure.savefig(path)
