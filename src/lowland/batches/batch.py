"""Some samples: their inputs and targets, as a loader gave them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from lowland.errors import InputError

Inputs = Any  # a tensor, or a tuple or dict of tensors, with the samples along dimension 0
LABELS = ("labels", "label")  # under which a dict has its targets
_NOT_COMPARED = (torch.uint16, torch.uint32, torch.uint64)  # torch can store these and little else


@dataclass(frozen=True)
class Batch:
    """Some samples: what goes into the model and what the loss compares with."""

    inputs: Inputs
    targets: Tensor

    def __len__(self) -> int:
        return len(self.targets)

    def split(self, size: int) -> "Iterator[Batch]":
        """Split the batch into parts of about the same size, at most ``size`` samples each.

        No part is a single sample if it need not be: many kernels treat that as a case of its own.
        """
        if len(self) <= size:
            yield self
            return
        count = -(-len(self) // size)
        for i in range(count):  # one by one: the first of many is often all
            of = slice(len(self) * i // count, len(self) * (i + 1) // count)
            yield self.map(lambda t, of=of: t[of])  # type: ignore[misc]

    def map(self, function: Callable[[Tensor], Tensor]) -> "Batch":
        """The batch with ``function`` applied to every tensor in it."""
        return Batch(pytree.tree_map(function, self.inputs), function(self.targets))


def as_batch(raw: Any, split: str, targetless: bool = False) -> Batch:
    """Inputs and targets of ``(x, y)``, ``(x1, x2, ..., y)`` or ``{..., "labels": y}``.

    ``targetless`` also takes inputs alone, ``x`` or ``(x,)``: their targets are empty, (n, 0).
    """
    inputs: Any
    if targetless:
        only = _as_tensor(raw[0] if isinstance(raw, Sequence) and len(raw) == 1 else raw)
        raw = (only, only.new_zeros(len(only), 0)) if isinstance(only, Tensor) else raw
    if isinstance(raw, Mapping):
        key = next((key for key in LABELS if key in raw), None)
        if key is None:
            raise InputError(
                f"a {split} batch is a dict with {', '.join(map(repr, raw))}; its targets must be "
                "under 'labels'"
            )
        inputs, targets = {k: v for k, v in raw.items() if k != key}, raw[key]
    elif isinstance(raw, Sequence) and not isinstance(raw, str) and len(raw) >= 2:
        inputs, targets = raw[0] if len(raw) == 2 else tuple(raw[:-1]), raw[-1]
    else:
        raise InputError(
            f"{split} data must give (inputs, targets) or a dict with 'labels'; got "
            f"{_describe(raw)}"
        )
    inputs, targets = pytree.tree_map(_as_tensor, inputs), _as_tensor(targets)
    if not isinstance(targets, Tensor):
        raise InputError(
            f"the {split} targets must be a tensor or array with one entry per sample; got "
            f"{_describe(targets)}"
        )
    return Batch(inputs, targets.long() if targets.dtype in _NOT_COMPARED else targets)


def _as_tensor(value: Any) -> Any:
    """Arrays and numbers as tensors, which share the memory of an array where torch allows it."""
    if isinstance(value, int | float):
        return torch.tensor(value)
    if not isinstance(value, np.ndarray | np.generic):
        return value
    array = np.asarray(value)
    if array.dtype.kind not in "biufc":
        raise InputError(f"an array of {array.dtype} holds no numbers; tensors are made of numbers")
    if not array.dtype.isnative or min(array.strides, default=0) < 0:
        array = array.astype(array.dtype.newbyteorder("="), order="C")
    return torch.from_numpy(array)


def _describe(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)} without targets"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return f"a {type(value).__name__} of {len(value)}"
    return type(value).__name__


def checked_batch(raw: Any, split: str, targetless: bool = False) -> Batch:
    """The same; an error if its lengths differ or it holds NaN or infinite values."""
    batch = as_batch(raw, split, targetless)
    _check_lengths(batch, split)
    _check_finite(batch, split)
    return batch


def _check_lengths(batch: Batch, split: str) -> None:
    if batch.targets.ndim == 0:
        raise InputError(
            f"the {split} data gives single samples, not batches (a DataLoader with "
            "batch_size=None?); give its loader a batch size, or pass the data set itself"
        )
    for leaf in pytree.tree_leaves(batch.inputs):
        if not isinstance(leaf, Tensor):
            raise InputError(f"{split} inputs must be tensors; got {type(leaf).__name__}")
        if leaf.ndim == 0 or len(leaf) != len(batch.targets):
            raise InputError(
                f"the {split} inputs have shape {tuple(leaf.shape)} but there are "
                f"{len(batch.targets)} targets; both need one entry per sample"
            )


def _check_finite(batch: Batch, split: str) -> None:
    for what, leaf in [
        *(("inputs", leaf) for leaf in pytree.tree_leaves(batch.inputs)),
        ("targets", batch.targets),
    ]:
        if isinstance(leaf, Tensor) and (leaf.is_floating_point() or leaf.is_complex()):
            # in parts: a mapped tensor is never in memory as a whole
            bad = sum(int((~part.isfinite()).sum()) for part in leaf.split(1024))
            if bad:
                raise InputError(
                    f"the {split} {what} hold {bad} NaN or infinite value(s); clean the data first"
                )


def bytes_of(batch: Batch) -> int:
    """The bytes of all its tensors."""
    return sum(t.nbytes for t in pytree.tree_leaves([batch.inputs, batch.targets]))


def bytes_each(batch: Batch) -> int:
    """The bytes of one sample."""
    return max(1, bytes_of(batch) // max(1, len(batch)))


def shapes(batch: Batch) -> tuple:
    """The shape of one sample: batches that agree in it can be joined."""
    return tuple(tuple(t.shape[1:]) for t in pytree.tree_leaves([batch.inputs, batch.targets]))


def are_equal(a: Batch, b: Batch) -> bool:
    """Whether two batches hold the same numbers."""
    left, right = pytree.tree_leaves(a.inputs), pytree.tree_leaves(b.inputs)
    return len(left) == len(right) and all(
        torch.equal(s, t) for s, t in zip([*left, a.targets], [*right, b.targets], strict=True)
    )
