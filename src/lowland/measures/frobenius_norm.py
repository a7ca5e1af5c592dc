"""Frobenius norm of the whole network's Hessian."""

from lowland.curvature import frobenius_norm as norm_of
from lowland.errors import InputError
from lowland.measures.registry import Value, register
from lowland.measures.spectrum import whole_hessian
from lowland.problem import Problem


@register(
    title="Hessian Frobenius norm",
    family="curvature",
    formula="|H|_F = sqrt(sum_n l_n^2)",
    definition="The root of the sum of all squared curvatures: it weighs sharp directions more "
    "than the trace does.",
    citation="Yao et al., NeurIPS 2018",
    sharper="higher",
)
def frobenius_norm(problem: Problem) -> Value:
    """Estimated from products to a standard error of 10 %."""
    found = norm_of(whole_hessian(problem), rtol=0.1)
    if not found.converged:
        raise InputError(f"the estimate did not converge: {found!r}")
    return Value(found.value, found.method, found.stderr or None)
