"""The scale and the shift of normalisations: LayerNorm, GroupNorm, BatchNorm in eval mode."""

import math
from typing import Any

import torch
from torch import Tensor

from lowland.curvature.uses.elementwise import broadcast, ones
from lowland.curvature.uses.use import Product, output_shape, use_of


def _by_channel(operation: str, x: Tensor, constant: bool = False) -> Product:
    """``a = w * x`` for x (N, channels, ...) and one entry of w a channel."""
    n, channels, *size = x.shape
    shape = (n, math.prod(size), channels)

    def rows(a: Tensor) -> Tensor:
        return a.movedim(2, -1).reshape(len(a), *shape)

    return Product(operation, x.movedim(1, -1).reshape(shape), rows, lambda w: w, constant)


@use_of("NativeLayerNormBackward0", 1)
def layer_norm(node: Any, shape: torch.Size) -> Product:
    """The scale of LayerNorm."""
    x = (node._saved_input - node._saved_result1) * node._saved_result2
    return broadcast("normalisation", x, shape)


@use_of("NativeLayerNormBackward0", 2)
def layer_norm_shift(node: Any, shape: torch.Size) -> Product:
    """The shift of LayerNorm."""
    x = ones(node._saved_input, *output_shape(node))
    return broadcast("shift", x, shape, constant=True)


@use_of("NativeGroupNormBackward0", 1)
def group_norm(node: Any, shape: torch.Size) -> Product:
    """The scale of GroupNorm."""
    x, (n, groups) = node._saved_input, node._saved_result1.shape
    mean, rstd = (t.view(n, groups, 1) for t in (node._saved_result1, node._saved_result2))
    return _by_channel("normalisation", ((x.reshape(n, groups, -1) - mean) * rstd).view_as(x))


@use_of("NativeBatchNormBackward0", 1)
def batch_norm(node: Any, shape: torch.Size) -> Product | None:
    """The scale of BatchNorm by its running statistics; not linear by those of the batch."""
    if node._saved_training:
        return None
    x = node._saved_input
    mean, variance = (
        t.view(-1, *[1] * (x.ndim - 2)) for t in (node._saved_running_mean, node._saved_running_var)
    )
    return _by_channel("normalisation", (x - mean) * (variance + node._saved_eps).rsqrt())


def _channel_shift(node: Any, shape: torch.Size) -> Product:
    return _by_channel("shift", ones(node._saved_input, *output_shape(node)), constant=True)


use_of("NativeGroupNormBackward0", 2)(_channel_shift)
use_of("NativeBatchNormBackward0", 2)(_channel_shift)
