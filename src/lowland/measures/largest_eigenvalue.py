"""Largest eigenvalue of the whole network's Hessian."""

from lowland.curvature import eigsh
from lowland.errors import InputError
from lowland.measures.registry import Value, register
from lowland.measures.spectrum import leading, whole_hessian
from lowland.problem import Problem

TOLERANCE = 1e-4  # of the residual, as a share of the eigenvalue


@register(
    title="Largest Hessian eigenvalue",
    family="curvature",
    formula="max_v v^T H v, |v| = 1",
    definition="The curvature of the training loss along its sharpest direction.",
    citation="Keskar et al. 2017; Dinh et al. 2017 (it changes under rescaling)",
    sharper="higher",
)
def largest_eigenvalue(problem: Problem) -> Value:
    """Lanczos; the residual bounds the distance to an eigenvalue."""
    found = leading(problem)
    value, residual = float(found.values[0]), float(found.residuals[0])
    if residual > TOLERANCE * abs(value):
        H, start = whole_hessian(problem), found.vectors[:, 0]
        found = eigsh(H, 1, which="largest", tol=TOLERANCE, start=start)
        value, residual = float(found.values[0]), float(found.residuals[0])
        if not found.converged:
            raise InputError(
                f"the Lanczos iteration has a residual of {residual:.1e} after {found.matvecs} "
                "products"
            )
    return Value(value, f"Lanczos, {found.matvecs} products, residual {residual:.1e}")
