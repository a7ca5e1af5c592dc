"""A layer's activities: what it sees of each sample, and the loss when they are replaced."""

import torch
from torch import Tensor, nn

from lowland.curvature.layers import Layer, tapped
from lowland.errors import InputError
from lowland.problem import Problem


def activities(problem: Problem, at: Layer, split: str) -> tuple[Tensor, Tensor]:
    """The layer's inputs x (N, in) and the losses (N,) of every sample, both in float64."""
    xs, losses = [], []
    with problem.measuring(), torch.no_grad():
        for batch in problem.batches(split):
            with tapped([at]) as taps:
                z = problem.outputs(batch.inputs)
            if at.name not in taps:
                raise InputError(
                    f"layer {at.name!r} takes no part in the forward pass; choose another layer"
                )
            x = taps[at.name].x
            if x.ndim != 2:
                raise InputError(
                    f"layer {at.name!r} sees inputs of shape {tuple(x.shape[1:])} per sample; the "
                    "duality is computed for layers that see one vector per sample"
                )
            xs.append(x)
            losses.append(problem.loss(z, batch.targets))
    return torch.cat(xs).double(), torch.cat(losses).double()


def losses_with_outputs(problem: Problem, at: Layer, samples: Tensor, a: Tensor) -> Tensor:
    """The losses of training ``samples`` when the layer gives ``a`` (K, out) instead of its own."""
    parts = []
    size = problem.train.batch_size
    with problem.measuring(), torch.no_grad():
        for indices, outputs in zip(samples.split(size), a.split(size), strict=True):
            batch = problem.place(problem.train.take(indices))

            def replace(
                module: nn.Module, args: tuple, output: Tensor, a: Tensor = outputs
            ) -> Tensor:
                return a.to(output.dtype)

            handle = at.module.register_forward_hook(replace)
            try:
                parts.append(problem.loss(problem.outputs(batch.inputs), batch.targets))
            finally:
                handle.remove()
    return torch.cat(parts).double()
