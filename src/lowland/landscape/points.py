"""Points of weight space that lie on a line, a plane or a curve: a centre and directions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

Weights = Mapping[str, Tensor]


@dataclass(frozen=True)
class Frame:
    """The points ``w + c_1 d_1 + ... + c_k d_k`` for all coefficients c."""

    centre: Weights
    directions: tuple[Weights, ...]

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The parameters that differ between points; the others stay as the model has them."""
        return tuple(
            name for name in self.centre if any(name in d for d in self.directions)
        ) or tuple(self.centre)

    def point(self, coefficients: Sequence[float]) -> dict[str, Tensor]:
        """The weights at one point."""
        c = torch.tensor([list(map(float, coefficients))], dtype=torch.float64)
        return {name: self.stack(name, c)[0] for name in self.names}

    def stack(self, name: str, coefficients: Tensor) -> Tensor:
        """One parameter at many points, (points, *shape), for coefficients (points, k)."""
        w = self.centre[name]
        c = coefficients.to(w.device, w.dtype)
        total = w.expand(len(c), *w.shape)
        for k, direction in enumerate(self.directions):
            if name in direction:
                column = c[:, k].view(-1, *[1] * w.ndim)
                total = torch.addcmul(total, column, direction[name].to(w))
        return total if total.is_contiguous() else total.contiguous()


@dataclass(frozen=True)
class Values:
    """What was found at points, one number each; NaN at holes."""

    train: np.ndarray  # (points,)
    test: np.ndarray | None
    train_error: np.ndarray | None
    test_error: np.ndarray | None

    FIELDS = ("train", "test", "train_error", "test_error")

    def shaped(self, *shape: int) -> dict[str, np.ndarray | None]:
        """All arrays by name, in another shape."""
        arrays = {name: getattr(self, name) for name in self.FIELDS}
        return {n: None if a is None else a.reshape(shape) for n, a in arrays.items()}

    @classmethod
    def joined(cls, parts: "Sequence[Values]") -> "Values":
        """The values of several groups of points, one after the other."""
        columns: list[Any] = []
        for name in cls.FIELDS:
            arrays = [getattr(part, name) for part in parts]
            columns.append(None if arrays[0] is None else np.concatenate(arrays))
        return cls(*columns)


def dot(a: Weights, b: Weights) -> float:
    """The inner product over the parameters that both have, in float64."""
    return sum(float((a[n].double() * b[n].double()).sum()) for n in a if n in b)


def norm(a: Weights) -> float:
    """The Euclidean length over all parameters."""
    return dot(a, a) ** 0.5


def difference(a: Weights, b: Weights) -> dict[str, Tensor]:
    """``a - b``."""
    return {name: a[name] - b[name] for name in b}
