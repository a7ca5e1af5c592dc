"""A landscape as a small network might have it, made up without torch."""

import numpy as np

from lowland.findings import (
    Axis,
    Landscape,
    Line,
    Mark,
    Path,
    Quadratic,
    Route,
    Surface,
)

SAMPLES = (4000, 1000)
VECTORS = "biases and norm parameters stay where they are"


def make_axis(label: str, **more) -> Axis:
    """An axis of a random direction, unless told otherwise."""
    kind, normalisation = more.pop("kind", "random"), more.pop("normalisation", "filter")
    return Axis(label, kind, normalisation, 7.1, 7.1, VECTORS, **more)


def make_line(label: str = "random direction, filter-wise", steep: float = 2.0, **more) -> Line:
    """A bowl that bends away from its quadratic, and overflows at one end."""
    x = np.linspace(-1, 1, 41)
    train = 0.01 + steep * x**2 / (1 + x**2)
    train[-1] = np.nan
    return Line(
        x=x,
        train=train,
        test=train + 0.1,
        train_error=np.minimum(0.9, x**2),
        test_error=np.minimum(0.9, 0.05 + x**2),
        axis=make_axis(label, **more),
        span=1.0,
        quadratic=Quadratic(0.01, (0.001,), (2 * steep,), (2 * steep * 0.997,), 0.3),
        marks=(),
        samples=SAMPLES,
        route="41 points, 41 at a time",
        seconds=0.4,
    )


def make_surface() -> Surface:
    """A valley with a trajectory into it, two checkpoints and a hole."""
    x, y = np.linspace(-1, 1, 25), np.linspace(-0.8, 0.8, 21)
    train = 0.01 + x[None, :] ** 2 + 4 * y[:, None] ** 2 + 0.5 * x[None, :] * y[:, None]
    train[0, 0] = np.nan
    steps = range(0, 1000, 100)
    way = [(0.9 * 0.7**k, 0.6 * 0.5**k) for k in range(len(steps))]
    return Surface(
        x=x,
        y=y,
        train=train,
        test=train + 0.1,
        train_error=np.minimum(0.9, train / 4),
        test_error=np.minimum(0.9, 0.05 + train / 4),
        axes=(
            make_axis("component 1 of the training", kind="trajectory", explained=0.81),
            make_axis("component 2 of the training", kind="trajectory", explained=0.12),
        ),
        cosine=0.0,
        spans=(-1.0, 1.0, -0.8, 0.8),
        quadratic=Quadratic(0.01, (0.0, 0.0), (2.0, 0.5, 8.0), (2.0, 0.5, 8.0), 0.7),
        marks=(
            Mark("epoch-10.pt", 0.5, -0.2, 1.3, 0.4, 0.6, 0.05, 0.1),
            Mark("swa.pt", -0.3, 0.1, 0.0, 0.02, 0.12, 0.0, 0.04),
        ),
        trajectory=tuple(
            Mark(f"step {step}", a, b, 2.0 * 0.8**k, 2.3 * 0.5**k, 2.3, 0.5, 0.5, step)
            for k, (step, (a, b)) in enumerate(zip(steps, way, strict=True))
        ),
        samples=SAMPLES,
        route="525 points, 64 at a time",
        seconds=1.9,
    )


def make_path() -> Path:
    """Two minima with a barrier that alignment lowers and a curve goes around."""
    t = np.linspace(0, 1, 31)
    bump = 4 * t * (1 - t)

    def route(title: str, height: float) -> Route:
        train = 0.01 + height * bump
        return Route(title, t, train, train + 0.1, bump / 3, bump / 2, height, height, 12.0)

    return Path(
        names=("a.pt", "b.pt"),
        routes={
            "straight": route("straight line", 1.8),
            "aligned": route("straight line after alignment", 0.4),
            "curve": route("Bezier curve", 0.02),
        },
        distance=11.0,
        aligned_distance=7.0,
        permuted=("30 outputs of '0.weight'", "30 outputs of '2.weight'"),
        refused={},
        samples=SAMPLES,
        seconds=6.2,
    )


def make_landscape() -> Landscape:
    """Two cuts, a surface and a path."""
    lines = (
        make_line(),
        make_line("eigenvector 1 of the Hessian", 9.0, kind="hessian", eigenvalue=18.0),
    )
    return Landscape(lines, make_surface(), make_path(), ("25 x 21 points of 1,000 samples.",))
