"""Which way of multiplying by the Jacobian of a model's outputs is right.

``J^T u`` is a backward pass and is compared, parameter by parameter, with differences of the
outputs. ``J v`` is a second one through the first. Torch cannot do that everywhere, and where a
function of the user's own forbids it (``once_differentiable``) nothing says so. So both must give
the same ``u . J v``; otherwise J v comes from differences.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from lowland.batches import Batch
from lowland.curvature.first_derivatives import check_gradient, is_differentiated
from lowland.curvature.products import (
    BatchProduct,
    Direction,
    GaussNewton,
    Middle,
    OutputDifference,
    constants_in_double,
    in_double,
)
from lowland.curvature.second_derivatives import MARGIN, way
from lowland.curvature.trials import trials
from lowland.errors import InputError
from lowland.problem import Problem

Way = type[GaussNewton] | type[OutputDifference]
Outputs = Callable[[Problem, Batch, dict[str, Tensor]], Middle]

_ALIKE = 1e-6  # how far apart, relative to their size, the two ways to u . J v may be
_ROUNDING = 1e-12  # relative to the largest of all parameters
_STEPS, _STEADY = (1e-6, 1e-7), 1e-3  # of differences, and what they may depend on them


def jacobian_way(problem: Problem, middle: Outputs) -> Way:
    """Two backward passes if they are right, otherwise differences of the outputs."""
    problem = problem.whole
    return problem.found((jacobian_way, middle), lambda: _right(problem, middle))


def _right(problem: Problem, middle: Outputs) -> Way:
    if problem.stored is not None:
        way(problem)  # the same passes, confirmed a few parameters at a time
        return GaussNewton
    right = (_is_right(problem, middle, batch, at) for at, batch in trials(problem))
    return GaussNewton if all(right) else OutputDifference


def _is_right(problem: Problem, middle: Outputs, batch: Batch, params: dict[str, Tensor]) -> bool:
    """Whether two backward passes and one give the same ``u . J v`` for each parameter."""
    double, constants = batch.map(in_double), constants_in_double(problem)

    def whole(problem: Problem, batch: Batch, leaves: dict[str, Tensor]) -> Middle:
        return middle(problem, batch, {**constants, **leaves})

    def random_sum(params: dict[str, Tensor]) -> Tensor:
        z, _ = whole(problem, double, params)
        return (z * _noise(z)).sum()

    if not is_differentiated(problem):
        check_gradient(problem, random_sum, params)
    try:
        product = GaussNewton(problem, params, double, whole)
        u = _noise(product.outputs)
        backs = product.back_from(u)
        sizes = [float(back.norm()) * back.numel() ** 0.5 for back in backs]
        rounding = _ROUNDING * max(sizes)  # all that is left of a bias before a normalisation
        allowed = [_ALIKE * size + rounding for size in sizes]

        def agree(shares: list[float]) -> bool:
            """Whether both ways give the same along shares of a random direction, to 1."""
            v = [share * _noise(p) for share, p in zip(shares, params.values(), strict=True)]
            forwards = float((u * product.along(v)).sum())
            backwards = sum(float((d * back).sum()) for d, back in zip(v, backs, strict=True))
            return abs(forwards - backwards) <= (1 if rounding else 0)

        # Together first, each parameter by so much that its error would show as that of any other.
        shares = [1 / each if each else 1.0 for each in allowed]
        return agree(shares) or all(
            agree([share * (i == j) for j, share in enumerate(shares)]) for i in range(len(shares))
        )
    except (RuntimeError, NotImplementedError):
        return False


def check_output_differences(
    problem: Problem, build: "partial[OutputDifference] | Callable[..., BatchProduct]"
) -> float:
    """How precise J v by differences is on real data, as a share of its size; at most 1 %.

    An error if it depends on the step, or is not the transpose of the backward pass: so it is
    at a kink.
    """
    batch = next(problem.batches("train"))
    long, short = (build(batch, step=step) for step in _STEPS)
    assert isinstance(long, OutputDifference)
    assert isinstance(short, OutputDifference)
    v: Direction = [_noise(w) for w in short.weights]
    Jv, u = short.along(v), _noise(short.outputs)
    back = torch.stack([(b * d).sum() for b, d in zip(short.back_from(u), v, strict=True)]).sum()
    miss, size = float((long.along(v) - Jv).norm()), float(Jv.norm())
    apart = abs(float((u * Jv).sum() - back))  # as long as the miss, on average over u
    if max(miss, apart) > _STEADY * size:
        raise InputError(
            "torch cannot multiply by the Jacobian of this model, and differences of its outputs "
            "depend on their step (a ReLU at its kink?): the matrix is not known"
        )
    return min(1.0, MARGIN * max(miss, apart) / size) if size else 1.0


def _noise(t: Tensor) -> Tensor:
    """Normal random numbers in the tensor's shape, the same at each call."""
    generator = torch.Generator(device=t.device).manual_seed(0)
    return torch.randn(t.shape, generator=generator, dtype=torch.float64, device=t.device)
