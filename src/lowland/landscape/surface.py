"""Losses on a plane of weight space: around one model, or through three."""

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from lowland.errors import InputError
from lowland.findings import Axis, Normalisation, Quadratic, Surface
from lowland.landscape.directions import Direction
from lowland.landscape.directions import directions as directions_of
from lowland.landscape.marks import coordinates, marks_of
from lowland.landscape.models import ModelLike, differing, measured, names_of, state_of
from lowland.landscape.normalisation import WORDS, Vectors
from lowland.landscape.picture import Picture, Progress, silent
from lowland.landscape.points import Frame, Values, Weights, difference, dot, norm
from lowland.landscape.quadratics import quadratic
from lowland.landscape.span import basin, checked, grid, midpoints
from lowland.landscape.trajectory import Trajectory
from lowland.problem import Problem, of_a_problem

_MARGIN = 0.25  # of the models' extent, around them on a plane
_REACH = 0.9  # of a span: where the farthest point of a trajectory lies
_COLLINEAR = 1e-6  # of the distance: below it the third model lies on the line of the others


@of_a_problem
def surface(
    problem: Problem,
    directions: Any = ("random", "random"),
    span: float | Literal["auto"] = 1.0,
    steps: int = 51,
    seed: int = 0,
    *,
    normalize: Normalisation | None = None,
    vectors: Vectors = "left",
    refine: int = 0,
    marks: Mapping[str, ModelLike] | None = None,
    trajectory: Trajectory | None = None,
    second_order: bool = True,
    keep: str | Path | None = None,
    progress: Progress = silent,
) -> Surface:
    """Training and test loss and error on the plane of two directions through the model's weights.

    Args:
        problem: the model and data; the centre is the model as it is.
        directions: two of those that :func:`lowland.line` takes, or a
            :class:`lowland.Trajectory`, whose first two components they are then.
        span: both axes go from -span to span, in units of their directions; ``"auto"`` chooses it
            for each so that the basin fills the picture, and a trajectory lies within it.
        steps: points along each axis.
        seed: of random directions.
        normalize: as in :func:`lowland.line`. Directions are normalised and never made orthogonal
            afterwards, which would undo it; ``cosine`` of the result says how far from it they are.
        vectors: as in :func:`lowland.line`.
        refine: up to so many more columns, and rows, where the surface bends.
        marks: other models by name, to be marked.
        trajectory: a training to draw; by default the one that the directions are of.
        second_order: whether to compute the quadratic, which takes a few Hessian products.
        keep: a directory for the points that are done; after an interrupt the same call goes on.
        progress: called with the name of each stage.
    """
    began = time.monotonic()
    checked(span, steps, refine)
    if isinstance(directions, Trajectory) and trajectory is None:
        trajectory = directions
    first, second = _chosen(problem, directions, normalize, vectors, seed)
    frame = Frame(state_of(problem), (first.vector, second.vector))
    near = Picture(problem, frame, "around the centre", test=False)

    def losses(points: np.ndarray) -> np.ndarray:
        return near.values(points, told=False).train

    if span == "auto":
        spans = _chosen_spans(problem, frame, losses, directions, trajectory)
    else:
        spans = [float(span)] * 2
    picture = Picture(problem, frame, "surface", keep=keep, progress=progress)
    x, y = (grid(-s, s, steps) for s in spans)
    x, y, found = _evaluated(picture, x, y, refine)
    bend, notes = _quadratic(problem, frame, max(spans), losses, second_order)
    states = ((n, None, state_of(problem, m)) for n, m in (marks or {}).items())
    return Surface(
        x=x,
        y=y,
        **found.shaped(len(y), len(x)),  # type: ignore[arg-type]
        axes=(first.axis, second.axis),
        cosine=_cosine(problem, frame),
        spans=(float(x[0]), float(x[-1]), float(y[0]), float(y[-1])),
        quadratic=bend,
        marks=marks_of(problem, frame, states),
        trajectory=_drawn(problem, frame, trajectory),
        samples=(problem.count(), problem.count("test") if problem.has_test else None),
        route=picture.route,
        seconds=time.monotonic() - began,
        notes=notes,
    )


@of_a_problem
def plane(
    problem: Problem,
    model_a: ModelLike,
    model_b: ModelLike,
    model_c: ModelLike,
    steps: int = 51,
    *,
    refine: int = 0,
    marks: Mapping[str, ModelLike] | None = None,
    trajectory: Trajectory | None = None,
    keep: str | Path | None = None,
    progress: Progress = silent,
) -> Surface:
    """Losses on the plane through three models, all of them marked.

    The first model lies at (0, 0) and the second at (1, 0). The second axis is at a right angle to
    the first, and the third model lies at y = 1. The columns and rows of all three are among the
    points, so that the surface has their own losses there. Buffers, such as the statistics of
    normalisations, move with the weights; where a variance would be negative there is a hole.

    Args:
        problem: gives loss and data; its own weights have no part in it.
        model_a, model_b, model_c: models, state dicts or checkpoints of the problem's architecture.
        steps: points along each axis, beside those of the models.
        refine, marks, trajectory, keep, progress: as in :func:`lowland.surface`.
    """
    began = time.monotonic()
    checked(1.0, steps, refine)
    given = (model_a, model_b, model_c)
    a, b, c = (state_of(problem, model) for model in given)
    names = names_of(given)
    d1, across, s = _right_angled(problem, a, b, c)
    frame = Frame(a, (d1, across))
    xs, ys = np.array([0.0, 1.0, s]), np.array([0.0, 1.0])
    x, y = (np.union1d(_extent(each, steps), each) for each in (xs, ys))
    picture = Picture(problem, frame, "plane", keep=keep, progress=progress)
    x, y, found = _evaluated(picture, x, y, refine)
    own = marks_of(problem, frame, zip(names, [None] * 3, (a, b, c), strict=True))
    places = ((0.0, 0.0), (1.0, 0.0), (s, 1.0))  # by definition; the coordinates above are rounded
    own = tuple(replace(m, x=u, y=v) for m, (u, v) in zip(own, places, strict=True))
    others = ((n, None, state_of(problem, m)) for n, m in (marks or {}).items())
    return Surface(
        x=x,
        y=y,
        **found.shaped(len(y), len(x)),  # type: ignore[arg-type]
        axes=(
            _plane_axis(problem, d1, a, f"from {names[0]} to {names[1]}"),
            _plane_axis(problem, across, a, f"towards {names[2]}, at a right angle"),
        ),
        cosine=_cosine(problem, frame),
        spans=(float(x[0]), float(x[-1]), float(y[0]), float(y[-1])),
        quadratic=None,
        marks=own + marks_of(problem, frame, others),
        trajectory=_drawn(problem, frame, trajectory),
        samples=(problem.count(), problem.count("test") if problem.has_test else None),
        route=picture.route,
        seconds=time.monotonic() - began,
    )


def _chosen(
    problem: Problem, wanted: Any, how: Normalisation | None, vectors: Vectors, seed: int
) -> list[Direction]:
    return directions_of(problem, wanted, 2, normalize=how, vectors=vectors, seed=seed)


def _chosen_spans(
    problem: Problem,
    frame: Frame,
    losses: Any,
    wanted: Any,
    trajectory: Trajectory | None,
) -> list[float]:
    """For each axis: the basin, or farther if a trajectory does; its own plane is its size."""
    if isinstance(wanted, Trajectory):
        return [1.0, 1.0]
    spans = [basin(problem, losses, 2, i) for i in (0, 1)]
    for _, state in () if trajectory is None else trajectory.states():
        place, _ = coordinates(problem, frame, {**frame.centre, **state})
        spans = [max(s, abs(float(x)) / _REACH) for s, x in zip(spans, place, strict=True)]
    return spans


def _evaluated(
    picture: Picture, x: np.ndarray, y: np.ndarray, refine: int
) -> tuple[np.ndarray, np.ndarray, Values]:
    """The values on the grid, with more columns and rows where they bend."""
    found = picture.values(_points(x, y))
    left = refine
    while left > 0:
        train = found.train.reshape(len(y), len(x))
        columns = midpoints(x, train, min(left, 4))
        rows = midpoints(y, train.T, min(left, 4))
        if not len(columns) and not len(rows):
            break
        left -= max(len(columns), len(rows))
        found_at = _by_point(x, y, found)
        x, y = np.union1d(x, columns), np.union1d(y, rows)
        found = _completed(picture, _points(x, y), found_at)
    return x, y, found


def _points(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """All points of a grid, row by row, (len(y) * len(x), 2)."""
    return np.stack([np.tile(x, len(y)), np.repeat(y, len(x))], 1)


def _by_point(x: np.ndarray, y: np.ndarray, values: Values) -> dict[tuple[float, float], list]:
    rows = zip(*(_column(values, n, len(x) * len(y)) for n in Values.FIELDS), strict=True)
    return {tuple(p): list(row) for p, row in zip(_points(x, y).tolist(), rows, strict=True)}


def _column(values: Values, name: str, count: int) -> list:
    array = getattr(values, name)
    return [None] * count if array is None else array.tolist()


def _completed(
    picture: Picture, points: np.ndarray, done: dict[tuple[float, float], list]
) -> Values:
    """Values at points of which some are done."""
    keys = [tuple(p) for p in points.tolist()]
    missing = np.array([k not in done for k in keys])
    new = picture.values(points[missing], told=False)
    columns = [_column(new, name, int(missing.sum())) for name in Values.FIELDS]
    rows = zip((k for k, m in zip(keys, missing, strict=True) if m), *columns, strict=True)
    done |= {key: list(row) for key, *row in rows}
    arrays = zip(*(done[k] for k in keys), strict=True)
    return Values(*(_array(column) for column in arrays))  # type: ignore[arg-type]


def _array(column: tuple) -> np.ndarray | None:
    return None if column[0] is None else np.array(column)


def _quadratic(
    problem: Problem, frame: Frame, span: float, losses: Any, wanted: bool
) -> tuple[Quadratic | None, tuple[str, ...]]:
    if not wanted:
        return None, ()
    moved = {n: frame.centre[n] + d[n] for d in frame.directions for n in d}
    if differing(problem, frame.centre, {**frame.centre, **moved}):
        return None, ("No quadratic: the statistics of normalisations move with the weights.",)
    found, note = quadratic(problem, frame.directions, span, losses)
    return found, () if note is None else (note,)


def _cosine(problem: Problem, frame: Frame) -> float:
    a, b = (measured(problem, d) for d in frame.directions)
    lengths = norm(a) * norm(b)
    return dot(a, b) / lengths if lengths > 0 else 0.0


def _drawn(problem: Problem, frame: Frame, trajectory: Trajectory | None) -> tuple:
    if trajectory is None:
        return ()
    states = ((f"step {step}", step, state) for step, state in trajectory.states())
    return marks_of(problem, frame, states)


def _right_angled(problem: Problem, a: Weights, b: Weights, c: Weights) -> tuple[dict, dict, float]:
    """From a to b; the rest of the way to c at a right angle to it; and how far along c lies."""
    d1, d2 = difference(b, a), difference(c, a)
    first, second = measured(problem, d1), measured(problem, d2)
    if not norm(first) > 0 or not norm(second) > 0:
        raise InputError("the models have the same weights; a plane needs three that differ")
    s = dot(first, second) / dot(first, first)
    across = {name: d2[name] - s * d1[name] for name in d2}
    if norm(measured(problem, across)) <= _COLLINEAR * norm(second):
        raise InputError(
            "the third model lies on the line of the first two, so that they span no plane; take "
            "another, or draw lowland.path"
        )
    return d1, across, s


def _extent(places: np.ndarray, steps: int) -> np.ndarray:
    margin = _MARGIN * np.ptp(places)
    return grid(places.min() - margin, places.max() + margin, steps)


def _plane_axis(problem: Problem, direction: Weights, centre: Weights, label: str) -> Axis:
    return Axis(
        label=label,
        kind="difference",
        normalisation="none",
        norm=norm(measured(problem, direction)),
        weight_norm=norm(measured(problem, centre)),
        vectors=WORDS["as they are"],
    )
