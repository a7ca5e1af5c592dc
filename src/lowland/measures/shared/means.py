"""Means over the samples of all ranks."""

import torch
from torch import Tensor

from lowland.distributed import total


def mean_and_error(values: Tensor, correction: int = 1) -> tuple[float, float | None]:
    """The mean of one number per sample, and its standard error; None of too few samples."""
    values = values.double()
    count, summed = total(torch.stack([values.new_tensor(len(values)), values.sum()])).tolist()
    mean = summed / count
    squares = float(total((values - mean).square().sum()))
    free = count - correction
    return mean, (squares / free / count) ** 0.5 if free > 0 else None
