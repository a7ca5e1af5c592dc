"""Seeded choices among samples: splits, draws per class, random labels.

Each choice has a random stream of its own, named after its purpose, so that asking for fewer
samples does not change which labels another choice corrupts, and NumPy's global state stays alone.
"""

import numpy as np
from numpy.typing import NDArray

from lowland.errors import InputError

Samples = tuple[NDArray[np.generic], NDArray[np.int64]]  # inputs (N, ...), labels (N,)


def stream(seed: int, purpose: str) -> np.random.Generator:
    """The random numbers for one ``purpose`` under one ``seed``."""
    return np.random.default_rng([seed, *purpose.encode()])


def stratified_split(
    x: NDArray[np.generic], y: NDArray[np.int64], share: float, seed: int
) -> tuple[Samples, Samples]:
    """Split off ``share`` of each class for training; both parts come out in shuffled order."""
    order = stream(seed, "split").permutation(len(y))
    wanted = np.rint(share * np.bincount(y))  # (C,)
    train = _rank_in_class(y[order]) < wanted[y[order]]
    inside, outside = order[train], order[~train]
    return (x[inside], y[inside]), (x[outside], y[outside])


def draw_per_class(
    x: NDArray[np.generic],
    y: NDArray[np.int64],
    count: int | None,
    classes: tuple[str, ...],
    seed: int,
    option: str,
) -> Samples:
    """Draw ``count`` samples of each class in shuffled order, or keep all as they stand for None.

    ``option`` is the argument of ``load`` that ``count`` came from: it names the random stream and
    appears in the error.
    """
    if count is None:
        return x, y
    available = np.bincount(y, minlength=len(classes))
    scarce = int(available.argmin())
    if count > available[scarce]:
        raise InputError(
            f"{option}={count} is more than there are: class {classes[scarce]!r} has "
            f"{available[scarce]:,} samples; ask for at most that many"
        )
    order = stream(seed, option).permutation(len(y))
    chosen = order[_rank_in_class(y[order]) < count]
    return x[chosen], y[chosen]


def left_over(
    x: NDArray[np.generic], y: NDArray[np.int64], count: int | None, seed: int
) -> Samples:
    """The samples that :func:`draw_per_class` does not draw for training, in shuffled order."""
    if count is None:
        return x[:0], y[:0]
    order = stream(seed, "per_class").permutation(len(y))
    others = order[_rank_in_class(y[order]) >= count]
    return x[others], y[others]


def randomise_labels(
    y: NDArray[np.int64], share: float, classes: int, seed: int
) -> tuple[NDArray[np.int64], int]:
    """Replace ``round(share * N)`` labels by uniformly random ones; also return that number.

    Both the order of the victims and a new label for every sample are drawn whatever the share,
    so the labels replaced at one share are replaced alike at every larger one.
    """
    random = stream(seed, "label_noise")
    victims = random.permutation(len(y))[: round(share * len(y))]
    replacement = random.integers(classes, size=len(y))
    noisy = y.copy()
    noisy[victims] = replacement[victims]
    return noisy, len(victims)


def added_wrong(
    clean: Samples, spare: Samples, share: float, classes: int, seed: int
) -> tuple[Samples, int]:
    """The clean samples, and behind them spare ones with wrong labels, ``share`` of all in the end.

    Also return the number of the latter. A wrong label is any but the true one, each as likely; the
    first of them are the same at every larger share.
    """
    wrong = round(share / (1 - share) * len(clean[1]))
    if wrong > len(spare[1]):
        raise InputError(
            f"label_noise={share} adds {wrong:,} samples with wrong labels to {len(clean[1]):,}, "
            f"but {len(spare[1]):,} are left; ask for fewer samples with per_class, or for less"
        )
    x, y = spare[0][:wrong], spare[1][:wrong]
    shift = stream(seed, "wrong labels").integers(1, classes, size=len(spare[1]))[:wrong]
    both = np.concatenate([clean[0], x]), np.concatenate([clean[1], (y + shift) % classes])
    return both, wrong


def _rank_in_class(y: NDArray[np.int64]) -> NDArray[np.int64]:
    """For each sample, how many before it have the same label."""
    rank = np.empty(len(y), dtype=np.int64)
    for label in np.unique(y):
        members = np.flatnonzero(y == label)
        rank[members] = np.arange(len(members))
    return rank
