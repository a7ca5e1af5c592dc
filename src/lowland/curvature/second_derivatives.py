"""Which way of differentiating twice is right for a model: each is compared with differences.

PyTorch's second derivatives are wrong for some operations, and nothing says so. So a product with
the Hessian is compared, parameter by parameter, with the difference of two gradients: in float64,
on some of the real samples, beside the model's weights, for the loss and for a random sum of the
outputs (whose curvature does not vanish where the data is fitted).
"""

import itertools
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from lowland.batches import Batch
from lowland.curvature.products import (
    BatchProduct,
    DoubleBackward,
    FiniteDifference,
    ForwardOverReverse,
    Scalar,
)
from lowland.errors import InputError
from lowland.problem import Problem

Way = type[DoubleBackward] | type[ForwardOverReverse] | type[FiniteDifference]

WAYS: tuple[Way, ...] = (DoubleBackward, ForwardOverReverse, FiniteDifference)

_SAMPLES, _BATCHES = 4, 16
# Steps of the differences, relative to the weights. A kink of ReLU between the two ends spoils a
# difference, however short the step, but a short step seldom has one.
_STEPS = (1e-6, 1e-7, 1e-8)
_LOSS_STEPS = (1e-3, 1e-4, 1e-5, 1e-6)
# How far a product may be from a difference: of its own size, and of that of the whole product.
_OWN, _WHOLE = 1e-3, 1e-5

# How far beside the model's weights they are compared, relative to these.
_NEARBY = 0.05

_CHOSEN: WeakKeyDictionary[Problem, Way] = WeakKeyDictionary()


def way(problem: Problem) -> Way:
    """The first way of multiplying by the Hessian that differences of gradients confirm."""
    problem = problem.whole
    if problem not in _CHOSEN:
        _CHOSEN[problem] = _first_right(problem)
    return _CHOSEN[problem]


def _first_right(problem: Problem) -> Way:
    batch, params = _hardest(problem), _nearby(problem)
    _check_gradient(problem, losses_in_double(problem, batch), params)
    failures = []
    for candidate in WAYS:
        try:
            scalars = [losses_in_double]
            if not problem.loss.needs_model:
                scalars.append(_random_sum_in_double)
            for scalar in scalars:
                wrong = _wrong(problem, candidate, scalar(problem, batch), params)
                if wrong is not None:
                    failures.append(f"{candidate.name}: {wrong}")
                    break
            else:
                return candidate
        except (RuntimeError, NotImplementedError) as error:
            failures.append(f"{candidate.name}: {str(error).splitlines()[0]}")
    raise InputError(
        f"the loss {problem.loss.name!r} of this model cannot be differentiated twice: "
        + "; ".join(failures)
    )


def _check_gradient(problem: Problem, scalar: Scalar, params: dict[str, Tensor]) -> None:
    """An error if torch's gradient is not that of the loss, as of a straight-through estimator."""
    leaves = [p.detach().requires_grad_() for p in params.values()]
    try:
        y = scalar(dict(zip(params, leaves, strict=True)))
        slopes = torch.autograd.grad(y, leaves, materialize_grads=True)
    except (RuntimeError, NotImplementedError):
        return  # the ways of differentiating say what is the matter
    generator = torch.Generator(device=problem.device).manual_seed(1)
    for name, p, g in zip(params, params.values(), slopes, strict=True):
        noise = torch.randn(p.shape, generator=generator, dtype=p.dtype, device=p.device)
        v = noise * (g != 0)
        slope, misses = float((g * v).sum()), []
        for step in _LOSS_STEPS:  # a long one meets kinks, a short one rounding
            h = step * (1 + float(p.norm())) / max(float(v.norm()), 1e-300)
            with torch.no_grad():
                ends = [float(scalar({**params, name: p + sign * h * v})) for sign in (1, -1)]
            rounding = 1e-12 * (1 + abs(ends[0])) / h
            misses.append(abs(slope - (ends[0] - ends[1]) / (2 * h)) - rounding)
        if min(misses) > 1e-2 * float(g.norm()):
            raise InputError(
                f"torch's gradient by parameter {name!r} is not that of the loss (a straight-"
                "through estimator, scale_grad_by_freq?), so that its Hessian is not defined"
            )


def _hardest(problem: Problem) -> Batch:
    """Some samples of one of the first batches, those with the largest losses."""
    batches = list(itertools.islice(problem.batches("train", _SAMPLES), _BATCHES))
    with torch.no_grad():
        losses = [problem.batch_losses(b).max() for b in batches]
    return batches[int(torch.stack(losses).nan_to_num().argmax())]


def _nearby(problem: Problem) -> dict[str, Tensor]:
    """Weights beside the model's own, in float64.

    At its own a ReLU may stand exactly at its kink (an input of zeros, a bias of zero), where a
    difference has no limit. A way of differentiating that is right nearby is right.
    """
    generator = torch.Generator(device=problem.device).manual_seed(0)

    def noise(p: Tensor) -> Tensor:
        return torch.randn(p.shape, generator=generator, dtype=torch.float64, device=p.device)

    return {
        name: p.double() + _NEARBY * (1e-3 + p.double().square().mean().sqrt()) * noise(p)
        for name, p in problem.params.items()
    }


def losses_in_double(problem: Problem, batch: Batch) -> Scalar:
    """The sum of a batch's losses as a function of the parameters, in float64."""
    in_double, constants = batch.map(_double), _constants(problem)
    return lambda params: problem.batch_losses(in_double, {**constants, **params}).sum()


def _random_sum_in_double(problem: Problem, batch: Batch) -> Scalar:
    """A random sum of a batch's outputs as a function of the parameters, in float64."""
    inputs, constants = pytree.tree_map(_double, batch.inputs), _constants(problem)

    def random_sum(params: dict[str, Tensor]) -> Tensor:
        z = problem.outputs(inputs, {**constants, **params})
        generator = torch.Generator(device=z.device).manual_seed(0)
        return (z * torch.randn(z.shape, generator=generator, dtype=z.dtype, device=z.device)).sum()

    return random_sum


def _constants(problem: Problem) -> dict[str, Tensor]:
    """All that the model holds, in float64."""
    tensors = [*problem.model.named_parameters(), *problem.model.named_buffers()]
    return {name: _double(t.detach()) for name, t in tensors}


def check_differences(problem: Problem, params: dict[str, Tensor]) -> None:
    """An error if differences of gradients depend on their step, as they do across a kink."""
    scalar = losses_in_double(problem, next(problem.batches("train")))
    generator = torch.Generator(device=problem.device).manual_seed(0)
    v = [
        torch.randn(p.shape, generator=generator, device=p.device).double() for p in params.values()
    ]
    long, short = (
        torch.cat([h.flatten() for h in FiniteDifference(scalar, params, step)(v)])
        for step in _STEPS[:2]
    )
    if (long - short).norm() > _OWN * short.norm() + FiniteDifference(scalar, params).rounding(v):
        raise InputError(
            "this model cannot be differentiated twice by torch, and differences of its gradients "
            "depend on their step (a ReLU at its kink?): its Hessian is not known"
        )


def _double(t: Tensor) -> Tensor:
    return t.double() if t.is_floating_point() else t


def _wrong(
    problem: Problem, candidate: Way, scalar: Scalar, params: dict[str, Tensor]
) -> str | None:
    """What is wrong with the products of a candidate; None if differences confirm them."""
    generator = torch.Generator(device=problem.device).manual_seed(0)
    leaves = [p.detach().requires_grad_() for p in params.values()]
    y = scalar(dict(zip(params, leaves, strict=True)))
    product: BatchProduct = candidate(scalar, params)
    v = [torch.randn(p.shape, generator=generator, dtype=p.dtype, device=p.device) for p in leaves]
    if not all(h.isfinite().all() for h in product(v)):
        raise InputError(
            "second derivatives of the loss are NaN or infinite on the first samples; the "
            "curvature is not defined at these weights"
        )
    # Only along entries that have a gradient: others may act on the loss and be kept from
    # learning, as the row of a padding token is.
    slopes = torch.autograd.grad(y, leaves, materialize_grads=True)
    v = [d * (g != 0) for d, g in zip(v, slopes, strict=True)]
    if not any(bool(d.any()) for d in v):
        return None  # nothing depends on the parameters here
    Hv = [h.detach() for h in product(v)]
    whole = float(torch.stack([h.norm() for h in Hv]).norm())
    worst = dict.fromkeys(params, float("inf"))  # of the best step, by parameter
    for step in _STEPS:
        difference = FiniteDifference(scalar, params, step)
        expected, noise = difference(v), difference.rounding(v)
        for name, h, e in zip(params, Hv, expected, strict=True):
            limit = _OWN * float(torch.maximum(h.norm(), e.norm())) + _WHOLE * whole + noise
            worst[name] = min(worst[name], float((h - e).norm()) / max(limit, 1e-300))
    failed = [name for name, miss in worst.items() if miss > 1]
    if failed:
        return f"its second derivatives by {failed[0]!r} are not those of differences"
    return None
