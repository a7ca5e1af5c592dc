"""Norm of the weight vector."""

import torch

from lowland.measures.registry import Value, register
from lowland.measures.sharing import FREE
from lowland.problem import Problem


@register(
    title="Weight norm",
    family="norms",
    formula="|w|_2 over all parameters",
    definition="The Euclidean length of the parameter vector: the size of the solution.",
    citation="Feng & Tu, 2022, Fig. 2B",
    sharper="higher",
    cost=FREE,
)
def weight_norm(problem: Problem) -> Value:
    """The norm over all parameters; tied ones count once."""
    squares = [p.double().square().sum() for p in problem.params.values()]
    return Value(float(torch.stack(squares).sum().sqrt()), "exact")
