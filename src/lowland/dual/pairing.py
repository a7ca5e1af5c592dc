"""Which training sample stands beside which test sample."""

import torch
from torch import Tensor

from lowland.errors import InputError
from lowland.problem import Problem

# Distances held at once: 256 MiB in float64.
_DISTANCES = 1 << 25


def nearest_same_label(problem: Problem) -> Tensor:
    """For each test sample, the index of the nearest training sample with the same label, (K,).

    Nearest is by Euclidean distance in input space (Feng & Tu, Methods). Distances are computed
    in float64 and in chunks; the tests x train matrix is never held.
    """
    train, test = _flat_inputs(problem, "train"), _flat_inputs(problem, "test")
    labels, wanted = problem.train.targets, problem.test.targets
    for split, y in (("train", labels), ("test", wanted)):
        if y.is_floating_point() or y.ndim != 1:
            raise InputError(
                f"pairing needs one class label per sample; the {split} targets have shape "
                f"{tuple(y.shape)} and type {y.dtype}"
            )
    partner = torch.empty(len(wanted), dtype=torch.long)
    for label in wanted.unique():
        here, there = (labels == label).nonzero()[:, 0], (wanted == label).nonzero()[:, 0]
        if not len(here):
            raise InputError(
                f"{len(there)} test sample(s) have label {int(label)}, which no training sample "
                "has: they have no partner; remove them or add training samples of that label"
            )
        candidates = train[here].double()
        squares = candidates.square().sum(1)  # (n,)
        for part in there.split(max(1, _DISTANCES // len(here))):
            # |t - x|^2 less |t|^2, which does not change which one is nearest
            distance = squares - 2 * (test[part].double() @ candidates.T)
            partner[part] = here[distance.argmin(1)]
    return partner


def _flat_inputs(problem: Problem, split: str) -> Tensor:
    data = problem.data(split)
    inputs = data.take(slice(None)).inputs
    if not isinstance(inputs, Tensor):
        raise InputError(
            f"nearest neighbours need inputs that are one tensor; the {split} inputs are a "
            f"{type(inputs).__name__}"
        )
    return inputs.flatten(1)
