"""Models as points of a picture: where they lie, how far from it, and what their own loss is."""

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from lowland.findings import Mark
from lowland.landscape.evaluation import own_values
from lowland.landscape.models import measured
from lowland.landscape.points import Frame, Weights, difference, dot, norm
from lowland.problem import Problem

_DIGITS = 32  # a distance of so many roundings, over that from the centre, is none


def coordinates(problem: Problem, frame: Frame, state: Weights) -> tuple[np.ndarray, float]:
    """The coefficients of the nearest point of the frame, and the distance from it."""
    axes = [measured(problem, d) for d in frame.directions]
    offset = difference(measured(problem, state), measured(problem, frame.centre))
    gram = np.array([[dot(a, b) for b in axes] for a in axes])
    far = norm(offset)
    c = np.linalg.lstsq(gram, np.array([dot(a, offset) for a in axes]), rcond=None)[0]
    for x, axis in zip(c, axes, strict=True):
        offset = {n: t - float(x) * axis[n].to(t) if n in axis else t for n, t in offset.items()}
    left = norm(offset)
    return c, left if left > _DIGITS * torch.finfo(problem.dtype).eps * far else 0.0


def marks_of(
    problem: Problem, frame: Frame, states: Iterable[tuple[str, int | None, dict[str, Tensor]]]
) -> tuple[Mark, ...]:
    """Marks of models by name, step and state; the loss is each model's own."""
    marks = []
    for name, step, state in states:
        state = {**frame.centre, **{n: t.to(frame.centre[n]) for n, t in state.items()
                                    if n in frame.centre}}  # fmt: skip
        c, distance = coordinates(problem, frame, state)
        values = own_values(problem, state)
        own = {n: None if (a := getattr(values, n)) is None else float(a[0]) for n in values.FIELDS}
        x, y = float(c[0]), float(c[1]) if len(c) > 1 else 0.0
        marks.append(Mark(name, x, y, distance, **own, step=step))  # type: ignore[arg-type]
    return tuple(marks)
