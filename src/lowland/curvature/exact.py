"""Exact dense blocks, diagonals and traces of layers, by their structure."""

import torch
from torch import Tensor

from lowland.curvature.factors import factors
from lowland.curvature.layers import layer, layers
from lowland.errors import InputError
from lowland.problem import Problem

# A dense block of this many weights takes 0.5 GiB in float64, and its eigenvectors as much again.
DENSE_WEIGHTS = 8192


def layer_hessian(problem: Problem, name: str, kind: str = "hessian") -> Tensor:
    """The exact (M, M) Hessian block of one layer's weight, in float64.

    Rows and columns follow ``weight.flatten()``: row-major in ``weight[out, in]``. With
    ``kind="ggn"`` the generalised Gauss-Newton block instead.

    >>> model = torch.nn.Linear(2, 1, bias=False)
    >>> X = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    >>> layer_hessian(Problem(model, "mse", (X, torch.zeros(2, 1))), "")   # 2/N X^T X
    tensor([[10., 14.],
            [14., 20.]], dtype=torch.float64)
    """
    chosen = layer(problem, name)
    M = chosen.module.weight.numel()
    if M > DENSE_WEIGHTS:
        raise InputError(
            f"layer {name!r} has {M:,} weights, so its dense block would take "
            f"{8 * M * M / 2**30:,.1f} GiB; the limit is {DENSE_WEIGHTS:,} weights"
        )
    total: Tensor | float = 0.0
    for found in factors(problem, [chosen], kind):
        total = total + found[name].dense_sum()
    assert isinstance(total, Tensor)
    return total / len(problem.train)


def diagonal(problem: Problem, kind: str = "hessian") -> dict[str, Tensor]:
    """The exact diagonal for the parameters of every dense and convolutional layer, in float64."""
    chosen = list(layers(problem).values())
    total: dict[str, Tensor] = {}
    for found in factors(problem, chosen, kind):
        for name, part in found.items():
            at = part.layer
            parts = {at.weight_name: part.diagonal_sum().view_as(at.module.weight)}
            if at.module.bias is not None:
                bias = at.weight_name.removesuffix("weight") + "bias"
                parts[bias] = part.bias_diagonal_sum().view_as(at.module.bias)
            for name, value in parts.items():
                total[name] = total.get(name, torch.zeros_like(value)) + value
    return {name: value / len(problem.train) for name, value in total.items()}
