"""Trace of the whole network's Hessian."""

from lowland.curvature.exact import exact_diagonal
from lowland.curvature.layers import layers
from lowland.errors import InputError
from lowland.measures.registry import Value, register
from lowland.problem import Problem


@register(
    title="Hessian trace",
    formula="tr H = sum_i d2L/dw_i2",
    definition="The sum of all curvatures of the training loss: the average rise under small "
    "isotropic noise on the weights, per unit of half its variance.",
    citation="Keskar et al. 2017; Dinh et al. 2017 (it changes under rescaling)",
    sharper="higher",
)
def trace(problem: Problem) -> Value:
    """The sum of the layers' exact block traces."""
    parts = exact_diagonal(problem, list(layers(problem).values()))
    missing = [name for name in problem.params if name not in parts]
    if missing:
        raise InputError(
            f"parameter(s) {', '.join(missing)} belong to no layer whose structure is known"
        )
    return Value(sum(float(d.sum()) for d in parts.values()), "exact, by layer structure")
