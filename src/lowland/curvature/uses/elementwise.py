"""Parameters that scale or shift entry by entry: biases, gains, position embeddings, PReLU."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from lowland.curvature.uses.use import Product, output_shape, use_of


def ones(like: Tensor, *shape: int) -> Tensor:
    """A tensor of ones that takes the memory of a single one."""
    return torch.ones((), dtype=like.dtype, device=like.device).expand(shape)


def broadcast(operation: str, x: Tensor, shape: torch.Size, constant: bool = False) -> Product:
    """``a = w * x`` for w of this ``shape`` broadcast to that of x.

    Entries of w lie along those dimensions of x in which w has more than one; the others are rows.
    """
    own = [i for i in range(x.ndim) if _size(shape, i - x.ndim) > 1]
    other = [i for i in range(x.ndim) if i not in own]

    def arranged(lead: int) -> Callable[[Tensor], Tensor]:
        order = [*range(lead), *(lead + i for i in other), *(lead + i for i in own)]

        def arrange(t: Tensor) -> Tensor:
            t = t.permute(order)
            head, m = t.shape[:lead], math.prod(x.shape[i] for i in own)
            return t.reshape(*head, -1, 1, m)

        return arrange

    return Product(operation, arranged(0)(x), arranged(1), lambda w: w.flatten(), constant)


def _size(shape: torch.Size, i: int) -> int:
    """The i-th size from the end, 1 beyond the front."""
    return shape[i] if -i <= len(shape) else 1


@use_of("MulBackward0", 0)
def mul_left(node: Any, shape: torch.Size) -> Product:
    """``w * x``."""
    return broadcast("scale", node._saved_other.expand(output_shape(node)), shape)


@use_of("MulBackward0", 1)
def mul_right(node: Any, shape: torch.Size) -> Product:
    """``x * w``."""
    return broadcast("scale", node._saved_self.expand(output_shape(node)), shape)


@use_of("DivBackward0", 0)
def div(node: Any, shape: torch.Size) -> Product:
    """``w / x``."""
    return broadcast("scale", (1 / node._saved_other).expand(output_shape(node)), shape)


@use_of("PreluKernelBackward0", 1)
def prelu(node: Any, shape: torch.Size) -> Product:
    """The slope of PReLU, which multiplies what is below zero."""
    return broadcast("scale", node._saved_self.clamp(max=0), shape)


def _shift(sign: Callable[[Any], float]) -> Callable[[Any, torch.Size], Product]:
    def recognise(node: Any, shape: torch.Size) -> Product:
        meta = node._input_metadata[0]
        x = torch.full((), float(sign(node)), dtype=meta.dtype, device=meta.device)
        return broadcast("shift", x.expand(output_shape(node)), shape, constant=True)

    return recognise


use_of("AddBackward0", 0)(_shift(lambda node: 1))
use_of("AddBackward0", 1)(_shift(lambda node: node._saved_alpha))
use_of("SubBackward0", 0)(_shift(lambda node: 1))
use_of("SubBackward0", 1)(_shift(lambda node: -node._saved_alpha))
use_of("ExpandBackward0", 0)(_shift(lambda node: 1))
use_of("AddmmBackward0", 0)(_shift(lambda node: node._saved_beta))
