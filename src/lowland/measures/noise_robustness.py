"""Rise of the test loss under noise on the inputs."""

import numpy as np
import torch
from torch.utils import _pytree as pytree

from lowland.batches import Batch, Inputs
from lowland.budget import Work
from lowland.distributed import before, ranks, total
from lowland.errors import InputError
from lowland.measures.registry import Value, register
from lowland.measures.shared.standard_error import standard_error
from lowland.measures.sharing import on_test
from lowland.problem import Problem

_SHARE, _DRAWS = 0.1, 8
_DROPPED = 1 << 16  # numbers that are drawn at once to be passed over


# What a normal number of NumPy's takes, in operations of linear algebra.
_NORMAL = 400


def noise_work(problem: Problem) -> Work:
    """A pass over the test data for each draw, and the numbers drawn."""
    if not problem.has_test:
        return Work()
    sizes = (t.numel() for t in pytree.tree_leaves(problem.first(1, "test").inputs))
    numbers = _DRAWS * sum(sizes) * problem.count("test")
    return on_test(Work(forwards=_DRAWS + 1))(problem) + Work(flops=_NORMAL * numbers)


@register(
    title="Loss under input noise",
    family="outcome",
    formula="mean over 8 draws of L_test(x + 0.1 s n) - L_test(x), n ~ N(0, 1)",
    definition="How much the mean test loss rises when Gaussian noise is added to the inputs, with "
    "a tenth of the standard deviation s of all training inputs.",
    citation="Bishop, Neural Computation 1995; Novak et al., ICLR 2018",
    sharper=None,
    cost=noise_work,
    needs_test=True,
    invariant=("layers", "units"),
)
def noise_robustness(problem: Problem) -> Value:
    """The error is that of the draws; the samples are the same with and without noise."""
    sigma = _SHARE * _deviation(problem)
    clean = problem.losses("test").double().sum()
    starts = _starts(problem)
    with problem.measuring(), torch.no_grad():
        sums = []
        for draw in range(_DRAWS):
            streams = [_stream([draw, i], start) for i, start in enumerate(starts)]
            losses = [
                problem.batch_losses(Batch(_noisy(b.inputs, sigma, streams), b.targets))
                for b in problem.batches("test")
            ]
            sums.append(torch.cat(losses).double().sum() - clean)
    rises = total(torch.stack(sums)) / problem.count("test")
    return Value(float(rises.mean()), f"{_DRAWS} draws of noise", standard_error(rises))


def _starts(problem: Problem) -> list[int]:
    """How many numbers of each input tensor lie on the ranks before this one."""
    leaves = len(pytree.tree_leaves(problem.first(1, "test").inputs))
    if ranks() == 1:
        return [0] * leaves
    sizes = [0] * leaves
    for batch in problem.batches("test"):
        for i, t in enumerate(pytree.tree_leaves(batch.inputs)):
            sizes[i] += t.numel()
    return [before(size) for size in sizes]


def _stream(seed: list[int], start: int) -> np.random.Generator:
    """Normal numbers from the one at ``start`` on.

    NumPy's streams, unlike torch's, are the same however they are cut into batches, or into ranks.
    """
    rng = np.random.default_rng(seed)
    while start > 0:  # drawn and dropped: the stream has no way to leap
        rng.standard_normal(min(start, _DROPPED))
        start -= _DROPPED
    return rng


def _noisy(inputs: Inputs, sigma: float, streams: list[np.random.Generator]) -> Inputs:
    """The inputs with noise from a stream for each of their tensors."""
    tensors, structure = pytree.tree_flatten(inputs)
    noisy = [
        t + sigma * torch.from_numpy(rng.standard_normal(tuple(t.shape))).to(t)
        for t, rng in zip(tensors, streams, strict=True)
    ]
    return pytree.tree_unflatten(noisy, structure)


def _deviation(problem: Problem) -> float:
    """The standard deviation of all numbers in the training inputs."""
    sums = torch.zeros(3, dtype=torch.float64)  # of their powers 0, 1 and 2
    for batch in problem.batches("train"):
        for t in pytree.tree_leaves(batch.inputs):
            if not t.is_floating_point():
                raise InputError(
                    f"noise can be added to floating-point inputs only; some are {t.dtype}"
                )
            wide = t.double()
            sums += torch.stack([wide.new_tensor(t.numel()), wide.sum(), wide.square().sum()]).cpu()
    count, first, second = total(sums).tolist()
    return max(second / count - (first / count) ** 2, 0.0) ** 0.5
