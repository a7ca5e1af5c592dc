"""The state of a model and its data: a value that changes when a weight or anything else does.

Versions of tensors tell most changes. Others go past them (``p.data``, NumPy's view of a tensor),
so that values enter as checksums: a copy takes longer, and a product with the weights much longer.
"""

import zlib
from collections import deque
from collections.abc import Hashable, Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lowland.problem.stored import local

OF_MODULES = frozenset(vars(nn.Module()))  # the attributes that torch keeps in every module
_UNSEEN = OF_MODULES - {"_parameters", "_buffers", "_modules"}
_HOOKS = ("_forward_pre_hooks", "_forward_hooks")
_OF_TORCH = (Tensor, nn.Parameter)
_PLAIN = (bool, int, float, complex, str, bytes, type(None))
# Bytes that are read of a tensor of data: all of smaller ones, evenly spaced rows of others.
_READ = 1 << 18


def state_of_model(model: nn.Module) -> Hashable:
    """Return the state of a model: tensors, ``requires_grad``, attributes, submodules and hooks.

    Modes are left out: a model is measured in eval mode. Of an attribute that is an object of the
    user's own, only its identity is seen.
    """
    return _marks(model)


def state_of_data(tensors: Iterable[Any]) -> Hashable:
    """Return the state of data: tensors' versions, and the values of up to 256 KiB of each."""
    return tuple([_mark(t, _sample(t)) if isinstance(t, Tensor) else id(t) for t in tensors])


def state_of_loss(loss: object) -> Hashable:
    """Return the state of a loss: its attributes, and the state of modules among them."""
    return _marks(vars(loss))


def _marks(value: Any) -> Hashable:
    """Return what tells a value from others: a mark of it, then those of all parts it is made of.

    The mark of a container says how many parts it has, so that no two structures read the same.
    """
    marks: list[Hashable] = []
    met: dict[int, int] = {}  # where the mark of an object is
    waiting = [value]
    while waiting:
        value = waiting.pop()
        if isinstance(value, _PLAIN):
            marks.append(value)
            continue
        if id(value) in met:
            marks.append(("again", met[id(value)]))
            continue
        met[id(value)] = len(marks)
        kind, parts = type(value), []
        if isinstance(value, Tensor):
            marks.append(_mark(value, local(value)))
            continue
        if isinstance(value, nn.Module):
            own = vars(value)
            seen = {name: own[name] for name in own if name not in _UNSEEN}
            parts = list(seen.values())
            marks.append((kind, *seen, *[tuple(own[name]) for name in _HOOKS]))
        elif isinstance(value, Mapping):
            parts = [*value.keys(), *value.values()]
            marks.append((kind, len(value)))
        elif isinstance(value, list | tuple | set | frozenset | deque):
            parts = list(value)
            marks.append((kind, len(value)))
        elif isinstance(value, np.ndarray) and value.dtype.kind in "biufc":
            marks.append((value.shape, value.dtype.str, zlib.crc32(value.tobytes())))
        else:
            marks.append((kind, id(value)))
        waiting += parts
    return tuple(marks)


def _mark(t: Tensor, values: Tensor) -> Hashable:
    """Return shape, precision, place in memory and version of a tensor, and a checksum of values.

    ``values`` are those of the tensor, or some of them.
    """
    version = None if t.is_inference() else t._version
    place = t.data_ptr() if t.layout == torch.strided and type(t) in _OF_TORCH else id(t)
    return t.requires_grad, t.shape, t.dtype, place, version, _checksum(values.detach())


def _sample(t: Tensor) -> Tensor:
    """Return the tensor, or some rows of it if it is large."""
    if t.nbytes <= _READ or t.layout != torch.strided:
        return t
    rows = t if t.ndim else t.view(1)
    count = max(1, min(len(rows), _READ * len(rows) // t.nbytes))
    return rows[:: -(-len(rows) // count)]


def _checksum(t: Tensor) -> int:
    if t.layout != torch.strided:
        t = t.to_dense()
    if t.numel() == 0 or t.is_meta:
        return 0
    try:
        array = t.numpy()
    except (TypeError, RuntimeError):  # on another device, or numbers that NumPy does not have
        flat = t.resolve_conj().resolve_neg().contiguous().view(-1)
        array = flat.view(torch.uint8).cpu().numpy()
    return zlib.crc32(np.ascontiguousarray(array).data)
