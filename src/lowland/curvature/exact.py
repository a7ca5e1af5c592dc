"""Exact dense blocks and diagonals of layers, by their structure."""

from torch import Tensor

from lowland.curvature.factors import Kind, factors, unpacked
from lowland.curvature.layers import Layer, layer
from lowland.distributed import total
from lowland.errors import InputError
from lowland.problem import Problem, differentiating

# A dense block of this many weights takes 0.5 GiB in float64, and its eigenvectors as much again.
DENSE_WEIGHTS = 8192


@differentiating()
def layer_hessian(problem: Problem, name: str, kind: Kind = "hessian") -> Tensor:
    """The exact (M, M) Hessian block of one layer's weight, in float64.

    Rows and columns follow ``weight.flatten()``: row-major in ``weight[out, in]``. With
    ``kind="ggn"`` the generalised Gauss-Newton block instead, with ``kind="fisher"`` the empirical
    Fisher block.

    >>> import torch
    >>> model = torch.nn.Linear(2, 1, bias=False)
    >>> X = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    >>> layer_hessian(Problem(model, "mse", (X, torch.zeros(2, 1))), "")   # 2/N X^T X
    tensor([[10., 14.],
            [14., 20.]], dtype=torch.float64)
    """
    return layer_hessians(problem, [name], kind)[name]


def layer_hessians(problem: Problem, names: list[str], kind: Kind = "hessian") -> dict[str, Tensor]:
    """The same for several layers from one pass over the data."""
    chosen = {name: layer(problem, name) for name in names}
    for name, at in chosen.items():
        M = at.weight.numel()
        if M > DENSE_WEIGHTS:
            raise InputError(
                f"layer {name!r} has {M:,} weights, so its dense block would take "
                f"{8 * M * M / 2**30:,.1f} GiB; the limit is {DENSE_WEIGHTS:,} weights"
            )
    sums: dict[str, Tensor] = {}
    outer: dict[str, bool] = {}
    with problem.measuring():
        for found in factors(problem, list(chosen.values()), kind):
            for name, part in found.items():
                more = part.dense_sum().double()
                sums[name] = sums[name] + more if name in sums else more
                outer[name] = part.is_outer
        count = problem.count()
        means = {name: total(s) / count for name, s in sums.items()}
    return {
        name: unpacked(mean, *chosen[name].weight.shape) if outer[name] else mean
        for name, mean in means.items()
    }


def exact_diagonal(
    problem: Problem, chosen: list[Layer], kind: Kind = "hessian"
) -> dict[str, Tensor]:
    """The diagonals of the chosen layers' weights and biases by parameter name, in float64."""
    sums: dict[str, Tensor] = {}
    with problem.measuring():
        for found in factors(problem, chosen, kind):
            for part in found.values():
                at = part.layer
                rows = {at.weight_name: part.diagonal_sum()}
                if at.bias_name is not None:
                    rows[at.bias_name] = part.bias_diagonal_sum()
                for name, value in rows.items():
                    sums[name] = sums[name] + value.double() if name in sums else value.double()
        count = problem.count()
        return {
            name: (total(sums[name]) / count).view_as(p)
            for name, p in problem.params.items()
            if name in sums
        }
