"""All that the algorithms of this room may see of a matrix, and a dense matrix seen that way."""

import math
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from lowland.errors import InputError


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

    def __post_init__(self) -> None:
        A = self.matrix
        if A.ndim != 2 or len(A) != A.shape[1] or not len(A) or not A.is_floating_point():
            raise InputError(
                "a matrix is square, of real floating-point numbers; got "
                f"{str(A.dtype).removeprefix('torch.')} {tuple(A.shape)}"
            )
        if not A.isfinite().all():
            raise InputError("the matrix holds NaN or infinite values")
        if float((A - A.T).abs().max()) > torch.finfo(A.dtype).eps ** 0.5 * float(A.abs().max()):
            raise InputError(
                "the matrix is not symmetric; for its symmetric part pass (A + A.T) / 2"
            )

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


class Scaled:
    """An operator over a power of two, such that its first product has entries near one.

    Small matrices, as of a loss of 1e-25 in single precision, have norms and residuals whose
    squares underflow. A power of two changes no digit of what does not.
    """

    def __init__(self, A: Operator) -> None:
        self._A, self._scale = A, 0.0

    @property
    def scale(self) -> float:
        """What results are to be multiplied by; 1 as long as all products are zero."""
        return self._scale or 1.0

    def __matmul__(self, V: Tensor) -> Tensor:
        W = self._A @ V
        size = 0.0 if self._scale else float(W.abs().max())
        if 0 < size < math.inf:
            self._scale = 2.0 ** (math.frexp(size)[1] - 1)
        return W / self.scale

    def __getattr__(self, name: str) -> Any:
        return getattr(self._A, name)
