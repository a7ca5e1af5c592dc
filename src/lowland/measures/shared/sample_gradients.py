"""What measures of single samples' gradients share: their first and second moments."""

from dataclasses import dataclass

import torch
from torch import Tensor

from lowland.batches import Batch, Inputs
from lowland.budget import Work
from lowland.curvature import (
    ForwardPass,
    exact_diagonal,
    gradients,
    parameters,
    samples_within,
)
from lowland.distributed import total
from lowland.errors import InputError
from lowland.measures.sharing import once
from lowland.problem import Problem

_CHUNK = 1024  # samples at once, at most


@dataclass(frozen=True)
class SampleGradients:
    """Moments over training samples k of the gradients g_k of their own losses, in float64."""

    mean: dict[str, Tensor]  # G = mean g_k, by parameter name
    squares: dict[str, Tensor]  # mean g_k^2, the diagonal of the empirical Fisher matrix
    along: float  # mean (w . g_k)^2


@once(Work(fishers=2, gradients=1))  # the pass along the weights is one like that of the squares
def sample_gradients(problem: Problem) -> SampleGradients:
    """Exact: by structure for layers that can be seen through, sample by sample for the rest."""
    squares = exact_diagonal(problem, list(parameters(problem).values()), "fisher")
    seen = list(squares)
    unseen = {name: p for name, p in problem.params.items() if name not in squares}
    more = {name: torch.zeros_like(p, dtype=torch.float64) for name, p in unseen.items()}
    along = torch.zeros((), dtype=torch.float64, device=problem.device)
    each = 3 * 8 * max(1, sum(p.numel() for p in unseen.values()))
    _, mean = problem.gradient()
    with problem.measuring():
        for batch in problem.batches("train", min(_CHUNK, samples_within(problem, each))):
            dots = torch.zeros(len(batch), dtype=torch.float64, device=problem.device)
            if seen:
                dots += _along_weights(problem, batch, seen)
            for name, g in (_one_by_one(problem, unseen, batch) if unseen else {}).items():
                more[name] += g.double().square().sum(0)
                dots += (g * unseen[name]).view(len(g), -1).sum(1)
            along += dots.detach().square().sum()
        count = problem.count()
        squares.update({name: total(s) / count for name, s in more.items()})
        squares = {name: squares[name] for name in problem.params}
        return SampleGradients(mean, squares, float(total(along) / count))


def _along_weights(problem: Problem, batch: Batch, names: list[str]) -> Tensor:
    """``w . g_k`` of each sample over parameters that can be seen through, (n,).

    A use is linear in its parameter, so its share is that of its outputs.
    """
    forward = ForwardPass(problem, batch, names)
    if forward.opaque:
        name, reason = next(iter(forward.opaque.items()))
        raise InputError(f"parameter {name!r} {reason}")
    losses = problem.loss(forward.outputs, batch.targets)
    slopes = iter(gradients(losses, [use for name in names for use in forward.uses[name]]))
    dots = torch.zeros_like(losses, dtype=torch.float64)
    for name in names:
        w = problem.params[name].flatten()
        for i, use in enumerate(forward.uses[name]):
            delta = forward.by_sample(name, i, next(slopes).unsqueeze(0))[:, 0]
            x, own = forward.inputs(name)[i], w[use.places]
            if use.places.ndim == 3:
                dots += torch.einsum("ntgo,goi,ntgi->n", delta, own, x)
            else:
                dots += (delta * x * own).sum((1, 2))
    return dots.detach()


def _one_by_one(problem: Problem, chosen: dict[str, Tensor], batch: Batch) -> dict[str, Tensor]:
    """The gradient of every sample's own loss with respect to the chosen parameters, (n, ...)."""

    def loss(params: dict[str, Tensor], inputs: Inputs, target: Tensor) -> Tensor:
        one = Batch(inputs, target).map(lambda t: t.unsqueeze(0))
        return problem.batch_losses(one, params)[0]

    try:
        return torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))(
            chosen, batch.inputs, batch.targets
        )
    except (RuntimeError, InputError):  # some operations (LSTM) cannot be vectorised
        leaves = {name: p.clone().requires_grad_() for name, p in chosen.items()}
        rows = [
            torch.autograd.grad(
                problem.batch_losses(one, leaves).sum(),
                list(leaves.values()),
                materialize_grads=True,
            )
            for one in batch.split(1)
        ]
        return {n: torch.stack(g) for n, g in zip(leaves, zip(*rows, strict=True), strict=True)}
