"""What measures of single samples' gradients share: their first and second moments."""

from dataclasses import dataclass

import torch
from torch import Tensor

from lowland.batches import Batch, Inputs
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


@once
def sample_gradients(problem: Problem) -> SampleGradients:
    """Exact: by structure for layers that can be seen through, sample by sample for the rest."""
    squares = exact_diagonal(problem, list(parameters(problem).values()), "fisher")
    unseen = {name: p for name, p in problem.params.items() if name not in squares}
    sums = {name: torch.zeros_like(p, dtype=torch.float64) for name, p in problem.params.items()}
    more = {name: torch.zeros_like(p, dtype=torch.float64) for name, p in unseen.items()}
    along = torch.zeros((), dtype=torch.float64, device=problem.device)
    each = 3 * 8 * max(1, sum(p.numel() for p in unseen.values()))
    with problem.measuring():
        for batch in problem.batches("train", min(_CHUNK, samples_within(problem, each))):
            seen = ForwardPass(problem, batch, list(problem.params))
            losses = problem.loss(seen.outputs, batch.targets)
            if not losses.requires_grad:
                raise InputError(f"loss {problem.loss.name!r} has no gradient")
            uses = [use for name in squares for use in seen.uses[name]]
            of_uses = iter(gradients(losses, uses))
            of_leaves = torch.autograd.grad(
                losses.sum(), list(seen.leaves.values()), materialize_grads=True
            )
            for name, g in zip(sums, of_leaves, strict=True):
                sums[name] += g
            # A use is linear in its parameter, so its share of w . g_k is that of its outputs.
            dots = torch.zeros_like(losses, dtype=torch.float64)
            for name in squares:
                w = problem.params[name].flatten()
                for i, use in enumerate(seen.uses[name]):
                    delta = seen.by_sample(name, i, next(of_uses).unsqueeze(0))[:, 0]
                    x, own = seen.inputs(name)[i], w[use.places]
                    if use.places.ndim == 3:
                        dots += torch.einsum("ntgo,goi,ntgi->n", delta, own, x)
                    else:
                        dots += (delta * x * own).sum((1, 2))
            for name, g in (_one_by_one(problem, unseen, batch) if unseen else {}).items():
                more[name] += g.double().square().sum(0)
                dots += (g * unseen[name]).view(len(g), -1).sum(1)
            along += dots.detach().square().sum()
        count = problem.count()
        squares.update({name: total(s) / count for name, s in more.items()})
        return SampleGradients(
            {name: total(s) / count for name, s in sums.items()},
            {name: squares[name] for name in problem.params},
            float(total(along) / count),
        )


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
