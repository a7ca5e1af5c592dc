"""Train or test data, read in one fixed order whatever it came as.

A loss, its gradient and its curvature are properties of one data set. A loader that shuffles is
therefore read in the order of its data set, and one that hands out other data on each pass
(augmentation, sampling with replacement) is refused: its Hessian would be another one each time.
"""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset

from lowland.errors import InputError

Inputs = Any  # a tensor, or a tuple or dict of tensors, with the samples along dimension 0

# Data up to this size is kept after the first pass; more is read again from its loader each time.
HELD_BYTES = 2 << 30
_COMPARED = 256  # samples that are read twice
_PADDING = -100  # the label that torch and Transformers ignore


@dataclass(frozen=True)
class Batch:
    """Some samples: what goes into the model and what the loss compares with."""

    inputs: Inputs
    targets: Tensor

    def __len__(self) -> int:
        return len(self.targets)

    def split(self, size: int) -> "Iterator[Batch]":
        """The batch in parts of at most ``size`` samples, made one after the other."""
        if len(self) <= size:
            yield self
            return
        for i in range(0, len(self), size):
            yield self.map(lambda t, i=i: t[i : i + size])  # type: ignore[misc]

    def map(self, function: Callable[[Tensor], Tensor]) -> "Batch":
        """The batch with ``function`` applied to every tensor in it."""
        return Batch(pytree.tree_map(function, self.inputs), function(self.targets))


class Batches:
    """A data set as a sequence of :class:`Batch`, the same ones in the same order on each pass."""

    def __init__(self, source: Any, split: str, batch_size: int) -> None:
        self.split = split
        self.batch_size = batch_size
        self._whole: Batch | None = None  # everything, in memory
        self._parts: list[Batch] | DataLoader = []  # or as it comes: ragged, or too large to hold
        if isinstance(source, DataLoader | Dataset):
            self._read(_in_fixed_order(source, split, batch_size))
        else:
            self._whole = _split_batch(pytree.tree_map(_as_tensor, source), split)
            _check_lengths(self._whole, split)
            _check_finite(self._whole, split)
            self.targets = self._whole.targets
        if len(self) == 0:
            raise InputError(f"the {split} data is empty; at least one sample is needed")

    def __len__(self) -> int:
        return len(self.targets)

    def __iter__(self) -> Iterator[Batch]:
        return self.chunks(self.batch_size)

    def chunks(self, size: int) -> Iterator[Batch]:
        """All samples in order, at most ``size`` at a time."""
        if self._whole is not None:
            yield from self._whole.split(size)
        elif isinstance(self._parts, list):
            for part in self._parts:
                yield from part.split(size)
        else:
            for raw in self._parts:
                yield from _split_batch(raw, self.split).split(size)

    def take(self, indices: Tensor | slice) -> Batch:
        """The samples at ``indices``, in that order, as one batch."""
        if self._whole is not None:
            return self._whole.map(lambda t: t[indices])
        if isinstance(self._parts, list):
            raise InputError(
                f"the {self.split} inputs differ in shape from batch to batch; pad them to one "
                "shape to compare single samples"
            )
        loader = self._parts
        order = [i for group in loader.batch_sampler for i in group]  # type: ignore[union-attr]
        chosen = torch.arange(len(self))[indices].tolist()
        raw = loader.collate_fn([loader.dataset[order[i]] for i in chosen])
        return _split_batch(raw, self.split)

    def subset(self, places: Tensor) -> "Batches":
        """The samples at ``places``, in their own order, as data of the same kind."""
        places = places.sort().values
        other = copy.copy(self)
        other.targets = self.targets[places]
        if self._whole is not None:
            other._whole = self._whole.map(lambda t: t[places.to(t.device)])
        elif isinstance(self._parts, list):
            other._parts, start = [], 0
            for part in self._parts:
                own = places[(places >= start) & (places < start + len(part))] - start
                start += len(part)
                if len(own):
                    other._parts.append(part.map(lambda t, own=own: t[own]))  # type: ignore[misc]
        else:
            loader, order = self._parts, []
            order = [i for group in loader.batch_sampler for i in group]  # type: ignore[union-attr]
            chosen = [order[i] for i in places.tolist()]
            other._parts = DataLoader(
                loader.dataset,
                batch_sampler=[
                    chosen[i : i + self.batch_size] for i in range(0, len(chosen), self.batch_size)
                ],
                collate_fn=loader.collate_fn,
                num_workers=loader.num_workers,
            )
        return other

    def _read(self, loader: DataLoader) -> None:
        """Read everything once, check it, and keep it if it is small enough."""
        parts: list[Batch] = []
        opening: list[Batch] = []  # the first samples, to compare with another pass
        targets, size, count = [], 0, 0
        for raw in loader:
            batch = _split_batch(raw, self.split)
            _check_lengths(batch, self.split)
            _check_finite(batch, self.split)
            if count < _COMPARED:
                opening.append(batch)
            count += len(batch)
            targets.append(batch.targets)
            size += sum(t.nbytes for t in pytree.tree_leaves(batch.inputs))
            if size > HELD_BYTES:
                parts.clear()
            else:
                parts.append(batch)
        if not targets:
            raise InputError(f"the {self.split} data is empty; at least one sample is needed")
        if not self._is_same_again(loader, opening):
            raise InputError(
                f"the {self.split} loader returns other data on each pass (random augmentation "
                "or an order of its own?); pass it without random transforms, or pass tensors: "
                "curvature is that of one fixed data set"
            )
        self.targets = _joined(targets, self.split)
        if not parts:
            self._parts = loader
        elif len({_shapes(part) for part in parts}) == 1:
            self._whole = Batch(
                pytree.tree_map(lambda *t: torch.cat(t), *(p.inputs for p in parts)), self.targets
            )
        else:
            self._parts = parts

    def _is_same_again(self, loader: DataLoader, opening: list[Batch]) -> bool:
        """Whether the first samples come again as they are.

        Augmentation that changes a sample with probability p goes unnoticed with probability
        ``(p^2 + (1 - p)^2)^256``, once in 170 times for p = 1/100. Data that is kept in memory is
        still one fixed data set then, though another one each time it is read.
        """
        again = [_split_batch(raw, self.split) for raw in islice(loader, len(opening))]
        return len(again) == len(opening) and all(map(_equal, opening, again))


def _in_fixed_order(source: Any, split: str, batch_size: int) -> DataLoader:
    """A loader over the same samples that visits them in the same order each time."""
    if not isinstance(source, DataLoader):
        if isinstance(source, IterableDataset):
            return DataLoader(source, batch_size=batch_size)
        return DataLoader(source, batch_size=batch_size, shuffle=False)
    if isinstance(source.dataset, IterableDataset):
        return source
    sampler = source.batch_sampler if source.batch_sampler is not None else source.sampler
    if type(sampler) is BatchSampler:
        # Sorted, and without dropping a remainder: the batches of a training loader are an
        # artefact of training, the samples are the data set.
        indices = _same_each_pass(lambda: sorted(source.sampler), source, split)
        size = source.batch_size or batch_size
        groups = [indices[i : i + size] for i in range(0, len(indices), size)]
    else:  # the user's own grouping, for example by length: its groups are kept
        groups = _same_each_pass(lambda: sorted(sorted(g) for g in sampler), source, split)
    return DataLoader(
        source.dataset,
        batch_sampler=groups,
        collate_fn=source.collate_fn,
        num_workers=source.num_workers,
        worker_init_fn=source.worker_init_fn,
        multiprocessing_context=source.multiprocessing_context,
    )


def _same_each_pass(read: Callable[[], list], loader: DataLoader, split: str) -> list:
    first = read()
    if read() != first:
        raise InputError(
            f"the {split} loader draws other samples on each pass ({type(loader.sampler).__name__}"
            "); pass the data set itself, or a loader that visits every sample once"
        )
    return first


def _split_batch(raw: Any, split: str) -> Batch:
    """Inputs and targets of ``(x, y)``, ``(x1, x2, ..., y)`` or ``{..., "labels": y}``."""
    if isinstance(raw, Mapping):
        for key in ("labels", "label"):
            if key in raw:
                return Batch({k: v for k, v in raw.items() if k != key}, raw[key])
        raise InputError(
            f"a {split} batch is a dict with {', '.join(map(repr, raw))}; its targets must be "
            "under 'labels'"
        )
    if isinstance(raw, Sequence) and len(raw) >= 2:
        *inputs, targets = raw
        if isinstance(targets, Tensor):
            return Batch(inputs[0] if len(inputs) == 1 else tuple(inputs), targets)
    raise InputError(
        f"{split} data must give (inputs, targets) or a dict with 'labels'; got {_describe(raw)}"
    )


def _describe(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)} without targets"
    if isinstance(value, Sequence):
        return f"a {type(value).__name__} of {len(value)}"
    return type(value).__name__


def _as_tensor(value: Any) -> Any:
    return torch.from_numpy(value) if isinstance(value, np.ndarray) else value


def _check_lengths(batch: Batch, split: str) -> None:
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
        if isinstance(leaf, Tensor) and leaf.is_floating_point():
            bad = int((~leaf.isfinite()).sum())
            if bad:
                raise InputError(
                    f"the {split} {what} hold {bad} NaN or infinite value(s); clean the data first"
                )


def _shapes(batch: Batch) -> tuple:
    """The shape of one sample: batches that agree in it can be joined."""
    return tuple(tuple(t.shape[1:]) for t in pytree.tree_leaves([batch.inputs, batch.targets]))


def _joined(targets: list[Tensor], split: str) -> Tensor:
    """All targets; labels of sequences of different lengths are padded with the ignored one."""
    shapes = {t.shape[1:] for t in targets}
    if len(shapes) == 1:
        return torch.cat(targets)
    if any(t.ndim != 2 or t.is_floating_point() for t in targets):
        raise InputError(
            f"the {split} targets differ in shape from batch to batch "
            f"({', '.join(str(tuple(s)) for s in sorted(shapes)[:3])}); pad them to one shape"
        )
    longest = max(t.shape[1] for t in targets)
    pad = torch.nn.functional.pad
    return torch.cat([pad(t, (0, longest - t.shape[1]), value=_PADDING) for t in targets])


def _equal(a: Batch, b: Batch) -> bool:
    left, right = pytree.tree_leaves(a.inputs), pytree.tree_leaves(b.inputs)
    return len(left) == len(right) and all(
        torch.equal(s, t) for s, t in zip([*left, a.targets], [*right, b.targets], strict=True)
    )
