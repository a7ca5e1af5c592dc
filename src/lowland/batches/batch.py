"""Some samples: their inputs and targets, as a loader gave them."""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from lowland.errors import InputError

Inputs = Any  # a tensor, or a tuple or dict of tensors, with the samples along dimension 0
LABELS = ("labels", "label")  # under which a dict has its targets
# What the loss takes for targets: one tensor; tensors in any structure; these or nothing at all; or
# one tensor that the model takes as well, as an encoder-decoder of Transformers does.
Form = Literal["tensor", "any", "none", "kept"]
OWN_LOSS = "loss=ll.ModelLoss(lambda model, batch: your_losses(model(batch.inputs), batch.targets))"
_ONE_BY_ONE = (
    "what has no samples along a first dimension is measured by its places in a list, "
    "train=torch.arange(len(data)) with loss=ll.ModelLoss(lambda model, batch: "
    "your_losses(model, [data[i] for i in batch.inputs]))"
)
_STAR, _STARS = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD
_NOT_COMPARED = (torch.uint16, torch.uint32, torch.uint64)  # torch can store these and little else


class Both(NamedTuple):
    """Inputs together with targets that are not one tensor: one piece of data to all but a loss."""

    inputs: Inputs
    targets: Any


@dataclass(frozen=True)
class Batch:
    """Some samples: what goes into the model and what the loss compares with."""

    inputs: Inputs
    targets: Any  # a tensor, but for a user's own loss

    def __len__(self) -> int:
        return len(pytree.tree_leaves(self.targets)[0])

    @property
    def given(self) -> "Batch":
        """The batch with targets as the user has them, whatever their structure."""
        return Batch(*self.inputs) if isinstance(self.inputs, Both) else self

    def split(self, size: int) -> "Iterator[Batch]":
        """Split the batch into parts of about the same size, at most ``size`` samples each.

        No part is a single sample if it need not be: many kernels treat that as a case of its own.
        """
        n = len(self)
        if n <= size:
            yield self
            return
        count = -(-n // size)
        for i in range(count):  # one by one: the first of many is often all
            of = slice(n * i // count, n * (i + 1) // count)
            yield self.map(lambda t, of=of: t[of])  # type: ignore[misc]

    def map(self, function: Callable[[Tensor], Tensor]) -> "Batch":
        """The batch with ``function`` applied to every tensor in it."""
        return Batch(pytree.tree_map(function, self.inputs), function(self.targets))


def as_batch(raw: Any, split: str, form: Form = "tensor") -> Batch:
    """Inputs and targets of ``(x, y)``, ``(x1, x2, ..., y)`` or ``{..., "labels": y}``.

    Targets that are no tensor go with the inputs, and those of a sample are then empty, (n, 0).
    """
    inputs, targets = map(as_tree, _parts(raw, split, form))
    if not isinstance(targets, Tensor) and form in ("any", "none"):
        if targets is not None:
            inputs = Both(inputs, targets)
        leaf = next((t for t in pytree.tree_leaves(inputs) if isinstance(t, Tensor)), None)
        if leaf is not None and leaf.ndim:
            targets = leaf.new_zeros(len(leaf), 0)
    if not isinstance(targets, Tensor):
        known = isinstance(targets, Mapping | Sequence | int | float | None)
        several = f"several of them, in a tuple or dict, go with {OWN_LOSS}"
        raise InputError(
            f"the {split} targets must be a tensor or array with one entry per sample; got "
            f"{_describe(targets)}; {several if known else _ONE_BY_ONE}"
        )
    return Batch(inputs, targets.long() if targets.dtype in _NOT_COMPARED else targets)


def _parts(raw: Any, split: str, form: Form) -> tuple[Any, Any]:
    """Inputs and targets as they are; None for targets that are not there and not needed."""
    if isinstance(raw, Mapping):
        key = next((key for key in LABELS if key in raw), None)
        if key is None and form == "none":
            return dict(raw), None
        if key is None:
            raise InputError(
                f"a {split} batch is a dict with {', '.join(map(repr, raw))}; its targets must be "
                "under 'labels', or the loss be computed from the dict itself: "
                + OWN_LOSS.replace(", batch.targets", "")
            )
        return {k: v for k, v in raw.items() if k != key or form == "kept"}, raw[key]
    if isinstance(raw, Sequence) and not isinstance(raw, str) and len(raw) >= 2:
        inputs, targets = raw[0] if len(raw) == 2 else tuple(raw[:-1]), raw[-1]
        if form == "kept" and np.ndim(targets) > 1:
            raise InputError(
                "an encoder-decoder makes the inputs of its decoder from the labels, which it must "
                f"know by name: the {split} data must be a dict with 'labels', such as "
                "{'input_ids': ..., 'attention_mask': ..., 'labels': ...}"
            )
        return inputs, targets
    only = raw[0] if isinstance(raw, Sequence) and len(raw) == 1 else raw
    if form == "none" and isinstance(only, Tensor | np.ndarray):
        return only, None
    raise InputError(
        f"{split} data must give (inputs, targets) or a dict with 'labels'; got {_describe(raw)}"
        + ("" if isinstance(raw, Tensor | Sequence | int | float) else f"; {_ONE_BY_ONE}")
    )


def arguments(model: nn.Module, inputs: Inputs) -> tuple[tuple, dict]:
    """The inputs of a batch as arguments and keyword arguments of the model.

    A dict's entries are arguments by name, unless the model takes none of these names and only one
    argument: that is the dict itself then.
    """
    inputs = inputs.inputs if isinstance(inputs, Both) else inputs
    if isinstance(inputs, Mapping):
        whole = _takes_one_other(model, inputs)
        return ((inputs,), {}) if whole else ((), dict(inputs))
    if isinstance(inputs, tuple | list):
        return tuple(inputs), {}
    return (inputs,), {}


def _takes_one_other(model: nn.Module, named: Mapping) -> bool:
    try:
        parameters = inspect.signature(model.forward).parameters
    except ValueError:  # written in C
        return False
    kinds = {p.kind for p in parameters.values()}
    needed = [p for p in parameters.values() if p.default is p.empty]
    return len(needed) == 1 and not kinds & {_STAR, _STARS} and not named.keys() & parameters.keys()


def as_tree(value: Any) -> Any:
    """Dicts of every kind as dicts, and what they and lists hold as tensors."""
    if isinstance(value, Mapping):
        return {key: as_tree(each) for key, each in value.items()}
    return pytree.tree_map(_as_tensor, value, is_leaf=lambda part: isinstance(part, Mapping))


def _as_tensor(value: Any) -> Any:
    """Arrays and numbers as tensors, which share the memory of an array where torch allows it."""
    if isinstance(value, Mapping):
        return as_tree(value)
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


def checked_batch(raw: Any, split: str, form: Form = "tensor") -> Batch:
    """The same; an error if its lengths differ or it holds NaN or infinite values."""
    batch = as_batch(raw, split, form)
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
            raise InputError(
                f"{split} inputs must be tensors; got {type(leaf).__name__}, which can be left out "
                f"(of a dict, of what collate_fn returns); {_ONE_BY_ONE}"
            )
        if leaf.ndim == 0 or len(leaf) != len(batch.targets):
            raise InputError(
                f"the {split} inputs have shape {tuple(leaf.shape)} but there are "
                f"{len(batch.targets)} targets; both need one entry per sample"
                + ("" if isinstance(batch.inputs, Tensor) else f"; {_ONE_BY_ONE}")
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
