"""Whether torch's gradient is that of the loss: differences of losses tell, parameter by parameter.

It is not for straight-through estimators, whose backward pass is another function's, for gradients
that are reversed or scaled, and for what a forward pass detaches although it depends on weights.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from lowland.batches import Batch
from lowland.curvature.products import Scalar
from lowland.curvature.trials import beside, losses_in_double, trials
from lowland.errors import InputError
from lowland.problem import Problem

_ADDED = 16  # samples whose gradients must add up
# Relative to the weights. A long one meets kinks, a short one rounding: one must agree.
_STEPS = (1e-5, 1e-4, 1e-6, 1e-3)
_ROUNDINGS = 10  # times what the last digits of the weights change, beyond which it is no rounding
_COMPARABLE = 1e-3  # a slope, as a share of the largest one, that can be compared together with it

_ANOTHERS = (
    "has a gradient in torch that is not that of the loss (a straight-through estimator, something "
    "detached, or a row that padding_idx keeps from learning and another use reads?)"
)
_SCALED = (
    "has a gradient for several samples that is not the sum of those of single ones "
    "(scale_grad_by_freq?), so that it is not that of the loss"
)

_ALONE = (
    "torch differentiates a sample of this model by itself otherwise than two of them together, "
    "by a defect of one of its operations; take at least two samples, and batch_size=... or "
    "memory=... for as many at once"
)


def wrong_gradients(problem: Problem) -> dict[str, str]:
    """The parameters by which torch's gradient is not that of the loss, and why, in words."""
    return _seen(problem)[0]


def is_differentiated(problem: Problem) -> bool:
    """Whether differences confirm torch's gradient by every parameter."""
    wrong, compared = _seen(problem)
    return not wrong and compared


def _seen(problem: Problem) -> tuple[dict[str, str], bool]:
    """Return the wrong gradients, and whether every parameter's could be compared."""
    problem = problem.whole

    def look() -> tuple[dict[str, str], bool]:
        problem.check_tensors()
        with problem.measuring():
            tried = trials(problem)
            for _, batch in tried:
                if len(batch) == 1:
                    check_alone(problem, batch)
            every = [_refuted(problem, losses_in_double(problem, b), at) for at, b in tried]
            wrong = {name: _ANOTHERS for names in every for name in names or ()}
            wrong |= dict.fromkeys(_not_added(problem, tried[0][0]), _SCALED)
            return wrong, None not in every

    return problem.found(wrong_gradients, look)


def check_gradient(problem: Problem, scalar: Scalar, params: dict[str, Tensor]) -> None:
    """An error if torch's gradient of a function of parameters is not its own."""
    for name in _refuted(problem, scalar, params) or ():
        raise InputError(f"parameter {name!r} {_ANOTHERS}, so that its curvature is not defined")


def _refuted(problem: Problem, scalar: Scalar, params: dict[str, Tensor]) -> list[str] | None:
    """The parameters by which torch's gradient is not that of differences.

    None where there is no gradient: the ways of differentiating twice say what is the matter. With
    a kink right here no step agrees, which one in some thousand networks has: so what differs is
    compared once more, beside these values. There the slopes must agree along the gradient as well:
    along a random direction one in six gradients that are 5 % too large would pass.
    """
    comparison = _compared(problem, scalar, params)
    if comparison is None:
        return None
    refuted = comparison.refuted()
    if not refuted:
        return []
    generator = torch.Generator(device=problem.device).manual_seed(2)
    elsewhere = {name: beside(p.detach(), generator) for name, p in params.items()}
    again = [_compared(problem, scalar, elsewhere, uphill=uphill) for uphill in (False, True)]
    return [name for name in refuted if not all(c and c.confirms(name) for c in again)]


def _compared(
    problem: Problem, scalar: Scalar, params: dict[str, Tensor], *, uphill: bool = False
) -> "_Comparison | None":
    """Torch's slopes along random directions, or along the gradients; None without gradients."""
    leaves = [p.detach().requires_grad_() for p in params.values()]
    try:
        y = scalar(dict(zip(params, leaves, strict=True)))
        slopes = torch.autograd.grad(y, leaves, materialize_grads=True)
    except (RuntimeError, NotImplementedError):
        return None
    generator = torch.Generator(device=problem.device).manual_seed(1)
    comparison = _Comparison(scalar, params)
    for name, p, g in zip(params, params.values(), slopes, strict=True):
        noise = torch.randn(p.shape, generator=generator, dtype=p.dtype, device=p.device)
        direction = g / g.norm().clamp(min=1e-300) if uphill else noise * (g != 0)
        comparison.add(name, g, direction)
    return comparison


class _Comparison:
    """Slopes of a function by differences, along a direction of each parameter."""

    def __init__(self, scalar: Scalar, params: dict[str, Tensor]) -> None:
        self._scalar, self._params = scalar, params
        self._moves: dict[str, Tensor] = {}  # of a step of 1
        self._slopes: dict[str, float] = {}
        self._allowed: dict[str, float] = {}  # how far differences may be from these

    def add(self, name: str, gradient: Tensor, v: Tensor) -> None:
        """A parameter, torch's gradient by it, and the direction to move it in."""
        length = (1 + float(self._params[name].norm())) / max(float(v.norm()), 1e-300)
        self._moves[name] = v * length
        self._slopes[name] = float((gradient * self._moves[name]).sum())
        self._allowed[name] = 1e-2 * float(gradient.norm()) * length

    def refuted(self) -> list[str]:
        """The parameters by which differences give another slope.

        First most of them move together, each by so much that its error would show as that of any
        other: if none shows, all are right. Otherwise, and for those of the smallest slopes, each
        moves alone.
        """
        largest = max(self._allowed.values())
        together = {n: a for n, a in self._allowed.items() if a > _COMPARABLE * largest}
        alone = dict(self._allowed)
        if together:
            least = min(together.values())
            if self._agree({name: least / a for name, a in together.items()}, least):
                alone = {name: a for name, a in alone.items() if name not in together}
        return [name for name, a in alone.items() if not self._agree({name: 1.0}, a)]

    def confirms(self, name: str) -> bool:
        """Whether a parameter has a slope here, and differences by it alone give the same."""
        return self._allowed[name] > 0 and self._agree({name: 1.0}, self._allowed[name])

    def _agree(self, shares: dict[str, float], allowed: float) -> bool:
        """Whether a difference along shares of the moves, together, is the slope along them."""
        slope = sum(share * self._slopes[name] for name, share in shares.items())
        for step in _STEPS:
            with torch.no_grad():
                ends = [float(self._scalar(self._moved(shares, sign * step))) for sign in (1, -1)]
            rounding = 1e-12 * (1 + abs(ends[0])) / step * min(shares.values())
            if abs(slope - (ends[0] - ends[1]) / (2 * step)) <= allowed + rounding:
                return True
        return False

    def _moved(self, shares: dict[str, float], step: float) -> dict[str, Tensor]:
        moved = {
            name: torch.add(self._params[name], self._moves[name], alpha=step * share)
            for name, share in shares.items()
        }
        return {**self._params, **moved}


def check_alone(problem: Problem, sample: Batch) -> None:
    """Refuse a batch of one sample if torch differentiates it otherwise than a batch of two.

    A dimension of size one leaves the order of a tensor's strides open, and kernels of torch's
    (BatchNorm's backward pass in eval mode) read some orders wrongly. The sample is compared with
    twice itself, once for a problem: all other batches are of the kind that differences confirm.
    It is so beside the model's weights, as a gradient at a minimum is the rounding of either sum,
    and may differ by as much as it changes with the last digits of the weights.
    """

    def differs() -> bool:
        pair = sample.map(lambda t: torch.cat([t, t]))
        generator = torch.Generator(device=problem.device).manual_seed(0)
        near = {name: beside(p.detach(), generator) for name, p in problem.select().items()}
        eps = torch.finfo(problem.dtype).eps
        moved = {name: p + 4 * eps * p * torch.randn_like(p) for name, p in near.items()}
        with problem.measuring():
            alone, together, rounded = (
                _derivatives(problem, batch, params)
                for batch, params in ((sample, near), (pair, near), (pair, moved))
            )
        return any(
            float((2 * one - two).norm())
            > eps**0.5 * float(two.norm()) + _ROUNDINGS * float((two - other).norm())
            for one, two, other in zip(alone, together, rounded, strict=False)
        )

    if problem.whole.found(check_alone, differs):
        raise InputError(_ALONE)


def _derivatives(problem: Problem, batch: Batch, params: dict[str, Tensor]) -> list[Tensor]:
    """Return the gradient of a batch's summed loss, and the Hessian times a random vector.

    What torch cannot compute is left out.
    """
    leaves = [p.detach().requires_grad_() for p in params.values()]
    generator = torch.Generator(device=problem.device).manual_seed(0)
    found: list[Tensor] = []
    try:
        y = problem.batch_losses(batch, dict(zip(params, leaves, strict=True))).sum()
        for _ in range(2):
            slopes = torch.autograd.grad(y, leaves, create_graph=True, materialize_grads=True)
            found.append(torch.cat([slope.detach().flatten() for slope in slopes]))
            noise = [
                torch.randn(g.shape, generator=generator, dtype=g.dtype, device=g.device)
                for g in slopes
            ]
            y = torch.stack([(g * u).sum() for g, u in zip(slopes, noise, strict=True)]).sum()
            if not y.requires_grad:
                break
    except (RuntimeError, NotImplementedError):
        pass
    return found


def _not_added(problem: Problem, params: dict[str, Tensor]) -> list[str]:
    """Return the parameters by which the gradient of a batch is not the sum over its samples.

    So it is where torch divides by how often a token occurs in the batch. The batch twice must have
    twice the gradient.
    """
    batch = problem.first(_ADDED)
    leaves = [p.detach().requires_grad_() for p in params.values()]

    def gradient(part: Batch) -> Sequence[Tensor]:
        loss = losses_in_double(problem, part)(dict(zip(params, leaves, strict=True)))
        return torch.autograd.grad(loss, leaves, materialize_grads=True)

    try:
        once, twice = gradient(batch), gradient(batch.map(lambda t: torch.cat([t, t])))
    except (RuntimeError, NotImplementedError):
        return []
    size = max(float(g.norm()) for g in twice)
    return [
        name
        for name, one, two in zip(params, once, twice, strict=True)
        if float((two - 2 * one).norm()) > 1e-6 * size
    ]
