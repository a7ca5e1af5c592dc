"""Directions of weight space: where each comes from, how long it is, and what it is called."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lowland.curvature import eigsh
from lowland.dual import mean_shift
from lowland.errors import InputError
from lowland.findings import Axis, Normalisation
from lowland.landscape.models import measured, state_of
from lowland.landscape.normalisation import WORDS, Vectors, normalised
from lowland.landscape.points import Weights, difference, norm
from lowland.landscape.trajectory import Components, Trajectory
from lowland.measures.shared.spectrum import whole_hessian
from lowland.problem import Problem

NAMES = ("random", "hessian", "sam", "dual")


@dataclass(frozen=True)
class Direction:
    """A direction, and what it is."""

    vector: dict[str, Tensor]
    axis: Axis


def directions(
    problem: Problem,
    wanted: Any,
    count: int,
    *,
    normalize: Normalisation | None = None,
    vectors: Vectors = "left",
    seed: int = 0,
) -> list[Direction]:
    """``count`` directions: of names, models, mappings, or the components of a trajectory.

    Directions of the same name that come again are others: the next random one, the next
    eigenvector. They are never made orthogonal, since that would undo their normalisation.
    """
    if isinstance(wanted, Trajectory):
        return _of_trajectory(problem, wanted.components(problem.params, count))
    if count == 1 and not isinstance(wanted, list | tuple):
        wanted = (wanted,)
    if not isinstance(wanted, list | tuple) or len(wanted) != count:
        raise InputError(
            f"expected {count} direction{'s' * (count > 1)}, each a name ({', '.join(NAMES)}), "
            f"a model or a mapping of tensors; got {wanted!r:.80}"
        )
    if normalize is not None and not any(map(_has_normalisation, wanted)):
        raise InputError(
            "normalize is of random directions, and of those that you give as tensors; the others "
            f"have a length of their own: leave it out; got {normalize!r}"
        )
    made: list[Direction] = []
    eigenvectors = _eigenvectors(problem, sum(_is(w, "hessian") for w in wanted))
    generator = torch.Generator().manual_seed(seed)
    for each in wanted:
        if _is(each, "random"):
            number = sum(d.axis.kind == "random" for d in made) + 1
            which = number if sum(_is(w, "random") for w in wanted) > 1 else None
            made.append(_random(problem, generator, normalize or "filter", vectors, which))
        elif _is(each, "hessian"):
            made.append(eigenvectors[sum(d.axis.kind == "hessian" for d in made)])
        else:
            made.append(_other(problem, each, normalize, vectors))
    return made


def _is(wanted: Any, name: str) -> bool:
    return isinstance(wanted, str) and wanted == name


def _has_normalisation(wanted: Any) -> bool:
    return _is(wanted, "random") or isinstance(wanted, Mapping)


def _random(
    problem: Problem,
    generator: torch.Generator,
    how: Normalisation,
    vectors: Vectors,
    which: int | None,
) -> Direction:
    """Gaussian, drawn on the processor in float32 so that it is the same everywhere."""
    drawn = {
        name: torch.randn(w.shape, generator=generator).to(w) for name, w in problem.params.items()
    }
    vector = normalised(problem, drawn, how, vectors)
    kind = {"filter": "filter-wise", "layer": "layer-wise", "none": "not normalised"}[how]
    number = f" {which}" if which is not None else ""
    label = f"random direction{number}, {kind}"
    words = WORDS[vectors] if how != "none" else WORDS["as they are"]
    return _direction(problem, vector, label, "random", how, words)


def _eigenvectors(problem: Problem, count: int) -> list[Direction]:
    """Of the largest eigenvalues of the training loss's Hessian, by magnitude; unit vectors."""
    if not count:
        return []
    H = whole_hessian(problem)  # that of the measures, where they are computed as well
    pairs = eigsh(H, k=count, tol=1e-3)
    params = problem.params
    made = []
    for i in range(count):
        column = pairs.vectors[:, i]
        vector = {name: column[at].view_as(params[name]) for name, at in H.slices.items()}
        label = f"eigenvector {i + 1} of the Hessian" if count > 1 else "leading eigenvector"
        value = float(pairs.values[i])
        words = WORDS["as they are"]
        made.append(_direction(problem, vector, label, "hessian", "none", words, value))
    return made


def _other(problem: Problem, wanted: Any, how: Normalisation | None, vectors: Vectors) -> Direction:
    if _is(wanted, "sam"):
        return sam_direction(problem)
    if _is(wanted, "dual") or (isinstance(wanted, str) and wanted.startswith("dual:")):
        return dual_direction(problem, wanted.partition(":")[2] or None)
    if isinstance(wanted, nn.Module):
        vector = difference(state_of(problem, wanted), state_of(problem))
        _check_not_zero(vector)
        words = WORDS["as they are"]
        return _direction(problem, vector, "towards the other model", "difference", "none", words)
    if isinstance(wanted, Mapping):
        return _given(problem, wanted, how or "none", vectors)
    raise InputError(
        f"a direction is one of {', '.join(map(repr, NAMES))}, 'dual:LAYER', another model, or a "
        f"mapping from names of parameters to tensors; got {wanted!r:.80}"
    )


def sam_direction(problem: Problem) -> Direction:
    """The unit vector along the gradient: the worst case of the linearised loss (Foret et al.)."""
    _, slope = problem.gradient()
    length = norm(slope)
    if not length > 0:
        raise InputError(
            "the gradient of the training loss is zero to the last digit and names no direction; "
            "take 'random' or 'hessian'"
        )
    vector = {name: (g / length).to(problem.dtype) for name, g in slope.items()}
    label = "along the gradient (SAM)"
    return _direction(problem, vector, label, "sam", "none", WORDS["as they are"])


def dual_direction(problem: Problem, layer_name: str | None = None) -> Direction:
    """The mean over pairs of the dual shifts of a layer's weights (Feng & Tu): one unit is it.

    Moving the weights by a pair's shift does to the training sample what replacing it by the test
    sample does. The mean shift is the part that all pairs have in common.
    """
    name, vector = mean_shift(problem, layer_name)
    label = f"mean dual shift of layer {name!r}"
    return _direction(problem, vector, label, "dual", "none", WORDS["as they are"])


def _given(
    problem: Problem, wanted: Mapping[str, Any], how: Normalisation, vectors: Vectors
) -> Direction:
    params = problem.params
    for name, value in wanted.items():
        if name not in params:
            raise InputError(
                f"the direction names {name!r}, which is not a measured parameter; there are "
                f"{', '.join(params)}"
            )
        if not isinstance(value, Tensor) or value.shape != params[name].shape:
            came = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise InputError(
                f"the direction for {name!r} should be a tensor of shape "
                f"{tuple(params[name].shape)}; got {came}"
            )
        if not value.isfinite().all():
            raise InputError(f"the direction for {name!r} is not finite")
    vector = {name: value.detach().to(params[name]) for name, value in wanted.items()}
    vector = normalised(problem, vector, how, vectors)
    _check_not_zero(vector)
    words = WORDS[vectors] if how != "none" else WORDS["as they are"]
    return _direction(problem, vector, "given direction", "given", how, words)


def _check_not_zero(vector: Weights) -> None:
    if not norm(vector) > 0:
        raise InputError("the direction is zero everywhere, so that all points are the centre")


def _of_trajectory(problem: Problem, components: Components) -> list[Direction]:
    return [
        _direction(
            problem,
            vector,
            f"component {i + 1} of the training ({share:.0%} of its variance)",
            "trajectory",
            "none",
            WORDS["as they are"],
            explained=share,
        )
        for i, (vector, share) in enumerate(
            zip(components.vectors, components.explained, strict=True)
        )
    ]


def _direction(
    problem: Problem,
    vector: Weights,
    label: str,
    kind: Any,
    how: Normalisation,
    words: str,
    eigenvalue: float | None = None,
    explained: float | None = None,
) -> Direction:
    axis = Axis(
        label=label,
        kind=kind,
        normalisation=how,
        norm=norm(measured(problem, vector)),
        weight_norm=norm(problem.params),
        vectors=words,
        eigenvalue=eigenvalue,
        explained=explained,
    )
    return Direction(dict(vector), axis)
