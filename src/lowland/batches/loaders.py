"""Loaders and streams of a user, read in one fixed order."""

import os
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset

from lowland.batches.batch import as_tree
from lowland.errors import InputError
from lowland.usercode import located

_COLLATE = "torch/utils/data/_utils/collate.py"


def is_stream(source: Any) -> bool:
    """Whether the data can only be read from its beginning: no index leads to a sample."""
    if isinstance(source, DataLoader):  # without a batch size, its data set gives whole batches
        return isinstance(source.dataset, IterableDataset) or source.batch_sampler is None
    if isinstance(source, IterableDataset):
        return True
    return isinstance(source, Iterable) and not (_is_at_hand(source) or is_data_set(source))


def is_data_set(source: Any) -> bool:
    """Whether an index leads to a sample: torch's data sets and what looks like one, and lists."""
    if isinstance(source, Dataset):
        return not isinstance(source, IterableDataset)
    if is_list(source):
        return not any(map(_is_batch, source))
    indexed = hasattr(type(source), "__getitem__") and hasattr(type(source), "__len__")
    return indexed and not _is_at_hand(source)


def _is_batch(item: Any) -> bool:
    """Whether all that a list's item holds has as many entries, for as many samples."""
    lengths = {tuple(getattr(part, "shape", ()))[:1] for part in pytree.tree_leaves(as_tree(item))}
    return len(lengths) == 1 and lengths != {()}


def is_list(source: Any) -> bool:
    """Whether it is a list of samples or batches, rather than one of inputs and targets."""
    return (
        isinstance(source, list)
        and bool(source)
        and all(isinstance(item, Mapping | list | tuple) for item in source)
    )


def check_list(batches: list, split: str) -> None:
    """An error if a list's items might be samples as well as batches of single numbers."""
    if len(batches) > 1 and all(getattr(t, "ndim", 0) == 1 for t in pytree.tree_leaves(batches)):
        raise InputError(
            f"each item of the {split} list may be a sample, or a batch of samples of one number "
            "each; pass torch.utils.data.DataLoader(data, batch_size=64) if they are samples, and "
            "tensors of all samples if they are batches"
        )


def _is_at_hand(source: Any) -> bool:
    return isinstance(source, Tensor | np.ndarray | Mapping | Sequence)


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


def collated(source: Iterable[Any], split: str) -> Iterator[Any]:
    """What a loader gives; an error in words where torch cannot make a batch of its samples."""
    try:
        yield from source
    except InputError:
        raise
    except Exception as error:  # whatever the user's code raises
        places = "".join(traceback.format_tb(error.__traceback__)) + str(
            error
        )  # of a worker's, too
        if _COLLATE not in places.replace(os.sep, "/"):
            raise InputError(
                f"reading the {split} data, one sample after the other, raised {located(error)}"
            ) from error
        raise InputError(
            f"the {split} loader cannot make a batch of its samples ({_last_line(error)}); let its "
            "collate_fn do so (pad those of different lengths), or pass batches of one sample"
        ) from error


def _last_line(error: Exception) -> str:
    """What an error says, without the traceback that a worker puts before it."""
    return str(error).strip().splitlines()[-1]
