"""Which way of differentiating twice is right for a model: each is compared with differences.

PyTorch's second derivatives are wrong for some operations, and nothing says so. So a product with
the Hessian is compared, parameter by parameter, with the difference of two gradients: in float64,
on some of the real samples, beside the model's weights, for the loss and for a random sum of the
outputs (whose curvature does not vanish where the data is fitted).
"""

import contextlib
import itertools
import math
from collections.abc import Collection

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from lowland.batches import Batch
from lowland.curvature.first_derivatives import check_gradient, wrong_gradients
from lowland.curvature.products import (
    BatchProduct,
    DoubleBackward,
    FiniteDifference,
    ForwardOverReverse,
    Scalar,
    constants_in_double,
    in_double,
)
from lowland.curvature.trials import beside, hardest, losses_in_double, nearby, trials
from lowland.errors import InputError
from lowland.problem import Problem, Stored

Way = type[DoubleBackward] | type[ForwardOverReverse] | type[FiniteDifference]

WAYS: tuple[Way, ...] = (DoubleBackward, ForwardOverReverse, FiniteDifference)

# Steps of the differences, relative to the weights. A kink of ReLU between the two ends spoils a
# difference, however short the step, but a short step seldom has one.
_STEPS = (1e-6, 1e-7, 1e-8)
# How far a product may be from a difference: of its own size, and of that of the whole product.
_OWN, _WHOLE = 1e-3, 1e-5

# Products along other directions may be less precise than the one that was tried.
MARGIN = 10
# Vectors in float64 that a comparison takes.
_VECTORS = 12


def way(problem: Problem) -> Way:
    """The first way of multiplying by the Hessian that differences of gradients confirm."""
    return _seen(problem)[0]


def twice_backwards(problem: Problem) -> frozenset[str]:
    """The parameters of which torch's second derivatives, backwards twice, are confirmed."""
    return _seen(problem)[1]


def _seen(problem: Problem) -> tuple[Way, frozenset[str]]:
    """Return the first right way, and the parameters by which double backward is right."""
    problem = problem.whole

    def look() -> tuple[Way, frozenset[str]]:
        with problem.measuring():
            return _first_right(problem)

    return problem.found(way, look)


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
    problem = problem.whole
    if not problem.loss.needs_model:
        problem.found(check_loss_curvature, lambda: _look_at_loss_curvature(problem))


def _look_at_loss_curvature(problem: Problem) -> None:
    batch = hardest(problem).map(in_double)

    def scalar(params: dict[str, Tensor]) -> Tensor:
        return problem.loss(params["outputs"], batch.targets).sum()

    stored = problem.stored
    wide = stored.precision(torch.float64) if stored is not None else contextlib.nullcontext()
    with torch.no_grad(), wide:
        z = problem.outputs(batch.inputs, constants_in_double(problem))
    for outputs in (beside(z, torch.Generator(device=z.device).manual_seed(0)), z):
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


def _first_right(problem: Problem) -> tuple[Way, frozenset[str]]:
    if problem.stored is not None:
        return _confirmed_in_parts(problem, problem.stored, hardest(problem))
    for name, reason in wrong_gradients(problem).items():
        raise InputError(f"parameter {name!r} {reason}, so that its Hessian is not defined")
    tried = trials(problem)
    failures = []
    backwards: frozenset[str] = frozenset()
    for candidate in WAYS:
        try:
            scalars = [losses_in_double]
            if not problem.loss.needs_model:
                scalars.append(_random_sum_in_double)
            wrong = [
                name
                for scalar, (weights, batch) in itertools.product(scalars, tried)
                for name in refuted(problem, candidate, scalar(problem, batch), weights)
            ]
            if candidate is DoubleBackward:
                backwards = frozenset(problem.params) - frozenset(wrong)
            if not wrong:
                return candidate, backwards
            failures.append(f"{candidate.name}: {_refusal(wrong)}")
        except (RuntimeError, NotImplementedError, InputError) as error:
            if isinstance(error, InputError) and candidate is DoubleBackward:
                raise
            failures.append(f"{candidate.name}: {str(error).splitlines()[0]}")
    raise InputError(
        f"the loss {problem.loss.name!r} of this model cannot be differentiated twice: "
        + "; ".join(failures)
    )


def _confirmed_in_parts(
    problem: Problem, stored: Stored, batch: Batch
) -> tuple[Way, frozenset[str]]:
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
    return DoubleBackward, frozenset(names)


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
        if max(worst.values()) <= 1:
            break
    return [name for name, miss in worst.items() if miss > 1]


def _refusal(wrong: list[str]) -> str:
    return f"its second derivatives by {wrong[0]!r} are not those of differences"
