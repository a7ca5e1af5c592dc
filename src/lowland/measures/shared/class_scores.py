"""What measures of a classifier's decisions share: its scores."""

from collections.abc import Iterator

import torch
from torch import Tensor

from lowland.errors import InputError
from lowland.problem import Problem


def class_scores(problem: Problem, split: str) -> Iterator[tuple[Tensor, Tensor]]:
    """Batch by batch, the scores of all classes (n, C), in float64, and the right classes (n,)."""
    targets = problem.data(split).targets
    if not problem.loss.classes or targets.is_floating_point() or targets.ndim != 1:
        raise InputError(
            f"needs one class label for each sample; the loss is {problem.loss.name!r} and the "
            f"targets are {targets.dtype} of shape {tuple(targets.shape)}"
        )
    with problem.measuring(), torch.no_grad():
        for batch in problem.batches(split):
            z = problem.outputs(batch.inputs).double()
            if z.ndim != 2 or z.shape[1] < 2:
                raise InputError(f"needs outputs (samples, classes); got {tuple(z.shape)}")
            yield z, batch.targets
