"""Computing in another precision than a model was written for."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

_NARROWER = {
    torch.float64: (torch.float32, torch.float16, torch.bfloat16, torch.cfloat, torch.chalf),
    torch.float32: (torch.float16, torch.bfloat16, torch.chalf),
}
_CASTS = (Tensor.float, Tensor.half, Tensor.bfloat16)
_COMPLEX_CASTS = (Tensor.cfloat, Tensor.chalf)  # type: ignore[attr-defined]


def in_precision(t: Tensor, dtype: torch.dtype) -> Tensor:
    """Real numbers in ``dtype``, complex ones in as many digits, and whole ones as they are."""
    if t.is_complex():
        return t.to(dtype.to_complex())
    return t.to(dtype) if t.is_floating_point() else t


@contextlib.contextmanager
def all_in(dtype: torch.dtype) -> Iterator[None]:
    """Let nothing be computed in fewer digits than those of ``dtype``.

    Forward passes often name a precision: ``images.float() / 255``, ``torch.zeros(n, hidden)`` for
    a first state, a softmax in float32; or they hold tensors that are no buffers (``self.mask``,
    constants of a file). In a copy of the model of more digits they would fail, or round where
    differences of gradients are taken.
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
        self.dtype, self.complex = dtype, dtype.to_complex()
        self.narrower = _NARROWER.get(dtype, ())

    def __torch_function__(
        self, func: Callable, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _CASTS:
            return args[0].to(self.dtype, **kwargs)
        if func in _COMPLEX_CASTS:
            return args[0].to(self.complex, **kwargs)
        tensors = [t for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
        kinds = {t.dtype for t in tensors}
        if not kinds.isdisjoint((self.dtype, self.complex)) and not kinds.isdisjoint(self.narrower):
            written = args[:1] if _writes(func) else ()  # where it is, as it is
            args, kwargs = pytree.tree_map_only(Tensor, self._widened, (args, kwargs))
            args = (*written, *args[len(written) :])
        wide = {n: self._wide(v) if isinstance(v, torch.dtype) else v for n, v in kwargs.items()}
        return func(*(self._wide(v) if isinstance(v, torch.dtype) else v for v in args), **wide)

    def _widened(self, t: Tensor) -> Tensor:
        return in_precision(t, self.dtype) if t.dtype in self.narrower else t

    def _wide(self, asked: torch.dtype) -> torch.dtype:
        if asked not in self.narrower:
            return asked
        return self.complex if asked.is_complex else self.dtype


def _writes(func: Callable) -> bool:
    """Whether a function changes its first argument, or sets an attribute of it."""
    name = getattr(func, "__name__", "")
    return name in ("__set__", "__setitem__") or (name.endswith("_") and name[:2] != "__")
