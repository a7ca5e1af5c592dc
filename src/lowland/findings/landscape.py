"""The loss around and between points of weight space: lines, surfaces and paths.

Every array of losses or errors is a mean over the samples of a split. A point at which the loss
overflows is NaN: a hole, never an invented value. The errors are None where the loss knows no wrong
predictions, and everything of the test data where there is none.
"""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from lowland.errors import InputError
from lowland.figures import draw_line, draw_path, draw_solid, draw_surface, drawn_on, picture

AxisKind = Literal[
    "random",  # drawn from a Gaussian
    "hessian",  # an eigenvector of the training loss's Hessian
    "trajectory",  # a principal component of a training's weights
    "difference",  # from one model to another
    "sam",  # the gradient: the worst case of the linearised loss
    "dual",  # the mean shift of a layer's weights that stands for test data (Feng & Tu)
    "given",  # by the caller
]
Normalisation = Literal["filter", "layer", "none"]

# Shares of its own change by which the quadratic may miss the curve and still counts as right.
HOLDS = 0.1


@dataclass(frozen=True)
class Axis:
    """A direction of weight space: one unit along it adds ``norm`` to the distance travelled."""

    label: str  # for an axis title, such as "random direction, filter-wise"
    kind: AxisKind
    normalisation: Normalisation
    norm: float  # Euclidean length of one unit, over all measured weights
    weight_norm: float  # that of the weights at the centre, to compare it with
    vectors: str  # what is done with biases, norm parameters and single numbers, in words
    eigenvalue: float | None = None  # of the Hessian, where the direction is an eigenvector
    explained: float | None = None  # share of the trajectory's variance along the component


@dataclass(frozen=True)
class Quadratic:
    """The training loss to second order at the centre, and how far it holds.

    Along a line ``slope`` is (d^T g,) and ``curvature`` (d^T H d,). On a surface they are
    (x, y) and (xx, xy, yy).
    """

    value: float  # the training loss at the centre
    slope: tuple[float, ...]
    curvature: tuple[float, ...]  # from products with the Hessian
    measured: tuple[float, ...]  # the same from second differences of the losses; NaN at a hole
    holds: float | None  # distance from the centre, in units of the axes, up to which it is right
    #   to 10 % of its own change; None where not even the nearest points are

    @np.errstate(invalid="ignore", over="ignore")  # of a saved result anything may be infinite
    def along(self, x: np.ndarray) -> np.ndarray:
        """Return its values on a line."""
        return self.value + self.slope[0] * x + self.curvature[0] / 2 * x**2

    @np.errstate(invalid="ignore", over="ignore")
    def over(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Return its values on a grid, indexed [y, x]."""
        xx, xy, yy = self.curvature
        x, y = x[None, :], y[:, None]
        linear = self.slope[0] * x + self.slope[1] * y
        return self.value + linear + (xx * x**2 + 2 * xy * x * y + yy * y**2) / 2


@dataclass(frozen=True)
class Mark:
    """A named point of weight space, such as a checkpoint: where it lies, and its OWN loss.

    ``x`` and ``y`` are those of the nearest point of the line or plane, which is ``distance`` away
    in weight space. Only at distance 0 is the loss there that of the model itself.
    """

    name: str
    x: float
    y: float  # 0 on a line
    distance: float  # Euclidean, in weight space, not in units of an axis
    train: float
    test: float | None
    train_error: float | None
    test_error: float | None
    step: int | None = None  # of the training, for a point of a trajectory


@dataclass(frozen=True)
class Line:
    """Losses along a direction; the weights are ``w + x d``."""

    x: np.ndarray  # (n,), increasing; not always evenly spaced
    train: np.ndarray  # (n,)
    test: np.ndarray | None
    train_error: np.ndarray | None
    test_error: np.ndarray | None
    axis: Axis
    span: float  # x runs from -span to span
    quadratic: Quadratic | None
    marks: tuple[Mark, ...]  # the centre is not among them
    samples: tuple[int, int | None]  # training and test samples of which the losses are means
    route: str  # how the points were evaluated, in words
    seconds: float
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _check_shapes(self, (len(self.x),))
        _check_order(self.quadratic, 1, 1)

    @property
    def holes(self) -> int:
        """How many points have no finite loss."""
        return int(np.isnan(self.train).sum())

    def __repr__(self) -> str:
        return (
            f"Line({self.axis.label!r}, {len(self.x)} points from {self.x[0]:.3g} to "
            f"{self.x[-1]:.3g}, training loss {np.nanmin(self.train):.4g} to "
            f"{np.nanmax(self.train):.4g})"
        )

    def plot(self, ax: Any = None) -> Any:
        """Draw the losses and the quadratic on matplotlib axes."""
        return drawn_on(draw_line, self, ax)

    def _repr_html_(self) -> str:
        return picture(draw_line, self)


@dataclass(frozen=True)
class Surface:
    """Losses on a plane; the weights are ``w + x d1 + y d2``, and arrays are indexed [y, x]."""

    x: np.ndarray  # (n,), increasing; not always evenly spaced
    y: np.ndarray  # (m,)
    train: np.ndarray  # (m, n)
    test: np.ndarray | None
    train_error: np.ndarray | None
    test_error: np.ndarray | None
    axes: tuple[Axis, Axis]
    cosine: float  # of the angle between the two directions
    spans: tuple[float, float, float, float]  # first and last x, first and last y
    quadratic: Quadratic | None
    marks: tuple[Mark, ...]  # checkpoints; the centre is not among them
    trajectory: tuple[Mark, ...]  # points of a training, in its order
    samples: tuple[int, int | None]
    route: str
    seconds: float
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _check_shapes(self, (len(self.y), len(self.x)))
        _check_order(self.quadratic, 2, 3)

    @property
    def holes(self) -> int:
        """How many points have no finite loss."""
        return int(np.isnan(self.train).sum())

    def __repr__(self) -> str:
        return (
            f"Surface({len(self.x)} x {len(self.y)} points over {self.axes[0].label!r} and "
            f"{self.axes[1].label!r}, training loss {np.nanmin(self.train):.4g} to "
            f"{np.nanmax(self.train):.4g})"
        )

    def plot(self, ax: Any = None) -> Any:
        """Draw contours on matplotlib axes, or the surface itself on axes of projection "3d"."""
        solid = getattr(ax, "name", "") == "3d"
        return drawn_on(draw_solid if solid else draw_surface, self, ax)

    def _repr_html_(self) -> str:
        return picture(draw_surface, self)


@dataclass(frozen=True)
class Route:
    """Losses along one way from a first model (t = 0) to a second (t = 1)."""

    title: str  # such as "straight line" or "straight line after alignment"
    t: np.ndarray  # (n,)
    train: np.ndarray  # (n,)
    test: np.ndarray | None
    train_error: np.ndarray | None
    test_error: np.ndarray | None
    barrier: float  # largest height of the training loss over the chord between its ends
    test_barrier: float | None
    length: float  # Euclidean, of the way in weight space

    def __post_init__(self) -> None:
        _check_shapes(self, (len(self.t),))


@dataclass(frozen=True)
class Path:
    """Ways between two models.

    ``routes`` has the straight line under ``"straight"`` and, if asked for, ``"aligned"`` (after
    the second model's units were permuted to match the first's), ``"renormalised"`` (aligned or
    straight, with the statistics of normalisations estimated again at each point) and ``"curve"``
    (a Bezier curve trained to low loss).
    """

    names: tuple[str, str]  # of the models
    routes: dict[str, Route]
    distance: float  # between the models in weight space
    aligned_distance: float | None  # after alignment
    permuted: tuple[str, ...]  # groups of units that alignment permuted, in words
    refused: dict[str, str]  # routes that were asked for and are not there, and why
    samples: tuple[int, int | None]
    seconds: float

    @property
    def barrier(self) -> float:
        """The straight line's."""
        return self.routes["straight"].barrier

    def __repr__(self) -> str:
        ways = ", ".join(f"{name} {its.barrier:.4g}" for name, its in self.routes.items())
        return f"Path({self.names[0]!r} to {self.names[1]!r}, barriers: {ways})"

    def plot(self, ax: Any = None) -> Any:
        """Draw the losses on every way on matplotlib axes."""
        return drawn_on(draw_path, self, ax)

    def _repr_html_(self) -> str:
        return picture(draw_path, self)


@dataclass(frozen=True)
class Landscape:
    """Pictures of the loss around one problem's weights; each part may be absent."""

    lines: tuple[Line, ...] = ()
    surface: Surface | None = None
    path: Path | None = None
    notes: tuple[str, ...] = ()


def _check_order(quadratic: Quadratic | None, slopes: int, curvatures: int) -> None:
    if quadratic is None:
        return
    came = len(quadratic.slope), len(quadratic.curvature), len(quadratic.measured)
    if came != (slopes, curvatures, curvatures):
        raise InputError(
            f"a quadratic here has {slopes} numbers in its slope and {curvatures} in its "
            f"curvature, computed and measured; got {came}"
        )


def _check_shapes(part: Line | Surface | Route, shape: tuple[int, ...]) -> None:
    for name in ("train", "test", "train_error", "test_error"):
        values = getattr(part, name)
        if values is not None and values.shape != shape:
            raise InputError(f"{name} should have the shape {shape}; it has {values.shape}")
