"""The loss at other values of one parameter, or of its outputs, run through the model itself."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from lowland.batches import Batch, Inputs
from lowland.curvature import Layer
from lowland.errors import InputError
from lowland.problem import Problem


def losses_at_own(problem: Problem, batch: Batch, weights: dict[str, Tensor]) -> Tensor:
    """The loss of each sample at weights of its own, by parameter: (k, *weight) to (k,)."""

    def loss(own: dict[str, Tensor], inputs: Inputs, target: Tensor) -> Tensor:
        sample = Batch(inputs, target).map(lambda t: t.unsqueeze(0))
        return problem.batch_losses(sample, own)[0]

    try:
        return torch.func.vmap(loss)(weights, batch.inputs, batch.targets)
    except (RuntimeError, ValueError):  # what vmap does not know goes sample by sample
        every = enumerate(batch.split(1))
        return torch.cat(
            [
                problem.batch_losses(sample, {name: w[k] for name, w in weights.items()})
                for k, sample in every
            ]
        )


def losses_with_own_changes(
    problem: Problem, layer: Layer, batch: Batch, changes: Tensor
) -> Tensor | None:
    """The loss of each sample with its own change of a layer's outputs: (k, outputs) to (k,).

    None where nothing can be added to these outputs, or vmap does not know the model's operations.
    """

    def loss(change: Tensor, inputs: Inputs, target: Tensor) -> Tensor:
        sample = Batch(inputs, target).map(lambda t: t.unsqueeze(0))
        return _losses_changed(problem, layer, sample, change)[0]

    try:
        return torch.func.vmap(loss)(changes, batch.inputs, batch.targets)
    except (InputError, RuntimeError, ValueError):
        return None


def losses_at_each(problem: Problem, name: str, batch: Batch, weights: Tensor) -> Tensor:
    """The losses of all samples at each of b weights: (b, *weight) to (b, k).

    What comes before the layer runs once for all of them, where vmap knows the model's operations.
    """
    try:
        return torch.func.vmap(lambda weight: _losses(problem, name, batch, weight))(weights)
    except (RuntimeError, ValueError):
        return torch.stack([_losses(problem, name, batch, weight) for weight in weights])


def losses_with_changes(problem: Problem, layer: Layer, batch: Batch, changes: Tensor) -> Tensor:
    """The losses when each of b changes is added to a layer's outputs: (b, *outputs) to (b, k)."""

    def losses(change: Tensor) -> Tensor:
        return _losses_changed(problem, layer, batch, change)

    try:
        return torch.func.vmap(losses)(changes)
    except RuntimeError:
        return torch.stack([losses(change) for change in changes])


def _losses_changed(problem: Problem, layer: Layer, batch: Batch, change: Tensor) -> Tensor:
    changed = _Changed(problem.params[layer.parameter], change)
    with changed:
        losses = _losses(problem, layer.parameter, batch, changed.parameter)
    if changed.calls != 1:
        raise InputError(
            f"layer {layer.name!r} is not computed by one call of torch (dense layer, "
            "convolution, matrix product), so nothing can be added to its outputs"
        )
    return losses


class _Changed(TorchFunctionMode):
    """While active, adds a change to the outputs of torch's products with one parameter."""

    def __init__(self, parameter: Tensor, change: Tensor) -> None:
        super().__init__()
        self.parameter, self.change, self.calls = parameter, change, 0

    def __torch_function__(
        self, function: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        outputs = function(*args, **(kwargs or {}))
        given = (*args, *(kwargs or {}).values())
        if function in _PRODUCTS and any(value is self.parameter for value in given):
            self.calls += 1
            return outputs + self.change.view(outputs.shape)
        return outputs


_PRODUCTS = {
    *(F.linear, torch.addmm, torch.mm, torch.matmul, Tensor.matmul, Tensor.__matmul__),
    *(torch.conv1d, torch.conv2d, torch.conv3d, torch.embedding),
    *(torch.conv_transpose1d, torch.conv_transpose2d, torch.conv_transpose3d),
}


def _losses(problem: Problem, name: str, batch: Batch, weight: Tensor) -> Tensor:
    return problem.batch_losses(batch, {name: weight})


def shaped(problem: Problem, layer: Layer, matrices: Tensor) -> Tensor:
    """Vectors (..., M) in the order of the layer's matrices, as weights that the model takes."""
    weight = problem.params[layer.parameter]
    flat = layer.flat(matrices.movedim(-1, 0).unflatten(0, layer.shape)).movedim(0, -1)
    return flat.unflatten(-1, weight.shape).to(weight.dtype)
