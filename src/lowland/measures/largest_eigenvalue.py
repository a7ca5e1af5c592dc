"""Largest eigenvalue of the whole network's Hessian."""

from dataclasses import replace

from lowland.budget import Work
from lowland.errors import InputError
from lowland.measures.registry import Value, register
from lowland.measures.shared.spectrum import TOLERANCE, leading, search
from lowland.problem import Problem


@register(
    title="Largest Hessian eigenvalue",
    family="curvature",
    formula="max_v v^T H v, |v| = 1",
    definition="The curvature of the training loss along its sharpest direction.",
    citation="Keskar et al. 2017; Dinh et al. 2017 (it changes under rescaling)",
    sampled=True,
    sharper="higher",
    cost=Work(needs=(leading,)),
)
def largest_eigenvalue(problem: Problem) -> Value:
    """Lanczos; the residual bounds the distance to an eigenvalue."""
    pairs = leading(problem)
    if float(pairs.residuals[0]) > TOLERANCE * abs(float(pairs.values[0])):
        pairs = search(problem, replace(pairs, vectors=pairs.vectors[:, :1]), TOLERANCE)
    value, residual = float(pairs.values[0]), float(pairs.residuals[0])
    if not residual <= TOLERANCE * abs(value):
        raise InputError(
            f"the Lanczos iteration has a residual of {residual:.1e} after {pairs.matvecs} products"
        )
    return Value(value, f"Lanczos, {pairs.matvecs} products in all, residual {residual:.1e}")
