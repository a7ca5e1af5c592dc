"""Whether torch's gradient is that of the loss: differences of losses tell, parameter by parameter.

It is not for straight-through estimators, whose backward pass is another function's, for gradients
that are reversed or scaled, and for what a forward pass detaches although it depends on weights.
"""

from collections.abc import Sequence
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch import Tensor

from lowland.batches import Batch
from lowland.curvature.products import Scalar
from lowland.curvature.trials import losses_in_double, trials
from lowland.errors import InputError
from lowland.problem import Problem

_ADDED = 16  # samples whose gradients must add up
# Relative to the weights. A long one meets kinks, a short one rounding: one must agree.
_STEPS = (1e-5, 1e-4, 1e-6, 1e-3)

_ANOTHERS = (
    "has a gradient in torch that is not that of the loss (a straight-through estimator, something "
    "detached, or a row that padding_idx keeps from learning and another use reads?)"
)
_SCALED = (
    "has a gradient for several samples that is not the sum of those of single ones "
    "(scale_grad_by_freq?), so that it is not that of the loss"
)

_WRONG: WeakKeyDictionary[Problem, dict[str, str]] = WeakKeyDictionary()
# Those that could be compared, in every parameter: their backward passes are right.
_COMPARED: WeakSet[Problem] = WeakSet()


def wrong_gradients(problem: Problem) -> dict[str, str]:
    """The parameters by which torch's gradient is not that of the loss, and why, in words."""
    problem = problem.whole
    if problem not in _WRONG:
        with problem.measuring():
            _WRONG[problem] = _wrong(problem)
    return _WRONG[problem]


def is_differentiated(problem: Problem) -> bool:
    """Whether differences confirm torch's gradient by every parameter."""
    return not wrong_gradients(problem) and problem.whole in _COMPARED


def _wrong(problem: Problem) -> dict[str, str]:
    tried = trials(problem)
    every = [_refuted(problem, losses_in_double(problem, b), weights) for weights, b in tried]
    if None not in every:
        _COMPARED.add(problem)
    wrong = {name: _ANOTHERS for names in every for name in names or ()}
    return wrong | dict.fromkeys(_not_added(problem, tried[0][0]), _SCALED)


def check_gradient(problem: Problem, scalar: Scalar, params: dict[str, Tensor]) -> None:
    """An error if torch's gradient of a function of parameters is not its own."""
    for name in _refuted(problem, scalar, params) or ():
        raise InputError(f"parameter {name!r} {_ANOTHERS}, so that its curvature is not defined")


def _refuted(problem: Problem, scalar: Scalar, params: dict[str, Tensor]) -> list[str] | None:
    """The parameters by which torch's gradient is not that of differences.

    None where there is no gradient: the ways of differentiating twice say what is the matter.
    """
    leaves = [p.detach().requires_grad_() for p in params.values()]
    try:
        y = scalar(dict(zip(params, leaves, strict=True)))
        slopes = torch.autograd.grad(y, leaves, materialize_grads=True)
    except (RuntimeError, NotImplementedError):
        return None
    generator = torch.Generator(device=problem.device).manual_seed(1)
    refuted = []
    for name, p, g in zip(params, params.values(), slopes, strict=True):
        noise = torch.randn(p.shape, generator=generator, dtype=p.dtype, device=p.device)
        v = noise * (g != 0)
        slope, allowed = float((g * v).sum()), 1e-2 * float(g.norm())
        for step in _STEPS:
            h = step * (1 + float(p.norm())) / max(float(v.norm()), 1e-300)
            with torch.no_grad():
                ends = [float(scalar({**params, name: p + sign * h * v})) for sign in (1, -1)]
            rounding = 1e-12 * (1 + abs(ends[0])) / h
            if abs(slope - (ends[0] - ends[1]) / (2 * h)) <= allowed + rounding:
                break
        else:
            refuted.append(name)
    return refuted


def _not_added(problem: Problem, params: dict[str, Tensor]) -> list[str]:
    """The parameters by which the gradient of a batch is not the sum over its samples.

    So it is where torch divides by how often a token occurs in the batch.
    """
    batch = problem.first(_ADDED)
    leaves = [p.detach().requires_grad_() for p in params.values()]

    def gradient(part: Batch) -> Sequence[Tensor]:
        loss = losses_in_double(problem, part)(dict(zip(params, leaves, strict=True)))
        return torch.autograd.grad(loss, leaves, materialize_grads=True)

    try:
        whole = gradient(batch)
        parts = [gradient(part) for part in batch.split(-(-len(batch) // 2))]
    except (RuntimeError, NotImplementedError):
        return []
    size = max(float(g.norm()) for g in whole)
    return [
        name
        for name, together, *apart in zip(params, whole, *parts, strict=True)
        if float((together - torch.stack(apart).sum(0)).norm()) > 1e-6 * size
    ]
