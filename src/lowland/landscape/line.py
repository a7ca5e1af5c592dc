"""Losses along one direction."""

import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
from torch import Tensor, nn

from lowland.findings import Line, Mark, Normalisation
from lowland.landscape.directions import directions
from lowland.landscape.marks import marks_of
from lowland.landscape.models import ModelLike, differing, state_of
from lowland.landscape.normalisation import Vectors
from lowland.landscape.picture import Picture, Progress, silent
from lowland.landscape.points import Frame
from lowland.landscape.quadratics import quadratic
from lowland.landscape.span import basin, checked, grid, midpoints
from lowland.landscape.trajectory import Trajectory
from lowland.problem import Problem, of_a_problem


@of_a_problem
def line(
    problem: Problem,
    direction: str | nn.Module | Mapping[str, Tensor] | Trajectory = "random",
    span: float | Literal["auto"] = 1.0,
    steps: int = 51,
    *,
    normalize: Normalisation | None = None,
    vectors: Vectors = "left",
    seed: int = 0,
    refine: int = 0,
    marks: Mapping[str, ModelLike] | None = None,
    keep: str | Path | None = None,
    progress: Progress = silent,
) -> Line:
    """Training and test loss and error along a direction through the model's weights.

    Args:
        problem: the model and data; the centre is the model as it is.
        direction: ``"random"``, ``"hessian"`` (the leading eigenvector), ``"sam"`` (the gradient),
            ``"dual"`` or ``"dual:LAYER"`` (the mean dual shift of a layer), another model of the
            same architecture, a mapping from names of parameters to tensors, or a
            :class:`lowland.Trajectory` (its first component).
        span: the line goes from -span to span in units of the direction; ``"auto"`` chooses it so
            that the basin fills the picture.
        steps: points along it.
        normalize: ``"filter"``, ``"layer"`` or ``"none"``; by default filter-wise for random
            directions and not at all for others.
        vectors: ``"left"`` keeps biases, norm parameters and other vectors where they are when a
            direction is normalised, ``"scaled"`` scales them to their own length.
        seed: of random directions.
        refine: up to so many more points where the curve bends.
        marks: other models by name, to be marked.
        keep: a directory for the points that are done; after an interrupt the same call goes on.
        progress: called with the name of each stage.

    >>> import torch
    >>> model = nn.Linear(2, 1, bias=False)
    >>> X = torch.eye(2)
    >>> y = (X @ model.weight.T).detach()  # a minimum: the loss is the mean of squares of d
    >>> p = Problem(model, loss="mse", train=(X, y))
    >>> found = line(p, {"weight": torch.tensor([[1.0, 1.0]])}, steps=5)
    >>> found.train.round(3).tolist(), round(found.quadratic.curvature[0], 3)
    ([1.0, 0.25, 0.0, 0.25, 1.0], 2.0)
    """
    began = time.monotonic()
    checked(span, steps, refine)
    (chosen,) = directions(problem, direction, 1, normalize=normalize, vectors=vectors, seed=seed)
    frame = Frame(state_of(problem), (chosen.vector,))
    picture = Picture(problem, frame, f"line, {chosen.axis.label}", keep=keep, progress=progress)
    near = Picture(problem, frame, "around the centre", test=False)
    losses = partial(_losses, near)
    if span == "auto":  # of a trajectory, its own size
        reach = 1.0 if isinstance(direction, Trajectory) else basin(problem, losses, 1, 0)
    else:
        reach = float(span)
    x = grid(-reach, reach, steps)
    found = picture.values(x[:, None])
    left = refine
    while left > 0 and len(more := midpoints(x, found.train, min(left, 8))):
        left -= len(more)
        x = np.sort(np.concatenate([x, more]))
        found = picture.values(x[:, None], told=False)
    second, note = None, None
    if differing(problem, frame.centre, {**frame.centre, **_moved(chosen.vector, frame)}):
        note = "No quadratic: the statistics of normalisations move with the weights."
    else:
        second, note = quadratic(problem, [chosen.vector], reach, losses)
    return Line(
        x=x,
        **found.shaped(len(x)),  # type: ignore[arg-type]
        axis=chosen.axis,
        span=reach,
        quadratic=second,
        marks=_marks(problem, frame, marks or {}),
        samples=(problem.count(), problem.count("test") if problem.has_test else None),
        route=picture.route,
        seconds=time.monotonic() - began,
        notes=() if note is None else (note,),
    )


def _losses(picture: Picture, points: np.ndarray) -> np.ndarray:
    return picture.values(points, told=False).train


def _moved(direction: Mapping[str, Tensor], frame: Frame) -> dict[str, Tensor]:
    return {name: frame.centre[name] + d for name, d in direction.items()}


def _marks(problem: Problem, frame: Frame, models: Mapping[str, ModelLike]) -> tuple[Mark, ...]:
    states = ((name, None, state_of(problem, model)) for name, model in models.items())
    return marks_of(problem, frame, states)
