"""Train or test data, read in one fixed order whatever it came as.

A loss, its gradient and its curvature are properties of one data set. A loader that shuffles is
therefore read in the order of its data set, and one that hands out other data on each pass
(augmentation, sampling with replacement) is refused: its Hessian would be another one each time.
Data that is too large to hold is read again, batch by batch, on each pass. A stream, which may give
other samples next time or none, is read once, and what was taken of it is held.
"""

import copy
from collections.abc import Iterable, Iterator
from itertools import islice, pairwise
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils.data import DataLoader

from lowland.batches.batch import (
    Batch,
    Form,
    are_equal,
    as_batch,
    bytes_each,
    bytes_of,
    checked_batch,
    shapes,
)
from lowland.batches.loaders import (
    check_list,
    collated,
    in_fixed_order,
    is_data_set,
    is_list,
    is_stream,
    regrouped,
    stream_batches,
)
from lowland.batches.targets import Targets
from lowland.errors import InputError

HELD_BYTES = 1 << 30  # what is kept of a data set after the first pass, unless told otherwise
_COMPARED = 256  # samples that are read twice


class Batches:
    """A data set as a sequence of :class:`Batch`, the same ones in the same order on each pass.

    Args:
        source: tensors, which are used where they lie (a memory-mapped one stays so), a
            ``Dataset`` or what looks like one, a list of samples or batches, a ``DataLoader``, or
            any other iterable of batches.
        split: ``"train"`` or ``"test"``, for messages.
        batch_size: samples at once, where the source does not say.
        held: the bytes that may be kept of what a loader gives. More than that is read again on
            each pass; of a stream no more is taken.
        samples: how many samples to take of a stream.
        targets: what they may be, see ``Form``.
    """

    def __init__(
        self,
        source: Any,
        split: str,
        batch_size: int,
        *,
        held: int = HELD_BYTES,
        samples: int | None = None,
        targets: Form = "tensor",
    ) -> None:
        self.split, self._form = split, targets
        self.batch_size = batch_size
        self.held_bytes = 0  # of what a loader gave
        self.note: str | None = None  # what a reader should know of the data
        self.streamed = is_stream(source)
        self.listed = is_list(source) and not is_data_set(source)  # a list of batches
        self._limit = held
        self._targets: Tensor | None = None
        self._whole: Batch | None = None  # everything, in memory
        self._parts: list[Batch] | DataLoader = []  # or as it comes: ragged, or too large to hold
        if self.streamed:
            self._hold(self._taken(stream_batches(source, batch_size), samples))
        elif isinstance(source, DataLoader) or is_data_set(source):
            self._read(in_fixed_order(source, split, batch_size))
        elif self.listed:
            check_list(source, split)
            batches = [checked_batch(raw, split, targets) for raw in source]
            self._limit = max(held, sum(map(bytes_of, batches)))  # they are in memory already
            self._hold(batches)
        else:
            self._whole = checked_batch(source, split, targets)
            self._targets, self._count = self._whole.targets, len(self._whole)
        if len(self) == 0:
            raise InputError(f"the {split} data is empty; at least one sample is needed")

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Batch]:
        return self.chunks(self.batch_size)

    @property
    def ragged(self) -> bool:
        """Whether samples differ in shape from batch to batch."""
        return self._whole is None and isinstance(self._parts, list)

    @property
    def targets(self) -> Tensor:
        """All targets, (N, ...); an error if they are too large to hold."""
        if self._targets is None:
            raise InputError(
                f"the {self.split} targets together exceed {_size(self._limit)}, so that they "
                "cannot be compared all at once; pass Problem(memory=...) with more bytes"
            )
        return self._targets

    def held(self) -> list[Any]:
        """Return what the data consists of: its tensors, or what they are read from."""
        parts = self._parts if isinstance(self._parts, list) else []
        whole = parts if self._whole is None else [self._whole]
        tensors = [t for p in whole for t in (*pytree.tree_leaves(p.inputs), p.targets)]
        return tensors or [self._parts]

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
                yield from as_batch(raw, self.split, self._form).split(size)

    def first(self, count: int) -> Batch:
        """Return the first ``count`` samples, or those of the first batch if it has fewer."""
        if self._whole is not None:
            batch = self._whole
        elif isinstance(self._parts, list):
            batch = self._parts[0]
        else:
            batch = as_batch(next(iter(self._parts)), self.split, self._form)
        return batch.map(lambda t: t[:count])

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
        return as_batch(raw, self.split, self._form)

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
            other._parts = regrouped(loader, groups)
        return other

    def _taken(self, source: Iterable, samples: int | None) -> Iterator[Batch]:
        """The first samples of a stream: so many, or as many as may be held."""
        count, size, more = 0, 0, False
        for raw in collated(source, self.split):
            batch = checked_batch(raw, self.split, self._form)
            most = samples if samples is not None else self._limit // bytes_each(batch)
            room = most - count
            if room <= 0:
                more = True
                break
            batch = batch.map(lambda t, room=room: t[:room])  # type: ignore[misc]
            count, size = count + len(batch), size + bytes_of(batch)
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
            for raw in collated(loader, self.split):
                batch = checked_batch(raw, self.split, self._form)
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
        targets = Targets(expected, self._limit)
        self._count = size = 0
        for batch in batches:
            self._count += len(batch)
            self._each = bytes_each(batch)
            size += bytes_of(batch)
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
        if len({shapes(part) for part in parts}) == 1:
            self._whole = Batch(
                pytree.tree_map(lambda *t: torch.cat(t), *(p.inputs for p in parts)), self.targets
            )
        else:
            self._parts = parts
        return bool(parts)

    def _is_same_again(self, loader: DataLoader, opening: list[Batch]) -> bool:
        """Whether a second reading starts with the same samples.

        Augmentation that changes a sample with probability p goes unnoticed with probability
        ``(p^2 + (1 - p)^2)^256``, once in 170 times for p = 1/100. Data that is kept in memory is
        still one fixed data set then, though another one each time it is read.
        """
        again = [as_batch(raw, self.split, self._form) for raw in islice(loader, len(opening))]
        return len(again) == len(opening) and all(map(are_equal, opening, again))


def _size(count: int) -> str:
    return f"{count / 2**20:,.1f} MiB"
