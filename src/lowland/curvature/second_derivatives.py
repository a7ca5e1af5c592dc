"""Which way of differentiating twice is right for a model: each is compared with differences.

PyTorch's second derivatives are wrong for some operations, and nothing says so. So a product with
the Hessian is compared, parameter by parameter, with the difference of two gradients: in float64,
on some of the real samples, beside the model's weights, for the loss and for a random sum of the
outputs (whose curvature does not vanish where the data is fitted).
"""

import contextlib
import itertools
import math
from collections.abc import Collection, Mapping, Sequence
from weakref import WeakKeyDictionary, WeakSet

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
    constants_in_double,
    in_double,
)
from lowland.errors import InputError
from lowland.problem import Problem, Stored

Way = type[DoubleBackward] | type[ForwardOverReverse] | type[FiniteDifference]

WAYS: tuple[Way, ...] = (DoubleBackward, ForwardOverReverse, FiniteDifference)

_SAMPLES, _BATCHES = 4, 16
_ADDED = 16  # samples whose gradients must add up
# Steps of the differences, relative to the weights. A kink of ReLU between the two ends spoils a
# difference, however short the step, but a short step seldom has one.
_STEPS = (1e-6, 1e-7, 1e-8)
_LOSS_STEPS = (1e-3, 1e-4, 1e-5, 1e-6)
# How far a product may be from a difference: of its own size, and of that of the whole product.
_OWN, _WHOLE = 1e-3, 1e-5

# Products along other directions may be less precise than the one that was tried.
MARGIN = 10
# Vectors in float64 that a comparison takes.
_VECTORS = 12

# How far beside the model's weights they are compared, relative to these.
_NEARBY = 0.05

_CHOSEN: WeakKeyDictionary[Problem, Way] = WeakKeyDictionary()
_BACKWARDS: WeakKeyDictionary[Problem, frozenset[str]] = WeakKeyDictionary()
_CONFIRMED: WeakSet[Problem] = WeakSet()  # whose loss is differentiated twice rightly


def way(problem: Problem) -> Way:
    """The first way of multiplying by the Hessian that differences of gradients confirm."""
    problem = problem.whole
    if problem not in _CHOSEN:
        with problem.measuring():
            _CHOSEN[problem] = _first_right(problem)
    return _CHOSEN[problem]


def twice_backwards(problem: Problem) -> frozenset[str]:
    """The parameters of which torch's second derivatives, backwards twice, are confirmed."""
    way(problem)
    return _BACKWARDS[problem.whole]


def check_double_backward(problem: Problem, names: Collection[str]) -> None:
    """An error if torch's second derivatives by one of these parameters are not right."""
    if wrong := [name for name in names if name not in twice_backwards(problem)]:
        raise InputError(
            f"torch does not differentiate this model backwards twice by {wrong[0]!r}, or not "
            "rightly, so that second derivatives by the outputs of a layer are not known; products "
            "with hessian(problem) are"
        )


def check_loss_curvature(problem: Problem) -> None:
    """An error if torch's second derivatives of the loss by the outputs are not right."""
    if problem in _CONFIRMED or problem.loss.needs_model:
        return
    batch = hardest(problem).map(in_double)

    def scalar(params: dict[str, Tensor]) -> Tensor:
        return problem.loss(params["outputs"], batch.targets).sum()

    stored = problem.stored
    wide = stored.precision(torch.float64) if stored is not None else contextlib.nullcontext()
    with torch.no_grad(), wide:
        z = problem.outputs(batch.inputs, constants_in_double(problem))
    for outputs in (_beside(z, torch.Generator(device=z.device).manual_seed(0)), z):
        try:
            check_gradient(problem, scalar, {"outputs": outputs})
            wrong = refuted(problem, DoubleBackward, scalar, {"outputs": outputs})
        except (RuntimeError, NotImplementedError):
            continue  # beside its domain (BCELoss), or what the products themselves will say
        if wrong:
            raise InputError(
                f"torch does not differentiate the loss {problem.loss.name!r} twice rightly: "
                f"{_refusal(wrong)}"
            )
        break
    _CONFIRMED.add(problem)


def _first_right(problem: Problem) -> Way:
    batch = hardest(problem)
    if problem.stored is not None:
        return _confirmed_in_parts(problem, problem.stored, batch)
    params = nearby(problem, problem.params)
    check_gradient(problem, losses_in_double(problem, batch), params)
    _check_sum(problem, params)
    failures = []
    _BACKWARDS[problem] = frozenset()
    for candidate in WAYS:
        try:
            scalars = [losses_in_double]
            if not problem.loss.needs_model:
                scalars.append(_random_sum_in_double)
            wrong: list[str] = []
            for scalar in scalars:
                wrong += refuted(problem, candidate, scalar(problem, batch), params)
            if candidate is DoubleBackward:
                _BACKWARDS[problem] = frozenset(params) - frozenset(wrong)
            if not wrong:
                return candidate
            failures.append(f"{candidate.name}: {_refusal(wrong)}")
        except (RuntimeError, NotImplementedError, InputError) as error:
            if isinstance(error, InputError) and candidate is DoubleBackward:
                raise
            failures.append(f"{candidate.name}: {str(error).splitlines()[0]}")
    raise InputError(
        f"the loss {problem.loss.name!r} of this model cannot be differentiated twice: "
        + "; ".join(failures)
    )


def _confirmed_in_parts(problem: Problem, stored: Stored, batch: Batch) -> Way:
    """Double backward, confirmed on the diagonal blocks of a few parameters at a time.

    So little is in memory in float64; the other parameters stay as they are stored.
    """
    batch = problem.same_everywhere(batch)
    names = list(problem.select())
    sizes = [8 * p.numel() for p in problem.select().values()]
    with stored.precision(torch.float64):
        for group in _groups(names, sizes, problem.memory // (4 * _VECTORS)):
            params = nearby(problem, {name: stored.widened(name) for name in group})
            check_gradient(problem, losses_in_double(problem, batch), params)
            wrong = refuted(problem, DoubleBackward, losses_in_double(problem, batch), params)
            if wrong:
                raise InputError(
                    f"the loss {problem.loss.name!r} of this model cannot be differentiated "
                    f"backwards twice ({_refusal(wrong)}), and other ways need a copy of it; pass "
                    "Problem(memory=...) with more bytes, or the model as a whole"
                )
    _BACKWARDS[problem] = frozenset(names)
    return DoubleBackward


def _groups(names: list[str], sizes: list[int], most: int) -> list[list[str]]:
    """Neighbouring parameters of ``most`` bytes together, or single ones that are larger."""
    groups: list[list[str]] = []
    size = math.inf
    for name, each in zip(names, sizes, strict=True):
        if size + each > most:
            groups.append([])
            size = 0
        groups[-1].append(name)
        size += each
    return groups


def check_gradient(problem: Problem, scalar: Scalar, params: dict[str, Tensor]) -> None:
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
                "through estimator, or a row that padding_idx keeps from learning and another use "
                "reads?), so that its Hessian is not defined"
            )


def _check_sum(problem: Problem, params: dict[str, Tensor]) -> None:
    """An error if the gradient of a batch is not the sum over its samples, as scaled ones are not.

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
        return  # the ways of differentiating say what is the matter
    size = max(float(g.norm()) for g in whole)
    for name, together, *apart in zip(params, whole, *parts, strict=True):
        if float((together - torch.stack(apart).sum(0)).norm()) > 1e-6 * size:
            raise InputError(
                f"the gradient by parameter {name!r} of several samples is not the sum of those of "
                "single ones (scale_grad_by_freq?), so that it is not that of the loss"
            )


def hardest(problem: Problem) -> Batch:
    """Some samples of one of the first batches, those with the largest losses."""
    batches = list(itertools.islice(problem.batches("train", _SAMPLES), _BATCHES))
    with torch.no_grad():
        losses = [problem.batch_losses(b).max() for b in batches]
    return batches[int(torch.stack(losses).nan_to_num().argmax())]


def nearby(problem: Problem, params: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights beside the model's own, in float64.

    At its own a ReLU may stand exactly at its kink (an input of zeros, a bias of zero), where a
    difference has no limit. A way of differentiating that is right nearby is right.
    """
    generator = torch.Generator(device=problem.device).manual_seed(0)
    return {name: _beside(p.double(), generator) for name, p in params.items()}


def _beside(t: Tensor, generator: torch.Generator) -> Tensor:
    noise = torch.randn(t.shape, generator=generator, dtype=t.dtype, device=t.device)
    return t + _NEARBY * (1e-3 + t.square().mean().sqrt()) * noise


def losses_in_double(problem: Problem, batch: Batch) -> Scalar:
    """The sum of a batch's losses as a function of the parameters, in float64."""
    double, constants = batch.map(in_double), constants_in_double(problem)
    return lambda params: problem.batch_losses(double, {**constants, **params}).sum()


def _random_sum_in_double(problem: Problem, batch: Batch) -> Scalar:
    """A random sum of a batch's outputs as a function of the parameters, in float64."""
    inputs, constants = pytree.tree_map(in_double, batch.inputs), constants_in_double(problem)

    def random_sum(params: dict[str, Tensor]) -> Tensor:
        z = problem.outputs(inputs, {**constants, **params})
        generator = torch.Generator(device=z.device).manual_seed(0)
        return (z * torch.randn(z.shape, generator=generator, dtype=z.dtype, device=z.device)).sum()

    return random_sum


def check_differences(problem: Problem, params: dict[str, Tensor]) -> float:
    """How precise products by differences are, as a share of their size; at most 0.1 %.

    An error if they depend on their step, as they do across a kink.
    """
    scalar = losses_in_double(problem, next(problem.batches("train")))
    generator = torch.Generator(device=problem.device).manual_seed(0)
    v = [
        torch.randn(p.shape, generator=generator, device=p.device).double() for p in params.values()
    ]
    long, short = (
        torch.cat([h.flatten() for h in FiniteDifference(scalar, params, step)(v)])
        for step in _STEPS[:2]
    )
    miss, size = float((long - short).norm()), float(short.norm())
    if miss > _OWN * size + FiniteDifference(scalar, params).rounding(v):
        raise InputError(
            "this model cannot be differentiated twice by torch, and differences of its gradients "
            "depend on their step (a ReLU at its kink?): its Hessian is not known"
        )
    return min(1.0, MARGIN * miss / size) if size else 1.0


def refuted(
    problem: Problem, candidate: Way, scalar: Scalar, params: dict[str, Tensor]
) -> list[str]:
    """The parameters in which the products of a candidate are not those of differences."""
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
        return []  # nothing depends on the parameters here
    Hv = [h.detach() for h in product(v)]
    whole = float(torch.stack([h.norm() for h in Hv]).norm())
    worst = dict.fromkeys(params, float("inf"))  # of the best step, by parameter
    for step in _STEPS:
        difference = FiniteDifference(scalar, params, step)
        expected, noise = difference(v), difference.rounding(v)
        for name, h, e in zip(params, Hv, expected, strict=True):
            limit = _OWN * float(torch.maximum(h.norm(), e.norm())) + _WHOLE * whole + noise
            worst[name] = min(worst[name], float((h - e).norm()) / max(limit, 1e-300))
    return [name for name, miss in worst.items() if miss > 1]


def _refusal(wrong: list[str]) -> str:
    return f"its second derivatives by {wrong[0]!r} are not those of differences"
