"""Convolutions in any number of dimensions, strided, dilated, grouped or transposed.

A convolution multiplies its kernel, as a matrix of outputs by (inputs x kernel positions), with the
patches of its input. A transposed one is a plain one of its input with zeros put between the
entries, by the flipped kernel.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lowland.curvature.uses.elementwise import ones
from lowland.curvature.uses.use import Product, output_shape, use_of


@use_of("ConvolutionBackward0", 1)
def kernel(node: Any, shape: torch.Size) -> Product:
    """The kernel, (out, in / groups, *size), or (in, out / groups, *size) if transposed."""
    groups, size = node._saved_groups, shape[2:]
    stride, padding, dilation = node._saved_stride, node._saved_padding, node._saved_dilation
    x = node._saved_input
    if node._saved_transposed:
        x = _stuffed(x, stride)
        reach = [d * (k - 1) for d, k in zip(dilation, size, strict=True)]
        before = [r - p for r, p in zip(reach, padding, strict=True)]
        after = [b + o for b, o in zip(before, node._saved_output_padding, strict=True)]
        stride = [1] * len(size)
    else:
        before = after = list(padding)
    pads = [p for ends in zip(reversed(before), reversed(after), strict=True) for p in ends]
    x = _patches(F.pad(x, pads), size, stride, dilation)  # (N, channels, T, K)
    x = x.unflatten(1, (groups, -1)).permute(0, 3, 1, 2, 4).flatten(3)  # (N, T, G, in K)

    def rows(a: Tensor) -> Tensor:
        return a.flatten(3).unflatten(2, (groups, -1)).permute(0, 1, 4, 2, 3)

    def entries(w: Tensor) -> Tensor:
        if not node._saved_transposed:
            return w.reshape(groups, shape[0] // groups, -1)
        w = w.flip(list(range(2, w.ndim))).unflatten(0, (groups, -1))  # (G, in, out, *size)
        return w.transpose(1, 2).flatten(2)

    return Product("convolution", x, rows, entries)


@use_of("ConvolutionBackward0", 2)
def bias(node: Any, shape: torch.Size) -> Product:
    """The bias, (out,): the same at every position."""
    n, channels, *size = output_shape(node)
    x = ones(node._saved_input, n, math.prod(size), channels)
    return Product("shift", x, lambda a: a.flatten(3).mT, lambda b: b, constant=True)


def _stuffed(x: Tensor, stride: Sequence[int]) -> Tensor:
    """With ``stride - 1`` zeros between neighbours, along every dimension of the image."""
    for axis, step in enumerate(stride, 2):
        if step > 1:
            wide = x.new_zeros(*x.shape[: axis + 1], step, *x.shape[axis + 1 :])
            wide.select(axis + 1, 0).copy_(x)
            x = wide.flatten(axis, axis + 1).narrow(axis, 0, (x.shape[axis] - 1) * step + 1)
    return x


def _patches(
    x: Tensor, size: Sequence[int], stride: Sequence[int], dilation: Sequence[int]
) -> Tensor:
    """(N, channels, *image) -> (N, channels, T, K): what the kernel meets at each position."""
    for axis, (k, s, d) in enumerate(zip(size, stride, dilation, strict=True), 2):
        x = x.unfold(axis, d * (k - 1) + 1, s)[..., ::d]
    dimensions = len(size)
    return x.flatten(2, 1 + dimensions).flatten(3)
