"""Ways between two models: straight, after alignment, with statistics put right, and around."""

import time
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path as File

import numpy as np
from torch import Tensor

from lowland.errors import InputError
from lowland.findings import Path, Route
from lowland.landscape.alignment import Aligned, align
from lowland.landscape.curve import barrier, bezier_coefficients, curve_frame, low_curve
from lowland.landscape.evaluation import own_values
from lowland.landscape.models import ModelLike, measured, names_of, state_of
from lowland.landscape.picture import Picture, Progress, silent
from lowland.landscape.points import Frame, Values, difference, norm
from lowland.landscape.renormalisation import renormalised
from lowland.landscape.span import checked
from lowland.problem import Problem, of_a_problem

State = Mapping[str, Tensor]


@of_a_problem
def path(
    problem: Problem,
    model_a: ModelLike,
    model_b: ModelLike,
    steps: int = 31,
    *,
    alignment: bool = False,
    renormalize: bool = False,
    curve: bool = True,
    iterations: int = 300,
    seed: int = 0,
    keep: str | File | None = None,
    progress: Progress = silent,
) -> Path:
    """Losses and errors along ways from one model to another, and the barrier of each.

    The barrier is the largest height of the training loss over the chord between its ends.

    Args:
        problem: gives loss and data; its own weights have no part in it.
        model_a, model_b: models, state dicts or checkpoints of the problem's architecture.
        steps: points along each way.
        alignment: permute the second model's hidden units to match the first's (weight matching,
            Ainsworth et al.) and draw the straight line to it as well; the curve then goes there,
            too. Refused in words where the permutations of an architecture cannot be verified.
        renormalize: draw the straight line with statistics of activities estimated again at each
            point: those of BatchNorm or, in models without, by REPAIR.
        curve: train a Bezier curve of low loss between the models (Garipov et al.).
        iterations: steps of that training, each of one batch.
        seed: of the order of alignment and of that training.
        keep: a directory for the points of the straight line that are done.
        progress: called with the name of each stage.
    """
    began = time.monotonic()
    checked(1.0, steps)
    a, b = state_of(problem, model_a), state_of(problem, model_b)
    if not norm(difference(measured(problem, b), measured(problem, a))) > 0:
        raise InputError("both models have the same weights, so that there is no way between them")
    names = names_of([model_a, model_b])
    t = np.linspace(0.0, 1.0, steps)
    routes: dict[str, Route] = {}
    refused: dict[str, str] = {}
    routes["straight"] = _straight(problem, a, b, t, "straight line", keep, progress)
    aligned: Aligned | None = None
    if alignment:
        progress("alignment")
        try:
            aligned = align(problem, a, b, seed)
        except InputError as error:
            refused["aligned"] = str(error)
    end: State = b
    if aligned is not None:
        end = aligned.state
        title = "straight line after alignment"
        routes["aligned"] = _straight(problem, a, end, t, title, None, progress)
    if renormalize:
        progress("statistics of activities")
        try:
            routes["renormalised"] = _renormalised(problem, a, end, t, aligned is not None)
        except InputError as error:
            refused["renormalised"] = str(error)
    if curve:
        progress("curve of low loss")
        middle = low_curve(problem, a, end, t, iterations=iterations, seed=seed, progress=progress)
        routes["curve"] = _curved(problem, a, middle, end, t, progress)
    return Path(
        names=(names[0], names[1]),
        routes=routes,
        distance=_distance(problem, a, b),
        aligned_distance=None if aligned is None else _distance(problem, a, end),
        permuted=() if aligned is None else aligned.words,
        refused=refused,
        samples=(problem.count(), problem.count("test") if problem.has_test else None),
        seconds=time.monotonic() - began,
    )


def _distance(problem: Problem, a: State, b: State) -> float:
    return norm(difference(measured(problem, b), measured(problem, a)))


def _straight(
    problem: Problem,
    a: State,
    b: State,
    t: np.ndarray,
    title: str,
    keep: str | File | None,
    progress: Progress,
) -> Route:
    frame = Frame(a, (difference(b, a),))
    values = Picture(problem, frame, title, keep=keep, progress=progress).values(t[:, None])
    return _route(title, t, values, _distance(problem, a, b))


def _curved(
    problem: Problem, a: State, middle: State, b: State, t: np.ndarray, progress: Progress
) -> Route:
    frame = curve_frame(a, middle, b)
    c = bezier_coefficients(t)
    values = Picture(problem, frame, "curve", progress=progress).values(c)
    fine = bezier_coefficients(np.linspace(0, 1, 51))
    points = [measured(problem, frame.point(row)) for row in fine]
    length = sum(norm(difference(q, p)) for p, q in pairwise(points))
    return _route("Bezier curve", t, values, length)


def _renormalised(problem: Problem, a: State, b: State, t: np.ndarray, aligned: bool) -> Route:
    frame = Frame(a, (difference(b, a),))
    make: Callable = renormalised(problem, a, b)
    rows = []
    for s in t.tolist():
        other = problem.of(make(s, frame.point([s])))
        rows.append(own_values(other, state_of(other)))
    values = Values.joined(rows)
    title = "aligned and renormalised" if aligned else "renormalised straight line"
    return _route(title, t, values, _distance(problem, a, b))


def _route(title: str, t: np.ndarray, values: Values, length: float) -> Route:
    test = None if values.test is None else barrier(t, values.test)
    return Route(
        title=title,
        t=t,
        train=values.train,
        test=values.test,
        train_error=values.train_error,
        test_error=values.test_error,
        barrier=barrier(t, values.train),
        test_barrier=test,
        length=length,
    )
