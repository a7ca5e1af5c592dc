"""Train or test data, read in one fixed order whatever it came as.

A loss, its gradient and its curvature are properties of one data set. A loader that shuffles is
therefore read in the order of its data set, and one that hands out other data on each pass
(augmentation, sampling with replacement) is refused: its Hessian would be another one each time.
Data that is too large to hold is read again, batch by batch, on each pass. A stream, which may give
other samples next time or none, is read once, and what was taken of it is held.
"""

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset

from lowland.errors import InputError

Inputs = Any  # a tensor, or a tuple or dict of tensors, with the samples along dimension 0

HELD_BYTES = 1 << 30  # what is kept of a data set after the first pass, unless told otherwise
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
        """The batch in parts of at most ``size`` samples."""
        if len(self) <= size:
            yield self
            return
        for i in range(0, len(self), size):  # one by one: the first of many is often all
            yield self.map(lambda t, i=i: t[i : i + size])  # type: ignore[misc]

    def map(self, function: Callable[[Tensor], Tensor]) -> "Batch":
        """The batch with ``function`` applied to every tensor in it."""
        return Batch(pytree.tree_map(function, self.inputs), function(self.targets))


class Batches:
    """A data set as a sequence of :class:`Batch`, the same ones in the same order on each pass.

    Args:
        source: tensors, which are used where they lie (a memory-mapped one stays so), a
            ``Dataset``, a ``DataLoader``, or any other iterable of batches.
        split: ``"train"`` or ``"test"``, for messages.
        batch_size: samples at once, where the source does not say.
        held: the bytes that may be kept of what a loader gives. More than that is read again on
            each pass; of a stream no more is taken.
        samples: how many samples to take of a stream.
    """

    def __init__(
        self,
        source: Any,
        split: str,
        batch_size: int,
        *,
        held: int = HELD_BYTES,
        samples: int | None = None,
    ) -> None:
        self.split = split
        self.batch_size = batch_size
        self.held_bytes = 0  # of what a loader gave
        self.note: str | None = None  # what a reader should know of the data
        self.streamed = _is_stream(source)
        self._limit = held
        self._targets: Tensor | None = None
        self._whole: Batch | None = None  # everything, in memory
        self._parts: list[Batch] | DataLoader = []  # or as it comes: ragged, or too large to hold
        if self.streamed:
            self._hold(self._taken(_loader(source, batch_size), samples))
        elif isinstance(source, DataLoader | Dataset):
            self._read(_in_fixed_order(source, split, batch_size))
        else:
            self._whole = _split_batch(pytree.tree_map(_as_tensor, source), split)
            _check_lengths(self._whole, split)
            _check_finite(self._whole, split)
            self._targets, self._count = self._whole.targets, len(self._whole)
        if len(self) == 0:
            raise InputError(f"the {split} data is empty; at least one sample is needed")

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Batch]:
        return self.chunks(self.batch_size)

    @property
    def targets(self) -> Tensor:
        """All targets, (N, ...); an error if they are too large to hold."""
        if self._targets is None:
            raise InputError(
                f"the {self.split} targets together exceed {_size(self._limit)}, so that they "
                "cannot be compared all at once; pass Problem(memory=...) with more bytes"
            )
        return self._targets

    def target_chunks(self) -> Iterator[Tensor]:
        """All targets in order, as many at a time as are at hand."""
        if self._targets is not None:
            yield self._targets
        else:
            yield from (batch.targets for batch in self)

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

    def parts(self, count: int) -> Iterator[Batch]:
        """All samples in order, in so many batches of about the same size."""
        if self._whole is None:
            raise InputError(
                f"the {self.split} data of a sharded model must fit each rank's memory, in tensors "
                "of one shape: all ranks run it on equally many batches"
            )
        ends = [len(self) * i // count for i in range(count + 1)]
        for begin, end in pairwise(ends):
            yield self._whole.map(lambda t, a=begin, b=end: t[a:b])  # type: ignore[misc]

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
        need = len(chosen) * self._each
        if need > self._limit:
            raise InputError(
                f"{len(chosen):,} {self.split} samples at once take {_size(need)}; of this data "
                f"{_size(self._limit)} may be held: pass Problem(memory=...) with more bytes"
            )
        raw = loader.collate_fn([loader.dataset[order[i]] for i in chosen])
        return _split_batch(raw, self.split)

    def subset(self, places: Tensor) -> "Batches":
        """The samples at ``places``, in their own order, as data of the same kind."""
        places = places.sort().values
        other = copy.copy(self)
        other._count = len(places)
        other._targets = None if self._targets is None else self._targets[places]
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
            loader = self._parts
            order = [i for group in loader.batch_sampler for i in group]  # type: ignore[union-attr]
            chosen = [order[i] for i in places.tolist()]
            groups = [
                chosen[i : i + self.batch_size] for i in range(0, len(chosen), self.batch_size)
            ]
            other._parts = _regrouped(loader, groups)
        return other

    def _taken(self, source: Iterable, samples: int | None) -> Iterator[Batch]:
        """The first samples of a stream: so many, or as many as may be held."""
        count, size, more = 0, 0, False
        for raw in source:
            batch = self._checked(raw)
            room = samples - count if samples is not None else self._limit // _each(batch) - count
            if room <= 0:
                more = True
                break
            batch = next(batch.split(room))
            count, size = count + len(batch), size + _bytes(batch)
            if size > self._limit:
                raise InputError(
                    f"{samples:,} samples of the {self.split} stream exceed the "
                    f"{_size(self._limit)} that may be held of it; pass fewer samples=..., or "
                    "Problem(memory=...) with more bytes"
                )
            yield batch
            if samples is not None and count >= samples:  # not a sample more is asked for
                more = True
                break
        of = "there may be more" if more else "that is all it gave"
        self.note = (
            f"The {self.split} data is a stream, read once and held: {count:,} samples were taken, "
            f"and {of}. Read again, it may give others."
        )

    def _read(self, loader: DataLoader) -> None:
        """Read everything once, check it, and keep it if it is small enough."""
        opening: list[Batch] = []  # the first samples, to compare with another pass

        def noted() -> Iterator[Batch]:
            count = 0
            for raw in loader:
                batch = self._checked(raw)
                if count < _COMPARED:
                    opening.append(batch)
                count += len(batch)
                yield batch

        complete = self._hold(noted(), sum(map(len, loader.batch_sampler)))  # type: ignore[arg-type]
        if not self._is_same_again(loader, opening):
            raise InputError(
                f"the {self.split} loader returns other data on each pass (random augmentation "
                "or an order of its own?); pass it without random transforms, or pass tensors: "
                "curvature is that of one fixed data set"
            )
        if not complete:
            self._parts = loader

    def _hold(self, batches: Iterable[Batch], expected: int = 0) -> bool:
        """Keep batches while they are small enough; returns whether all of them were kept."""
        parts: list[Batch] = []
        targets = _Targets(expected, self._limit)
        self._count = size = 0
        for batch in batches:
            self._count += len(batch)
            self._each = _each(batch)
            size += _bytes(batch)
            parts.append(batch)
            if size > self._limit:
                parts.clear()
            if size <= self._limit or targets.nbytes + batch.targets.nbytes <= self._limit // 4:
                targets.append(batch.targets)
        if not self._count:
            raise InputError(f"the {self.split} data is empty; at least one sample is needed")
        if targets.count == self._count:
            self._targets = targets.joined(self.split)
        held = self._targets.nbytes if self._targets is not None else 0
        self.held_bytes = size if parts else held
        if len({_shapes(part) for part in parts}) == 1:
            self._whole = Batch(
                pytree.tree_map(lambda *t: torch.cat(t), *(p.inputs for p in parts)), self.targets
            )
        else:
            self._parts = parts
        return bool(parts)

    def _checked(self, raw: Any) -> Batch:
        batch = _split_batch(raw, self.split)
        _check_lengths(batch, self.split)
        _check_finite(batch, self.split)
        return batch

    def _is_same_again(self, loader: DataLoader, opening: list[Batch]) -> bool:
        """Whether a second reading starts with the same samples.

        Augmentation that changes a sample with probability p goes unnoticed with probability
        ``(p^2 + (1 - p)^2)^256``, once in 170 times for p = 1/100. Data that is kept in memory is
        still one fixed data set then, though another one each time it is read.
        """
        again = [_split_batch(raw, self.split) for raw in islice(loader, len(opening))]
        return len(again) == len(opening) and all(map(_equal, opening, again))


def _is_stream(source: Any) -> bool:
    """Whether the data can only be read from its beginning: no index leads to a sample."""
    if isinstance(source, DataLoader):  # without a batch size, its data set gives whole batches
        return isinstance(source.dataset, IterableDataset) or source.batch_sampler is None
    if isinstance(source, Dataset):
        return isinstance(source, IterableDataset)
    at_hand = (Tensor, np.ndarray, Mapping, Sequence)
    return isinstance(source, Iterable) and not isinstance(source, at_hand)


def _loader(source: Iterable, batch_size: int) -> Iterable:
    """The batches of a stream."""
    if isinstance(source, IterableDataset):
        return DataLoader(source, batch_size=batch_size)
    return source


def _in_fixed_order(source: Any, split: str, batch_size: int) -> DataLoader:
    """A loader over the same samples that visits them in the same order each time."""
    if not isinstance(source, DataLoader):
        return DataLoader(source, batch_size=batch_size, shuffle=False)
    sampler = source.batch_sampler if source.batch_sampler is not None else source.sampler
    if type(sampler) is BatchSampler:
        # Sorted, and without dropping a remainder: the batches of a training loader are an
        # artefact of training, the samples are the data set.
        indices = _same_each_pass(lambda: sorted(source.sampler), source, split)
        size = source.batch_size or batch_size
        groups = [indices[i : i + size] for i in range(0, len(indices), size)]
    else:  # the user's own grouping, for example by length: its groups are kept
        groups = _same_each_pass(lambda: sorted(sorted(g) for g in sampler), source, split)
    return _regrouped(source, groups)


def _regrouped(loader: DataLoader, groups: list[list[int]]) -> DataLoader:
    """A loader of the same samples in these batches."""
    return DataLoader(
        loader.dataset,
        batch_sampler=groups,
        collate_fn=loader.collate_fn,
        num_workers=loader.num_workers,
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context,
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
        if isinstance(leaf, Tensor) and leaf.is_floating_point():
            # in parts: a mapped tensor is never in memory as a whole
            bad = sum(int((~part.isfinite()).sum()) for part in leaf.split(1024))
            if bad:
                raise InputError(
                    f"the {split} {what} hold {bad} NaN or infinite value(s); clean the data first"
                )


def _bytes(batch: Batch) -> int:
    return sum(t.nbytes for t in pytree.tree_leaves([batch.inputs, batch.targets]))


def _each(batch: Batch) -> int:
    """The bytes of one sample."""
    return max(1, _bytes(batch) // max(1, len(batch)))


def _size(count: int) -> str:
    return f"{count / 2**20:,.1f} MiB"


def _shapes(batch: Batch) -> tuple:
    """The shape of one sample: batches that agree in it can be joined."""
    return tuple(tuple(t.shape[1:]) for t in pytree.tree_leaves([batch.inputs, batch.targets]))


class _Targets:
    """Targets that come in parts, put in one place whose size is known from the start.

    Small tensors that stay, between large ones that go, would keep the C library from giving back
    the memory of these: data that is read and dropped batch by batch then takes its whole size.
    """

    def __init__(self, expected: int, most: int) -> None:
        self.expected, self.most = expected, most  # samples, and bytes
        self.count = self.nbytes = 0
        self._place: Tensor | None = None
        self._filled = 0
        self._others: list[Tensor] = []  # from the first one on that has another shape

    def append(self, part: Tensor) -> None:
        """Add the targets of the next samples."""
        need = part.nbytes // max(1, len(part)) * self.expected
        if not self.count and 0 < need <= self.most:
            self._place = part.new_empty(self.expected, *part.shape[1:])
        fits = self._place is not None and part.shape[1:] == self._place.shape[1:]
        if self._place is not None and fits and not self._others:
            self._place[self.count : self.count + len(part)] = part
            self._filled += len(part)
        else:
            self._others.append(part)
        self.count, self.nbytes = self.count + len(part), self.nbytes + part.nbytes

    def joined(self, split: str) -> Tensor:
        """All targets; labels of sequences of different lengths are padded with the ignored one."""
        parts = self._others
        if self._place is not None and self._filled:
            parts = [self._place[: self._filled], *parts]
        shapes = {t.shape[1:] for t in parts}
        if len(shapes) == 1:
            return parts[0] if len(parts) == 1 else torch.cat(parts)
        if any(t.ndim != 2 or t.is_floating_point() for t in parts):
            raise InputError(
                f"the {split} targets differ in shape from batch to batch "
                f"({', '.join(str(tuple(s)) for s in sorted(shapes)[:3])}); pad them to one shape"
            )
        longest = max(t.shape[1] for t in parts)
        pad = torch.nn.functional.pad
        return torch.cat([pad(t, (0, longest - t.shape[1]), value=_PADDING) for t in parts])


def _equal(a: Batch, b: Batch) -> bool:
    left, right = pytree.tree_leaves(a.inputs), pytree.tree_leaves(b.inputs)
    return len(left) == len(right) and all(
        torch.equal(s, t) for s, t in zip([*left, a.targets], [*right, b.targets], strict=True)
    )
