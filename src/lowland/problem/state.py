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
    return _mark(model, {})


def state_of_data(tensors: Iterable[Any]) -> Hashable:
    """Return the state of data: tensors' versions, and the values of up to 256 KiB of each."""
    return tuple(
        (_stamp(t), _checksum(_sample(t.detach()))) if isinstance(t, Tensor) else id(t)
        for t in tensors
    )


def state_of_loss(loss: object) -> Hashable:
    """Return the state of a loss: its attributes, and the state of modules among them."""
    return _mark(list(vars(loss).values()), {})


def _mark(value: Any, seen: dict[int, Hashable]) -> Hashable:
    """Return what tells a value from others; ``seen`` holds the marks of objects that were met."""
    if isinstance(value, _PLAIN):
        return value
    if id(value) in seen:
        return seen[id(value)]
    seen[id(value)] = id(value)
    if isinstance(value, Tensor):
        mark: Hashable = (value.requires_grad, _stamp(value), _checksum(local(value.detach())))
    elif isinstance(value, nn.Module):
        own = vars(value)
        parts = [(name, _mark(own[name], seen)) for name in own if name not in _UNSEEN]
        mark = (type(value), *(tuple(own[name]) for name in _HOOKS), *parts)
    elif isinstance(value, Mapping):
        mark = tuple([(_mark(k, seen), _mark(v, seen)) for k, v in value.items()])
    elif isinstance(value, list | tuple | set | frozenset | deque):
        mark = tuple([_mark(each, seen) for each in value])
    elif isinstance(value, np.ndarray) and value.dtype.kind in "biufc":
        mark = zlib.crc32(value.tobytes())
    else:
        mark = id(value)
    seen[id(value)] = mark
    return mark


def _stamp(t: Tensor) -> Hashable:
    """Return shape, precision, place in memory and version of a tensor."""
    version = None if t.is_inference() else t._version
    place = t.data_ptr() if t.layout == torch.strided and type(t) in _OF_TORCH else id(t)
    return t.shape, t.dtype, place, version


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
