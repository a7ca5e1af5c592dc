"""Trace of the whole network's Hessian."""

from lowland.curvature import (
    trace as trace_of,
)
from lowland.curvature import (
    trace_work,
)
from lowland.errors import InputError
from lowland.measures.registry import Value, register
from lowland.measures.shared.spectrum import whole_hessian
from lowland.problem import Problem


@register(
    title="Hessian trace",
    family="curvature",
    formula="tr H = sum_i d2L/dw_i2",
    definition="The sum of all curvatures of the training loss: the average rise under small "
    "isotropic noise on the weights, per unit of half its variance.",
    citation="Keskar et al. 2017; Dinh et al. 2017 (it changes under rescaling)",
    sampled=True,
    sharper="higher",
    cost=trace_work,
)
def trace(problem: Problem) -> Value:
    """Exact where layers can be seen through, otherwise to a standard error of 1 %."""
    found = trace_of(whole_hessian(problem), rtol=0.01)
    if not found.converged:
        raise InputError(f"the estimate did not converge: {found!r}")
    return Value(found.value, found.method, found.stderr or None)
