"""Condition number of the whole network's Hessian."""

from lowland.curvature import condition_number as condition_of
from lowland.errors import InputError
from lowland.measures.registry import Value, register
from lowland.measures.spectrum import whole_hessian
from lowland.problem import Problem


@register(
    title="Condition number",
    family="curvature",
    formula="|l|_max / |l|_min",
    definition="The sharpest against the flattest curvature. A network with more parameters than "
    "data, or with softmax outputs, has directions without curvature, and then there is none.",
    citation="Sagun et al. 2017, arXiv:1706.04454",
    sharper="higher",
)
def condition_number(problem: Problem) -> Value:
    """All eigenvalues of a small network, both ends by Lanczos of a large one."""
    found = condition_of(whole_hessian(problem), max_matvecs=120)
    if not found.converged or found.value == float("inf"):
        raise InputError(f"it is infinite or out of reach ({found.method})")
    return Value(found.value, found.method, found.stderr or None)
