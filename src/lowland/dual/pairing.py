"""Which training sample stands beside which test sample."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from lowland.curvature import (
    ForwardPass,
    layer,
)
from lowland.errors import InputError
from lowland.problem import Problem, differentiating

# Distances held at once: 256 MiB in float64.
_DISTANCES = 1 << 25

Split = Literal["test", "train"]


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


@differentiating()
def pair(
    problem: Problem,
    *,
    each: Split = "test",
    space: str | None = None,
    same_label: bool | None = None,
) -> Pairs:
    """Pair samples with their nearest neighbour on the other side, by Euclidean distance.

    Distances are computed in float64, class by class and in chunks; no tests x train matrix is
    ever held.

    Args:
        problem: with test data.
        each: ``"test"`` finds the nearest training sample for each test sample, as Feng & Tu do;
            ``"train"`` the nearest test sample for each training sample.
        space: ``None`` compares the network's inputs, a layer's name what that layer sees.
        same_label: only samples of the same label are partners; by default where there are class
            labels, one whole number per sample, which a regression has not.

    >>> X, y = torch.tensor([[0.0], [1.0], [5.0]]), torch.tensor([0, 1, 0])
    >>> problem = Problem(torch.nn.Linear(1, 2), train=(X, y), test=(X + 0.9, y))
    >>> pair(problem).train
    tensor([0, 1, 2])
    """
    if each not in ("test", "train"):
        raise InputError(f"each must be 'test' or 'train'; got {each!r}")
    features = {split: _features(problem, split, space) for split in ("train", "test")}
    labels = {split: problem.data(split).targets for split in ("train", "test")}
    has_labels = all(y.ndim == 1 and not y.is_floating_point() for y in labels.values())
    if same_label is None:
        same_label = has_labels
    if same_label and not has_labels:
        raise InputError(
            "pairs of the same label need one class label per sample; the train targets have "
            f"shape {tuple(labels['train'].shape)} and type {labels['train'].dtype}: pass "
            "same_label=False"
        )
    if not same_label:
        labels = {s: torch.zeros(len(y), dtype=torch.long) for s, y in labels.items()}

    other = "train" if each == "test" else "test"
    partner = torch.full((len(labels[each]),), -1)
    for label in labels[each].unique():
        there = (labels[other] == label).nonzero()[:, 0]
        here = (labels[each] == label).nonzero()[:, 0]
        if len(there):
            partner[here] = there[_nearest(features[each][here], features[other][there])]
    found = (partner >= 0).nonzero()[:, 0]
    if not len(found):
        raise InputError(
            f"no {each} sample has a partner: the labels of train and test have none in common"
        )
    sides = {each: found, other: partner[found]}
    rule = (
        f"for each {each} sample the nearest {other} sample"
        + (" of the same label" if same_label else "")
        + (" in input space" if space is None else f" by what layer {space!r} sees")
    )
    return Pairs(sides["train"], sides["test"], len(partner) - len(found), rule)


def _nearest(queries: Tensor, candidates: Tensor) -> Tensor:
    """For each query, which candidate is nearest."""
    candidates = candidates.double()
    centre = candidates.mean(0)  # far from the origin squares would cancel
    candidates = candidates - centre
    squares = candidates.square().sum(1)
    parts = []
    for some in queries.split(max(1, _DISTANCES // len(candidates))):
        # |q - c|^2 less |q|^2, which does not change which one is nearest
        distance = torch.addmm(squares, some.double() - centre, candidates.T, alpha=-2)
        parts.append(distance.argmin(1))
    return torch.cat(parts)


def _features(problem: Problem, split: Split, space: str | None) -> Tensor:
    """What distances are measured between, (N, features)."""
    if space is not None:
        at = layer(problem, space)
        seen = []
        with problem.measuring():
            for batch in problem.batches(split):
                forward = ForwardPass(problem, batch, [at.parameter])
                if forward.opaque:
                    raise InputError(f"layer {space!r} {forward.opaque[at.parameter]}")
                inputs = torch.cat(forward.inputs(at.parameter), 1)
                seen.append(inputs.flatten(1).cpu())
        return torch.cat(seen)
    inputs = problem.data(split).take(slice(None)).inputs
    is_image = isinstance(inputs, Tensor) and inputs.dtype == torch.uint8  # others are tokens
    if not isinstance(inputs, Tensor) or not (inputs.is_floating_point() or is_image):
        came = f"{inputs.dtype}" if isinstance(inputs, Tensor) else f"a {type(inputs).__name__}"
        raise InputError(
            f"distances between inputs need one tensor of numbers; the {split} inputs are {came} "
            "(lowland.pair(problem, space=...) compares what a layer sees instead)"
        )
    return inputs.flatten(1)
