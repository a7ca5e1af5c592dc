"""All that the algorithms of this room may see of a matrix, and a dense matrix seen that way."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


class Operator(Protocol):
    """All that an algorithm may see of a matrix."""

    @property
    def size(self) -> int: ...  # noqa: D102
    @property
    def dtype(self) -> torch.dtype: ...  # noqa: D102
    @property
    def device(self) -> torch.device: ...  # noqa: D102
    def __matmul__(self, V: Tensor) -> Tensor: ...  # (n,) -> (n,) or (n, k) -> (n, k)


_MEMORY = 1 << 30  # bytes, for an operator that does not say


def columns_within(A: Operator) -> int:
    """How many vectors of the operator's length its ``memory`` may hold at once, in bytes."""
    return getattr(A, "memory", _MEMORY) // (A.size * A.dtype.itemsize)


@dataclass(frozen=True)
class Dense:
    """A symmetric matrix as an operator."""

    matrix: Tensor

    @property
    def size(self) -> int:
        """Number of rows."""
        return len(self.matrix)

    @property
    def dtype(self) -> torch.dtype:
        """Precision of the matrix."""
        return self.matrix.dtype

    @property
    def device(self) -> torch.device:
        """Where the matrix lives."""
        return self.matrix.device

    def __matmul__(self, V: Tensor) -> Tensor:
        return self.matrix @ V
