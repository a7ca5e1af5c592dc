"""Effective dimensionality of the whole network's Hessian."""

from lowland.curvature import effective_dimension as dimension_of
from lowland.measures.registry import Value, register
from lowland.measures.spectrum import density, whole_hessian
from lowland.problem import Problem


@register(
    title="Effective dimension",
    family="curvature",
    formula="sum_n l_n / (l_n + 1/N)",
    definition="How many directions of weight space the data determine: those whose curvature, "
    "summed over all N samples, is above that of a prior of unit precision.",
    citation="MacKay, NeurIPS 1991; Maddox, Benton & Wilson 2020, arXiv:2003.02139",
    sharper="higher",
)
def effective_dimension(problem: Problem) -> Value:
    """By stochastic Lanczos quadrature, or from all eigenvalues of a small network."""
    H = whole_hessian(problem)
    found = dimension_of(H, alpha=1 / problem.count(), density=density(problem))
    return Value(found.value, found.method, found.stderr or None)
