"""Layers that see their weight only through products with it: dense layers and convolutions.

Such a layer computes ``a_t = W x_t`` at each of T positions of a sample (T = 1 for a plain dense
layer, the tokens of a sequence, or the patches that a convolution unfolds). That is all the
structure that exact curvature and the activity-weight duality need.
"""

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor, nn

from lowland.errors import InputError
from lowland.problem import Problem

LayerModule = nn.Linear | nn.Conv1d | nn.Conv2d


@dataclass(frozen=True)
class Layer:
    """One layer of the model, with its weight as G groups of (out, in) matrices."""

    name: str
    module: LayerModule

    @property
    def weight_name(self) -> str:
        """The weight's name among the model's parameters."""
        return f"{self.name}.weight" if self.name else "weight"

    @property
    def groups(self) -> int:
        """How many blocks of channels a convolution keeps apart; 1 for a dense layer."""
        return 1 if isinstance(self.module, nn.Linear) else self.module.groups

    @property
    def shape(self) -> tuple[int, int, int]:
        """(groups, outputs per group, inputs per group), kernel positions counted as inputs."""
        out = self.module.weight.shape[0]
        return self.groups, out // self.groups, math.prod(self.module.weight.shape[1:])

    def inputs(self, x: Tensor) -> Tensor:
        """What multiplies the weight: (N, T, G, in)."""
        if isinstance(self.module, nn.Linear):
            return x.reshape(len(x), -1, 1, x.shape[-1])
        conv = self.module
        mode = "constant" if conv.padding_mode == "zeros" else conv.padding_mode
        x = F.pad(x, conv._reversed_padding_repeated_twice, mode=mode)
        kernel, dilation, stride = conv.kernel_size, conv.dilation, conv.stride
        if isinstance(conv, nn.Conv1d):  # as a convolution over an image of height 1
            x, kernel, dilation, stride = x.unsqueeze(2), (1, *kernel), (1, *dilation), (1, *stride)
        patches = F.unfold(x, kernel, dilation, 0, stride)  # (N, channels * kernel, T)
        return patches.unflatten(1, (self.groups, -1)).permute(0, 3, 1, 2)

    def outputs(self, a: Tensor) -> Tensor:
        """The layer's outputs (or gradients with respect to them) as (N, T, G, out)."""
        if not isinstance(self.module, nn.Linear):
            a = a.flatten(2).transpose(1, 2)  # (N, T, channels)
        return a.reshape(len(a), -1, self.groups, self.shape[1])


def layers(problem: Problem) -> dict[str, Layer]:
    """Every dense or convolutional layer of the model by name, in the order it was built."""
    return {
        name: Layer(name, module)
        for name, module in problem.model.named_modules()
        if isinstance(module, LayerModule) and name_of_weight(name) in problem.params
    }


def name_of_weight(name: str) -> str:
    """The parameter name of a layer's weight; a model may itself be the layer."""
    return f"{name}.weight" if name else "weight"


def layer(problem: Problem, name: str) -> Layer:
    """The layer called ``name``, or an error that lists those there are."""
    known = layers(problem)
    if name in known:
        return known[name]
    modules = dict(problem.model.named_modules())
    listed = ", ".join(map(repr, known)) or "none"
    if name not in modules:
        raise InputError(f"there is no layer {name!r}; dense and convolutional layers: {listed}")
    kind = type(modules[name]).__name__
    raise InputError(
        f"layer {name!r} is {kind} and has no weight matrix; layers with one: {listed}"
    )


@dataclass
class Tap:
    """What one layer saw and gave in a forward pass."""

    layer: Layer
    x: Tensor
    a: Tensor


@contextlib.contextmanager
def tapped(chosen: list[Layer]) -> Iterator[dict[str, Tap]]:
    """Record each layer's input and output during one forward pass.

    The outputs become points that the model's outputs can be differentiated by: since parameters
    enter as constants, the autograd graph then holds only what comes after the first layer.
    """
    taps: dict[str, Tap] = {}

    def hook(at: Layer):  # type: ignore[no-untyped-def]
        def record(module: nn.Module, args: tuple, kwargs: dict, output: Tensor) -> Tensor:
            if at.name in taps:
                raise InputError(
                    f"layer {at.name!r} is used more than once in a forward pass, so its weight "
                    "has no single input; choose another layer"
                )
            x = args[0] if args else kwargs["input"]
            if not output.requires_grad:
                output = output.detach().requires_grad_()
            taps[at.name] = Tap(at, x.detach(), output)
            return output

        return record

    handles = [
        at.module.register_forward_hook(hook(at), with_kwargs=True, prepend=True) for at in chosen
    ]
    try:
        yield taps
    finally:
        for handle in handles:
            handle.remove()
