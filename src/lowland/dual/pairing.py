"""Which training sample stands beside which test sample."""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from lowland.curvature import ForwardPass, layer
from lowland.distributed import ranks
from lowland.errors import InputError
from lowland.problem import Problem, of_a_problem

# Distances held at once: 64 MiB in float64, and as much again for their errors and their ties.
_DISTANCES = 1 << 23
# 2^64 over the golden ratio, odd: a product with it spreads every bit (Knuth, Sec. 6.4).
_MIX = 0x9E3779B97F4A7C15 - (1 << 64)
# Rows of binary targets are labels if so many samples have a partner with the same row.
_COMMON = 0.5

_COPIES = 16  # of candidates in float64 that would fill the memory: some are made on the way

Split = Literal["test", "train"]
Rows = Callable[[Tensor], Tensor]  # places to what the samples there are compared by


@dataclass(frozen=True)
class Pairs:
    """Pairs of one training and one test sample each, by their places in the data."""

    train: Tensor  # (K,)
    test: Tensor  # (K,)
    unpaired: int  # samples whose label does not occur on the other side
    rule: str  # how they were found, in words

    def __len__(self) -> int:
        return len(self.train)

    def __repr__(self) -> str:
        left = f", {self.unpaired} without a partner" if self.unpaired else ""
        return f"Pairs({len(self)}: {self.rule}{left})"


@of_a_problem
def pair(
    problem: Problem,
    *,
    each: Split = "test",
    space: str | None = None,
    same_label: bool | None = None,
) -> Pairs:
    """Pair samples with their nearest neighbour on the other side, by Euclidean distance.

    Distances are computed in float64, class by class and in chunks; no tests x train matrix is
    ever held. Of several that are equally near, to rounding, one is drawn by a hash of what both
    samples hold: at random, but the same in whatever order the data come.

    Args:
        problem: with test data.
        each: ``"test"`` finds the nearest training sample for each test sample, as Feng & Tu do;
            ``"train"`` the nearest test sample for each training sample.
        space: ``None`` compares the network's inputs, a layer's name what that layer sees.
        same_label: only samples of the same label are partners; by default where there are labels,
            which a regression has not. A label is one whole number per sample, or a row of zeros
            and ones (or of -1 and 1) of any type. Where most samples would be left without a
            partner, as with many labels per sample, such rows are no labels unless you say so.

    >>> X, y = torch.tensor([[0.0], [1.0], [5.0]]), torch.tensor([0, 1, 0])
    >>> problem = Problem(torch.nn.Linear(1, 2), train=(X, y), test=(X + 0.9, y))
    >>> pair(problem).train
    tensor([0, 1, 2])
    """
    if each not in ("test", "train"):
        raise InputError(f"each must be 'test' or 'train'; got {each!r}")
    if ranks() > 1:
        raise InputError(
            f"partners are sought among all samples, and {ranks()} ranks have a part of them each; "
            "run this in one process"
        )
    features = {split: _features(problem, split, space) for split in ("train", "test")}
    digests = {split: _digests(problem, split) for split in ("train", "test")}
    other = "train" if each == "test" else "test"
    labels = _labels(problem)
    if same_label and labels is None:
        targets = problem.train.targets
        raise InputError(
            "pairs of the same label need one class label per sample, or targets of 0 and 1; the "
            f"train targets have shape {tuple(targets.shape)} and type {targets.dtype}: pass "
            "same_label=False"
        )
    if same_label is None:
        same_label = labels is not None and (
            problem.train.targets.ndim == 1
            or float(torch.isin(labels[each], labels[other]).double().mean()) >= _COMMON
        )
    if labels is None or not same_label:
        labels = {s: torch.zeros(len(d), dtype=torch.long) for s, d in digests.items()}

    partner = torch.full((len(labels[each]),), -1)
    for label in labels[each].unique():
        there = (labels[other] == label).nonzero()[:, 0]
        here = (labels[each] == label).nonzero()[:, 0]
        if len(there):
            partner[here] = _nearest(
                features[each],
                here,
                features[other],
                there,
                digests[each][here],
                digests[other][there],
                problem.memory,
            )
    paired = (partner >= 0).nonzero()[:, 0]
    if not len(paired):
        raise InputError(
            f"no {each} sample has a partner: the labels of train and test have none in common"
        )
    sides = {each: paired, other: partner[paired]}
    rule = (
        f"for each {each} sample the nearest {other} sample"
        + (" of the same label" if same_label else "")
        + (" in input space" if space is None else f" by what layer {space!r} sees")
    )
    return Pairs(sides["train"], sides["test"], len(partner) - len(paired), rule)


def _nearest(
    queries: Rows,
    here: Tensor,
    candidates: Rows,
    there: Tensor,
    marks: Tensor,
    digests: Tensor,
    memory: int,
) -> Tensor:
    """For each query, the place of its nearest candidate; ``marks`` and ``digests`` decide ties.

    Candidates that do not fit the memory are read in chunks, twice for each chunk of queries: for
    the least distance, and for those that are as near.
    """
    width = candidates(there[:1]).shape[1]
    chunks = there.split(max(1, memory // (_COPIES * 8 * width)))
    centre = sum(candidates(chunk).double().sum(0) for chunk in chunks) / len(there)
    # The order of the data enters a distance by rounding alone, and that is at most this share.
    rounding = (width + 4) * torch.finfo(torch.float64).eps
    last = torch.iinfo(torch.int64).max

    def centred(chunk: Tensor) -> tuple[Tensor, Tensor]:
        rows = candidates(chunk).double() - centre  # far from the origin squares would cancel
        return rows, rows.square().sum(1)

    held = [centred(chunks[0])] if len(chunks) == 1 else None

    def distances(some: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        for rows, squares in held or map(centred, chunks):
            # |q - c|^2 less |q|^2, which does not change which one is nearest
            distance = torch.addmm(squares, some, rows.T, alpha=-2)
            yield distance, rounding * (squares + some.square().sum(1, keepdim=True))

    size = max(1, _DISTANCES // max(len(chunks[0]), width))
    parts = []
    for places, mark in zip(here.split(size), marks.split(size), strict=True):
        some = queries(places).double() - centre
        measured = list(distances(some)) if held else None
        bounds = [(d + error).amin(1) for d, error in measured or distances(some)]
        bound = torch.stack(bounds).amin(0).unsqueeze(1)
        lots, nearest = [], []
        for (d, error), chunk, own in zip(
            measured or distances(some), chunks, digests.split(len(chunks[0])), strict=True
        ):
            lot = (own ^ mark.unsqueeze(1)) * _MIX  # wraps around: another one for each pair
            least = torch.where(d - error <= bound, lot.to(d.device), last).min(1)
            lots.append(least.values)
            nearest.append(chunk[least.indices.cpu()])
        best = torch.stack(lots).argmin(0, keepdim=True).cpu()
        parts.append(torch.stack(nearest).gather(0, best)[0])
    return torch.cat(parts)


def _labels(problem: Problem) -> dict[str, Tensor] | None:
    """One whole number per sample, equal where the labels are; None if the targets are no labels.

    Labels are whole numbers, one per sample, or rows of two values: 0 and 1, or -1 and 1.
    """
    train, test = (problem.data(split).targets for split in ("train", "test"))
    if all(y.ndim == 1 and not y.is_floating_point() for y in (train, test)):
        return {"train": train, "test": test}
    if train.shape[1:] != test.shape[1:]:
        return None
    both = torch.cat([train, test])
    is_one = both == 1
    if not ((is_one | (both == 0)).all() or (is_one | (both == -1)).all()):
        return None
    rows = is_one.reshape(len(both), -1).to(torch.uint8)
    labels = rows.unique(dim=0, return_inverse=True)[1]
    return {"train": labels[: len(train)], "test": labels[len(train) :]}


def _digests(problem: Problem, split: Split) -> Tensor:
    """A whole number for each sample, (N,), hashed from all that it holds: inputs and target."""
    digests = []
    for batch in problem.batches(split):
        columns = [
            # -0.0 and 0.0 are equal: of both, 0.0
            (t.reshape(len(t), -1).double() + 0.0).cpu().contiguous().numpy()
            for t in pytree.tree_leaves([batch.inputs, batch.targets])
        ]
        for row in zip(*columns, strict=True):
            digest = hashlib.blake2b(b"".join(part.tobytes() for part in row), digest_size=8)
            digests.append(int.from_bytes(digest.digest(), "little", signed=True))
    return torch.tensor(digests)


def _features(problem: Problem, split: Split, space: str | None) -> Rows:
    """What distances are measured between: the rows (k, features) of the samples asked for."""
    if space is not None:
        seeing = layer(problem, space)
        seen = []
        with problem.measuring():
            for batch in problem.batches(split):
                forward = ForwardPass(problem, batch, [seeing.parameter])
                if forward.opaque:
                    raise InputError(f"layer {space!r} {forward.opaque[seeing.parameter]}")
                inputs = torch.cat(forward.inputs(seeing.parameter), 1)
                seen.append(inputs.flatten(1).cpu())
        if len({rows.shape[1] for rows in seen}) > 1:
            raise InputError(
                f"what layer {space!r} sees of the {split} samples differs in shape from batch to "
                "batch; pad the inputs to one shape to compare single samples"
            )
        return torch.cat(seen).__getitem__
    data = problem.data(split)
    inputs = data.take(slice(1)).inputs
    is_image = isinstance(inputs, Tensor) and inputs.dtype == torch.uint8  # others are tokens
    if not isinstance(inputs, Tensor) or not (inputs.is_floating_point() or is_image):
        came = f"{inputs.dtype}" if isinstance(inputs, Tensor) else f"a {type(inputs).__name__}"
        raise InputError(
            f"distances between inputs need one tensor of numbers; the {split} inputs are {came} "
            "(pairs=lowland.pair(problem, space='a layer') compares what that layer sees instead)"
        )
    return lambda places: data.take(places).inputs.flatten(1)
