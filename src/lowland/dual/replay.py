"""The loss at other values of one parameter, run through the model itself."""

import torch
from torch import Tensor

from lowland.batches import Batch, Inputs
from lowland.curvature.layers import Layer
from lowland.problem import Problem


def losses_at_own(problem: Problem, name: str, batch: Batch, weights: Tensor) -> Tensor:
    """The loss of each sample at each of b weights of its own: (b, k, *weight) to (b, k)."""

    def loss(weight: Tensor, inputs: Inputs, target: Tensor) -> Tensor:
        sample = Batch(inputs, target).map(lambda t: t.unsqueeze(0))
        return _losses(problem, name, sample, weight)[0]

    try:
        of_batch = torch.func.vmap(loss)
        every = torch.func.vmap(of_batch, in_dims=(0, None, None))
        return every(weights, batch.inputs, batch.targets)
    except (RuntimeError, ValueError):  # what vmap does not know goes sample by sample
        columns = [
            losses_at_each(problem, name, sample, own)
            for own, sample in zip(weights.unbind(1), batch.split(1), strict=True)
        ]
        return torch.cat(columns, 1)


def losses_at_each(problem: Problem, name: str, batch: Batch, weights: Tensor) -> Tensor:
    """The losses of all samples at each of b weights: (b, *weight) to (b, k).

    What comes before the layer runs once for all of them, where vmap knows the model's operations.
    """
    try:
        return torch.func.vmap(lambda weight: _losses(problem, name, batch, weight))(weights)
    except (RuntimeError, ValueError):
        return torch.stack([_losses(problem, name, batch, weight) for weight in weights])


def _losses(problem: Problem, name: str, batch: Batch, weight: Tensor) -> Tensor:
    return problem.loss(problem.outputs(batch.inputs, {name: weight}), batch.targets)


def shaped(problem: Problem, at: Layer, matrices: Tensor) -> Tensor:
    """Vectors (..., M) in the order of the layer's matrices, as weights that the model takes."""
    weight = problem.params[at.parameter]
    flat = at.flat(matrices.movedim(-1, 0).unflatten(0, at.shape)).movedim(0, -1)
    return flat.unflatten(-1, weight.shape).to(weight.dtype)
