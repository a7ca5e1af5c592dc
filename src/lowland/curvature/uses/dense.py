"""Matrix products: dense layers, attention projections, recurrent cells, einsum."""

from typing import Any

import torch
from torch import Tensor

from lowland.curvature.uses.use import Product, use_of

_OPERATION = "dense"


def _right(x: Tensor) -> Product:
    """``a = x w`` with rows x (R, in) and w (in, out)."""
    return Product(_OPERATION, x[:, None, None], lambda a: a[:, :, None, None], lambda w: w.T[None])


def _left(x: Tensor) -> Product:
    """``a = w x`` with columns x (in, R) and w (out, in)."""
    return Product(
        _OPERATION, x.T[:, None, None], lambda a: a.mT[:, :, None, None], lambda w: w[None]
    )


def _times(factor: float, x: Tensor) -> Tensor:
    return x if factor == 1 else factor * x  # without a copy, as nearly always


@use_of("AddmmBackward0", 2)
def addmm_right(node: Any, shape: torch.Size) -> Product:
    """``beta b + alpha x w``: ``nn.Linear`` with a bias, and the Conv1D of Transformers."""
    return _right(_times(node._saved_alpha, node._saved_mat1))


@use_of("AddmmBackward0", 1)
def addmm_left(node: Any, shape: torch.Size) -> Product:
    """``beta b + alpha w x``."""
    return _left(_times(node._saved_alpha, node._saved_mat2))


@use_of("MmBackward0", 1)
def mm_right(node: Any, shape: torch.Size) -> Product:
    """``x w``: ``nn.Linear`` without a bias, ``x @ w``."""
    return _right(node._saved_self)


@use_of("MmBackward0", 0)
def mm_left(node: Any, shape: torch.Size) -> Product:
    """``w x``."""
    return _left(node._saved_mat2)


@use_of("BmmBackward0", 1)
def bmm_right(node: Any, shape: torch.Size) -> Product:
    """``a_g = x_g w_g`` for G matrices, as ``einsum`` writes it: x (G, R, in), w (G, in, out)."""
    x = node._saved_self.transpose(0, 1)[:, None]
    return Product(_OPERATION, x, lambda a: a.transpose(1, 2)[:, :, None], lambda w: w.mT)


@use_of("BmmBackward0", 0)
def bmm_left(node: Any, shape: torch.Size) -> Product:
    """``a_g = w_g x_g``: x (G, in, R), w (G, out, in)."""
    x = node._saved_mat2.permute(2, 0, 1)[:, None]
    return Product(_OPERATION, x, lambda a: a.permute(0, 3, 1, 2)[:, :, None], lambda w: w)
