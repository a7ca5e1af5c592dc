"""Rise of the test loss under noise on the inputs."""

import numpy as np
import torch
from torch.utils import _pytree as pytree

from lowland.batches import Batch, Inputs
from lowland.budget import Work
from lowland.errors import InputError
from lowland.measures.registry import Value, register
from lowland.measures.shared.standard_error import standard_error
from lowland.measures.sharing import on_test
from lowland.problem import Problem

_SHARE, _DRAWS = 0.1, 8


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
    clean = float(problem.losses("test").double().mean())
    with problem.measuring(), torch.no_grad():
        rises = []
        for draw in range(_DRAWS):
            streams: dict[int, np.random.Generator] = {}
            losses = [
                problem.batch_losses(Batch(_noisy(b.inputs, sigma, draw, streams), b.targets))
                for b in problem.batches("test")
            ]
            rises.append(float(torch.cat(losses).double().mean()) - clean)
    error = standard_error(torch.tensor(rises))
    return Value(float(np.mean(rises)), f"{_DRAWS} draws of noise", error)


def _noisy(
    inputs: Inputs, sigma: float, draw: int, streams: dict[int, np.random.Generator]
) -> Inputs:
    """The inputs with noise from a stream for each of their tensors.

    NumPy's streams, unlike torch's, are the same however they are cut into batches.
    """
    tensors, structure = pytree.tree_flatten(inputs)
    noisy = []
    for i, t in enumerate(tensors):
        rng = streams.setdefault(i, np.random.default_rng([draw, i]))
        noisy.append(t + sigma * torch.from_numpy(rng.standard_normal(tuple(t.shape))).to(t))
    return pytree.tree_unflatten(noisy, structure)


def _deviation(problem: Problem) -> float:
    """The standard deviation of all numbers in the training inputs."""
    count, first, second = 0, 0.0, 0.0
    for batch in problem.batches("train"):
        for t in pytree.tree_leaves(batch.inputs):
            if not t.is_floating_point():
                raise InputError(
                    f"noise can be added to floating-point inputs only; some are {t.dtype}"
                )
            count += t.numel()
            first += float(t.double().sum())
            second += float(t.double().square().sum())
    return max(second / count - (first / count) ** 2, 0.0) ** 0.5
