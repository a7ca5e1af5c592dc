"""Loaders and streams of a user, read in one fixed order."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset

from lowland.errors import InputError


def is_stream(source: Any) -> bool:
    """Whether the data can only be read from its beginning: no index leads to a sample."""
    if isinstance(source, DataLoader):  # without a batch size, its data set gives whole batches
        return isinstance(source.dataset, IterableDataset) or source.batch_sampler is None
    if isinstance(source, Dataset):
        return isinstance(source, IterableDataset)
    at_hand = (Tensor, np.ndarray, Mapping, Sequence)
    return isinstance(source, Iterable) and not isinstance(source, at_hand)


def stream_batches(source: Iterable, batch_size: int) -> Iterable:
    """The batches of a stream."""
    if isinstance(source, IterableDataset):
        return DataLoader(source, batch_size=batch_size)
    return source


def in_fixed_order(source: Any, split: str, batch_size: int) -> DataLoader:
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
    return regrouped(source, groups)


def regrouped(loader: DataLoader, groups: list[list[int]]) -> DataLoader:
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
