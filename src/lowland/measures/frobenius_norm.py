"""Frobenius norm of the whole network's Hessian."""

from lowland.budget import Work
from lowland.curvature import (
    frobenius_norm as norm_of,
)
from lowland.errors import InputError
from lowland.measures.registry import Value, register
from lowland.measures.shared.spectrum import hessian_spectrum, value_of
from lowland.problem import Problem


@register(
    title="Hessian Frobenius norm",
    family="curvature",
    formula="|H|_F = sqrt(sum_n l_n^2)",
    definition="The root of the sum of all squared curvatures: it weighs sharp directions more "
    "than the trace does.",
    citation="Yao et al., NeurIPS 2018",
    sampled=True,
    sharper="higher",
    cost=Work(needs=(hessian_spectrum,)),
)
def frobenius_norm(problem: Problem) -> Value:
    """From all eigenvalues, or the leading ones and a sample of the others."""
    spectrum = hessian_spectrum(problem)
    norm = norm_of(spectrum)
    if not norm.stderr <= 0.25 * norm.value:
        raise InputError(f"the sample leaves it open: {norm!r}")
    return value_of(norm, spectrum)
