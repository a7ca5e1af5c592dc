"""The directions that the gap is decomposed over: eigenvectors of a layer's curvature."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lowland.curvature import (
    Kind,
    Layer,
    Operator,
    eigsh,
    factor_bytes,
    fisher,
    ggn,
    hessian,
    layer_hessians,
    layer_operators,
    passes,
    rounding,
)
from lowland.problem import Problem

# Up to this many weights all eigenvectors are computed: a quarter of a minute on two cores.
ALL_DIRECTIONS = 4096
# Of larger layers, so many leading ones.
LEADING = 50
# A smooth network's exact block takes a double backward pass for each of the layer's outputs.
_PASSES = 1024


@dataclass(frozen=True)
class Basis:
    """Orthonormal directions (M, n) with the curvature along each of them.

    The weights are in the order of the layer's matrices, (G, out, in).
    """

    values: Tensor  # (n,)
    vectors: Tensor  # (M, n)
    route: str

    @property
    def complete(self) -> bool:
        """Whether the directions span the whole weight space."""
        return self.vectors.shape[0] == self.vectors.shape[1]


def number_listed(M: int, directions: int | None) -> int:
    """How many of M directions are computed: as many as the caller asks for, or the default."""
    return min(M, directions or (M if M <= ALL_DIRECTIONS else LEADING))


def bases(
    problem: Problem, chosen: list[Layer], kind: Kind, directions: int | None
) -> dict[str, Basis]:
    """The directions of each layer by its name; layers share passes over the data."""
    routes = {layer.name: route(problem, layer, kind, directions) for layer in chosen}
    by_name = {}
    dense = [name for name, way in routes.items() if way == "dense"]
    for name, H in layer_hessians(problem, dense, kind).items():
        values, vectors = torch.linalg.eigh(H)
        by_name[name] = Basis(values, vectors, "all, from the exact dense block")
    factored = [name for name, route in routes.items() if route == "factored"]
    for name, block in layer_operators(problem, factored, kind).items():
        by_name[name] = _leading(block, directions, "the exact block in factors")
    operators = {"hessian": hessian, "ggn": ggn, "fisher": fisher}
    for layer in chosen:
        if routes[layer.name] == "products":
            operator = operators[kind](problem, [layer.parameter])
            by_name[layer.name] = _leading(operator, directions, "products by autograd")
    return {
        layer.name: replace(
            by_name[layer.name], vectors=layer.matrix(by_name[layer.name].vectors).flatten(0, 2)
        )
        for layer in chosen
    }


def route(problem: Problem, layer: Layer, kind: Kind, directions: int | None) -> str:
    """How the directions are found: from the dense block, its factors, or products."""
    M = layer.size
    if layer.in_series and kind == "hessian":
        return "products"  # its Hessian does not follow from its outputs
    held, used = factor_bytes(problem, layer, kind)
    fits = kind != "hessian" or passes(layer) <= _PASSES
    if fits and number_listed(M, directions) == M and used <= problem.memory:
        return "dense"
    if fits and held * len(problem.train) <= problem.memory:
        return "factored"
    return "products"


def _leading(operator: Operator, directions: int | None, by: str) -> Basis:
    """The directions of largest curvature, by magnitude."""
    k = min(directions or LEADING, operator.size)
    tol = 1e-8 if operator.dtype == torch.float64 else 1e-4
    pairs = eigsh(operator, k, tol=tol, max_matvecs=40 * k + 400)
    worst = float((pairs.residuals / pairs.values.abs()).max())
    state = "" if pairs.converged else ", NOT converged"
    route = (
        f"the {k} leading ones by Lanczos, {pairs.matvecs} products with {by}, residuals up to "
        f"{worst:.0e} of the eigenvalue{state}"
    )
    return Basis(pairs.values, pairs.vectors.double(), route)


def canonical(basis: Basis, null_components: Tensor, null: Tensor) -> Basis:
    """The basis with its null space turned to the axes along which the data's gradients vary most.

    Eigenvectors of one eigenvalue are no property of the matrix: the solver returns some. Where
    the curvature is zero to rounding, the covariance of the effective gradients chooses instead,
    so that the directions and their order depend on model and data only.

    Args:
        basis: all directions.
        null_components: the effective gradients along the null directions, (K, d).
        null: which directions they are, (n,).
    """
    centred = null_components - null_components.mean(0)
    _, axes = torch.linalg.eigh(centred.T @ centred)
    vectors = basis.vectors.clone()
    vectors[:, null] = vectors[:, null] @ axes
    return Basis(basis.values, vectors, basis.route)


def null_directions(basis: Basis, dtype: torch.dtype) -> Tensor:
    """Which directions have no curvature beyond the rounding of the model's precision, (n,)."""
    return basis.values.abs() <= rounding(dtype) * basis.values.abs().max()
