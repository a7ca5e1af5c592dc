"""Weights that stay as they are stored, in half precision or in shards, and are widened when read.

A copy of a large model in float32, or of all its shards, may not fit where the model itself just
does. So a module that reads a parameter gets it whole, in the measured precision, for that one
operation, and what autograd would keep of it for the backward pass is its name: it is widened again
when the backward pass needs it. The numbers are those of a copy.
"""

import contextlib
import weakref
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from lowland.errors import InputError

_SHARDING = "torch.distributed.fsdp"  # where FSDP2's own hooks on modules come from
_WHOLE = "full_tensor"  # what distributed tensors have; importing DTensor to ask takes seconds
SHARDED = (
    "on a sharded model losses, gradients, products with the Hessian, GGN and Fisher matrices, "
    "eigsh, estimated traces and spectral densities are measured; this needs the whole model on "
    "one rank"
)


def is_sharded(model: nn.Module) -> bool:
    """Whether parameters are distributed tensors, as ``fully_shard`` makes them."""
    return any(hasattr(p, _WHOLE) for p in model.parameters())


def local(t: Tensor) -> Tensor:
    """What this rank holds of a tensor."""
    return t.to_local() if hasattr(t, _WHOLE) else t  # type: ignore[attr-defined]


class Stored:
    """The parameters of a model, each made whole in ``dtype`` whenever it is read."""

    def __init__(self, model: nn.Module, dtype: torch.dtype) -> None:
        fused = [n for n, m in model.named_modules() if isinstance(m, nn.RNNBase)]
        if fused:
            raise InputError(
                f"module {fused[0]!r} hands its weights to a fused operation and cannot be "
                "measured in place; pass Problem(memory=...) with more bytes, or the whole model"
            )
        self.model, self.dtype = model, dtype
        self._names = {id(p): n for n, p in model.named_parameters()}
        # A tensor that has the shape of a parameter and stands for it: NaN, so that nobody takes
        # it for the values, and one number in memory.
        self._marks = {
            n: torch.full((), torch.nan, dtype=dtype, device=p.device)
            for n, p in model.named_parameters()
        }
        self._by_mark = {m.data_ptr(): n for n, m in self._marks.items()}
        self._given: Mapping[str, Tensor] = {}
        self._wide: dict[int, str] = {}  # the storages of widened parameters that are alive

    def stand_in(self, name: str) -> Tensor:
        """A tensor without memory that stands for a parameter among those that are given."""
        return self._marks[name].expand(self._parameters()[name].shape)

    def widened(self, name: str) -> Tensor:
        """A new tensor with the whole parameter, in the measured precision."""
        p = self._parameters()[name].detach()
        if hasattr(p, _WHOLE):
            p = p.full_tensor()  # type: ignore[attr-defined]
        wide = p.to(self.dtype, copy=True)
        storage = wide.untyped_storage()
        self._wide[storage.data_ptr()] = name
        # Another tensor may lie there later, and must not be taken for the parameter.
        weakref.finalize(storage, self._wide.pop, storage.data_ptr(), None)
        return wide

    def _parameters(self) -> dict[str, Tensor]:
        return dict(self.model.named_parameters())

    def read(self, p: Tensor | None) -> Tensor | None:
        """What a module gets for its parameter."""
        name = self._names.get(id(p))
        if name is None:
            return p
        given = self._given.get(name)
        if given is None:
            return self.widened(name)
        if not any(given.stride()) and self._by_mark.get(given.data_ptr()) == name:
            return _Widened.apply(given, self, name)
        return given

    @contextlib.contextmanager
    def given(self, params: Mapping[str, Tensor]) -> Iterator[None]:
        """Let modules read these in place of the model's own."""
        before, self._given = self._given, params
        try:
            yield
        finally:
            self._given = before

    @contextlib.contextmanager
    def precision(self, dtype: torch.dtype) -> Iterator[None]:
        """Widen to another precision."""
        before, self.dtype = self.dtype, dtype
        try:
            yield
        finally:
            self.dtype = before

    def install(self) -> None:
        """Make modules read here; ``modules_kept`` around it takes that back.

        FSDP's own hooks, which would gather parameters that nobody reads, come off as well.
        """
        self._names = {id(p): n for n, p in self.model.named_parameters()}
        for module in self.model.modules():
            own = vars(module)
            own["_parameters"] = _Read(own["_parameters"], self)
            for kind in ("_forward_pre_hooks", "_forward_hooks"):
                hooks = own[kind].items()
                own[kind] = type(own[kind])((k, h) for k, h in hooks if not _shards(h))

    def pack(self, t: Tensor) -> Any:
        """What autograd keeps of a tensor: of a widened parameter its name and layout."""
        name = self._wide.get(t.untyped_storage().data_ptr())
        if name is None:
            return t
        return name, t.dtype, t.size(), t.stride(), t.storage_offset()

    def unpack(self, packed: Any) -> Tensor:
        """The tensor again."""
        if isinstance(packed, Tensor):
            return packed
        name, dtype, size, stride, offset = packed
        with torch.no_grad(), self.precision(dtype):
            return self.widened(name).as_strided(size, stride, offset)


class _Read(dict):
    """The parameters of one module, each widened when it is asked for."""

    def __init__(self, parameters: dict, stored: Stored) -> None:
        super().__init__(parameters)
        self.stored = stored

    def __getitem__(self, name: str) -> Tensor | None:
        return self.stored.read(super().__getitem__(name))


class _Widened(torch.autograd.Function):
    """The parameter that a stand-in stands for, with the stand-in's place in the graph."""

    @staticmethod
    def forward(ctx: Any, stand_in: Tensor, stored: Stored, name: str) -> Tensor:
        return stored.widened(name)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return gradient, None, None


def _shards(hook: Any) -> bool:
    return (getattr(hook, "__module__", None) or "").startswith(_SHARDING)
