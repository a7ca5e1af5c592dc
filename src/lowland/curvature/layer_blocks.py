"""Exact dense blocks and diagonals of parameters, from the factors of every sample."""

from collections.abc import Sequence

import torch
from torch import Tensor

from lowland.curvature.layer_search import Layer, parameters
from lowland.curvature.layer_search import layer as layer_named
from lowland.curvature.operators import hessian
from lowland.curvature.sample_factors import Kind, check_kind, factors, unpacked
from lowland.curvature.sketch import finite
from lowland.distributed import total
from lowland.errors import InputError
from lowland.problem import Problem, of_a_problem

# A dense block of this many weights takes 0.5 GiB in float64, and its eigenvectors as much again.
DENSE_WEIGHTS = 8192


@of_a_problem
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
    """The :func:`layer_hessian` of several layers by name, from one pass over the data."""
    check_kind(kind)
    chosen = {name: layer_named(problem, name) for name in names}
    for name, layer in chosen.items():
        if layer.size > DENSE_WEIGHTS:
            raise InputError(
                f"layer {name!r} has {layer.size:,} weights, so its dense block would take "
                f"{8 * layer.size**2 / 2**30:,.1f} GiB; the limit is {DENSE_WEIGHTS:,} weights"
            )
    series = {n: layer for n, layer in chosen.items() if kind == "hessian" and layer.in_series}
    sums: dict[tuple[str, bool], Tensor] = {}
    rest = [layer for name, layer in chosen.items() if name not in series]
    with problem.measuring():
        for parts in factors(problem, rest, kind):
            for parameter, part in parts.items():
                # Batches that show a routed layer one position are packed, the others are not.
                place = parameter, part.is_outer
                more = part.dense_sum().double()
                sums[place] = sums[place] + more if place in sums else more
        count = problem.count()
        means = {place: finite(total(s) / count) for place, s in sums.items()}
    blocks = {}
    for name in chosen:
        layer = layer_named(problem, name)  # an error if it could not be seen through on all data
        if name in series:  # one product for each weight: cross terms between its uses included
            blocks[name] = hessian(problem, [layer.parameter]).dense().double()
        else:
            shares = [
                unpacked(mean, layer) if packed else mean
                for (parameter, packed), mean in means.items()
                if parameter == layer.parameter
            ]
            blocks[name] = sum(shares[1:], shares[0])
    return blocks


def exact_diagonal(
    problem: Problem, chosen: Sequence[Layer], kind: Kind = "hessian"
) -> dict[str, Tensor]:
    """The diagonals of the chosen parameters by name, in float64.

    One that turns out not to be seen through on some of the data is left out.
    """
    params = problem.params
    sums = {
        name: torch.zeros(params[name].numel(), dtype=torch.float64, device=problem.device)
        for name in (layer.parameter for layer in chosen)
    }
    with problem.measuring():
        for parts in factors(problem, chosen, kind):
            for name, part in parts.items():
                sums[name] += part.diagonal_sum()
        count, seen = problem.count(), parameters(problem)
        names = [layer.parameter for layer in chosen]
        # Data-parallel ranks keep what all of them saw through.
        lost = total(torch.tensor([name not in seen for name in names], dtype=torch.long))
        kept = {name for name, times in zip(names, lost.tolist(), strict=True) if not times}
        return {
            name: finite(total(sums[name]) / count).view_as(p)
            for name, p in params.items()
            if name in kept
        }
