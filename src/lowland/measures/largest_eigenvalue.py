"""Largest eigenvalue of the whole network's Hessian."""

from lowland.curvature import eigsh
from lowland.errors import InputError
from lowland.measures.registry import Value, register
from lowland.measures.spectrum import whole_hessian
from lowland.problem import Problem


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
    found = eigsh(whole_hessian(problem), k=1, which="largest", tol=1e-4)
    if not found.converged:
        raise InputError(
            f"the Lanczos iteration has a residual of {float(found.residuals[0]):.1e} after "
            f"{found.matvecs} products"
        )
    return Value(
        float(found.values[0]),
        f"Lanczos, {found.matvecs} products, residual {float(found.residuals[0]):.1e}",
    )
