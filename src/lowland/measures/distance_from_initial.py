"""How far training has moved the parameters."""

import math

from lowland.measures.registry import Value, register
from lowland.measures.sharing import FREE
from lowland.problem import Problem


@register(
    title="Distance from initialisation",
    family="norms",
    formula="|w - w_0|_2 over all parameters",
    definition="The Euclidean distance of the parameters from those that the training began with.",
    citation="Nagarajan & Kolter, 2019; Jiang et al., ICLR 2020",
    sharper="higher",
    cost=FREE,
    needs_initial=True,
)
def distance_from_initial(problem: Problem) -> Value:
    """The distance over all parameters; tied ones count once."""
    initial = problem.initial
    moved = {
        name: float((p.double() - initial[name].double()).norm())
        for name, p in problem.params.items()
    }
    return Value(math.hypot(*moved.values()), "exact", parts=moved)
