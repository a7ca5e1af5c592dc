"""From the name of a data set to tensors: read, draw per class, scale, corrupt labels."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lowland.data.sampling import Samples, added_wrong, draw_per_class, left_over, randomise_labels
from lowland.data.sets import NoiseKind, Pool, Request, read
from lowland.errors import InputError

# Samples of a class where a set is taken in order and no number is named: those of Feng & Tu.
_IN_ORDER = {"train": 400, "test": 100}


@dataclass(frozen=True, eq=False, repr=False)
class DataSet:
    """Inputs and targets, ready for a ``Problem``.

    ``train`` and ``test`` are pairs of inputs (float32, images as (N, channels, height, width)
    with pixels in [0, 1], not centred or whitened) and targets (int64, an index into ``classes``).
    """

    name: str
    train: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]
    classes: tuple[str, ...]
    description: str
    clean: int  # leading training samples without wrong ones: all, unless some were added

    def __repr__(self) -> str:
        x, y = self.train
        return (
            f"DataSet({self.name!r}: {len(y):,} train and {len(self.test[1]):,} test inputs "
            f"of shape {tuple(x.shape[1:])}, {len(self.classes)} classes)"
        )


def load(
    name: str,
    *,
    per_class: int | None = None,
    test_per_class: int | None = None,
    seed: int = 0,
    label_noise: float = 0.0,
    noise_kind: NoiseKind = "replaced",
    data_dir: str | Path | None = None,
) -> DataSet:
    """Load the data set called ``name`` (one of ``names()``).

    ``per_class`` and ``test_per_class`` draw that many samples of every class; ``None`` takes all.
    Of a set with an order, ``mnist_demo`` and ``mnist5k_demo``, they take the first samples, ten
    times as many, whatever their classes; ``None`` is then 400 and 100.
    ``label_noise`` replaces that fraction of the training labels by uniformly random ones, of which
    some happen to be right (the partially corrupted labels of Zhang et al. 2016,
    arXiv:1611.03530); test labels stay true. With ``noise_kind="added"`` it is that fraction of all
    training samples that stand, with wrong labels, behind those asked for (``clean`` is the number
    of the latter): as in the demo of Feng & Tu. Smaller draws are contained in larger ones of the
    same seed, and less noise in more, so that a sweep over either varies one thing at a time.

    Everything random comes from ``seed``; the global random state is neither read nor changed.
    ``data_dir`` (or else the environment variable ``LOWLAND_DATA``) is the folder that holds the
    files of ``mnist``, ``fashion_mnist`` and ``cifar10``; the other sets need none.
    """
    request = Request(name, per_class, test_per_class, seed, label_noise, noise_kind, data_dir)
    pool = read(request)

    if pool.in_order:
        (x, y), spare = _first(pool, "train", per_class)
        (test_x, test_y), _ = _first(pool, "test", test_per_class)
    else:
        x, y = draw_per_class(*pool.train, per_class, pool.classes, seed, "per_class")
        spare = left_over(*pool.train, per_class, seed)
        test_x, test_y = draw_per_class(
            *pool.test, test_per_class, pool.classes, seed, "test_per_class"
        )
    clean = len(y)
    if noise_kind == "added":
        (x, y), noisy = added_wrong((x, y), spare, label_noise, len(pool.classes), seed)
        kind = "of them with wrong labels"
    else:
        y, noisy = randomise_labels(y, label_noise, len(pool.classes), seed)
        kind = "training labels drawn at random"

    description = f"{pool.source}: {len(y):,} training and {len(test_y):,} test samples"
    if noisy:
        description += f", {noisy:,} {kind}"
    return DataSet(
        name=name,
        train=(_inputs(x, pool.white), torch.from_numpy(y)),
        test=(_inputs(test_x, pool.white), torch.from_numpy(test_y)),
        classes=pool.classes,
        description=f"{description} (seed {seed})",
        clean=clean,
    )


def _first(pool: Pool, split: str, per_class: int | None) -> tuple[Samples, Samples]:
    """The first samples of a split, as many as so many of each class would be, and the others."""
    x, y = pool.train if split == "train" else pool.test
    count = len(pool.classes) * (per_class or _IN_ORDER[split])
    if count > len(y):
        raise InputError(
            f"{pool.source} has {len(y):,} {split} samples and {count:,} were asked for; ask for "
            "at most that many"
        )
    return (x[:count], y[:count]), (x[count:], y[count:])


def _inputs(x: NDArray[np.generic], white: int) -> Tensor:
    """Stored values as float32, with the value that stands for full brightness at 1."""
    return torch.from_numpy(x.astype(np.float32)).div_(white)
