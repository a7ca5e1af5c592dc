"""Computing in another precision than a model was written for."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

_NARROWER = {
    torch.float64: (torch.float32, torch.float16, torch.bfloat16),
    torch.float32: (torch.float16, torch.bfloat16),
}
_CASTS = (Tensor.float, Tensor.half, Tensor.bfloat16)


@contextlib.contextmanager
def all_in(dtype: torch.dtype) -> Iterator[None]:
    """Let nothing be computed in fewer digits than those of ``dtype``.

    Forward passes often name a precision: ``images.float() / 255``, ``torch.zeros(n, hidden)`` for
    a first state, a softmax in float32. In a copy of the model of more digits they would fail, or
    round where differences of gradients are taken.
    """
    before = torch.get_default_dtype()
    try:
        torch.set_default_dtype(dtype)
        with _Widened(dtype):
            yield
    finally:
        torch.set_default_dtype(before)


class _Widened(TorchFunctionMode):
    """Puts one precision in the place of those that have fewer digits."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype, self.narrower = dtype, _NARROWER.get(dtype, ())

    def __torch_function__(
        self, func: Callable, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _CASTS:
            return args[0].to(self.dtype, **kwargs)
        wide = {name: self._wide(value) for name, value in kwargs.items()}
        return func(*(self._wide(value) for value in args), **wide)

    def _wide(self, value: Any) -> Any:
        is_narrow = isinstance(value, torch.dtype) and value in self.narrower
        return self.dtype if is_narrow else value
