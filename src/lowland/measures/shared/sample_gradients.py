"""What measures of single samples' gradients share: their first and second moments."""

from dataclasses import dataclass

import torch
from torch import Tensor

from lowland.batches import Batch, Inputs
from lowland.budget import Work
from lowland.curvature import fisher_moments, samples_within
from lowland.distributed import total
from lowland.errors import InputError
from lowland.measures.shared.neighbourhood import neighbourhood
from lowland.measures.sharing import once
from lowland.problem import Problem

_CHUNK = 1024  # samples at once, at most


@dataclass(frozen=True)
class SampleGradients:
    """Moments over training samples k of the gradients g_k of their own losses, in float64."""

    mean: dict[str, Tensor]  # G = mean g_k, by parameter name
    squares: dict[str, Tensor]  # mean g_k^2, the diagonal of the empirical Fisher matrix
    along: float  # mean (w . g_k)^2


@once(Work(fishers=1, needs=(neighbourhood,)))
def sample_gradients(problem: Problem) -> SampleGradients:
    """Exact: by structure for layers that can be seen through, sample by sample for the rest."""
    seen = fisher_moments(problem)
    squares, dots = dict(seen.squares), seen.along.clone()
    unseen = {name: p for name, p in problem.params.items() if name not in squares}
    _, slope = neighbourhood(problem).origin
    slopes = slope.split([p.numel() for p in problem.params.values()])
    mean = {n: s.view_as(p) for (n, p), s in zip(problem.params.items(), slopes, strict=True)}
    with problem.measuring():
        if unseen:
            more = {name: torch.zeros_like(p, dtype=torch.float64) for name, p in unseen.items()}
            each, done = 3 * 8 * sum(p.numel() for p in unseen.values()), 0
            for batch in problem.batches("train", min(_CHUNK, samples_within(problem, each))):
                for name, g in _one_by_one(problem, unseen, batch).items():
                    more[name] += g.double().square().sum(0)
                    dots[done : done + len(batch)] += (g * unseen[name]).flatten(1).sum(1)
                done += len(batch)
            squares.update({name: total(s) / problem.count() for name, s in more.items()})
        squares = {name: squares[name] for name in problem.params}
        along = float(total(dots.square().sum()) / problem.count())
    return SampleGradients(mean, squares, along)


def _one_by_one(problem: Problem, chosen: dict[str, Tensor], batch: Batch) -> dict[str, Tensor]:
    """The gradient of every sample's own loss with respect to the chosen parameters, (n, ...)."""

    def loss(params: dict[str, Tensor], inputs: Inputs, target: Tensor) -> Tensor:
        sample = Batch(inputs, target).map(lambda t: t.unsqueeze(0))
        return problem.batch_losses(sample, params)[0]

    try:
        return torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))(
            chosen, batch.inputs, batch.targets
        )
    except (RuntimeError, InputError):  # some operations (LSTM) cannot be vectorised
        leaves = {name: p.clone().requires_grad_() for name, p in chosen.items()}
        rows = [
            torch.autograd.grad(
                problem.batch_losses(sample, leaves).sum(),
                list(leaves.values()),
                materialize_grads=True,
            )
            for sample in batch.split(1)
        ]
        return {n: torch.stack(g) for n, g in zip(leaves, zip(*rows, strict=True), strict=True)}
