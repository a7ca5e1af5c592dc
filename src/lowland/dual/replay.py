"""The loss when a layer's outputs are replaced, run through the model itself."""

import torch
from torch import Tensor, nn

from lowland.batches import Batch
from lowland.curvature.layers import MatrixLayer
from lowland.problem import Problem


def losses_with_outputs(problem: Problem, at: MatrixLayer, batch: Batch, a: Tensor) -> Tensor:
    """The losses (k,) of a batch when the layer gives ``a`` instead of its own outputs."""

    def replace(module: nn.Module, args: tuple, output: Tensor) -> Tensor:
        return a

    # First of all hooks: what the model's own ones do to the outputs they still do.
    handle = at.module.register_forward_hook(replace, prepend=True)
    try:
        return problem.loss(problem.outputs(batch.inputs), batch.targets)
    finally:
        handle.remove()


def losses_with_each(problem: Problem, at: MatrixLayer, batch: Batch, many: Tensor) -> Tensor:
    """The same for each of b replacements, (b, k, ...) to (b, k).

    What comes before the layer runs once for all of them, where vmap knows the model's operations.
    """
    try:
        return torch.func.vmap(lambda a: losses_with_outputs(problem, at, batch, a))(many)
    except RuntimeError:
        return torch.stack([losses_with_outputs(problem, at, batch, a) for a in many])
