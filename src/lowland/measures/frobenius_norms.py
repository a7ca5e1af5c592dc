"""Product of the layers' Frobenius norms."""

import math

from lowland.measures.registry import Value, register
from lowland.measures.shared.layer_spectra import matrix_layers
from lowland.problem import Problem


@register(
    title="Product of Frobenius norms",
    family="norms",
    formula="prod_l |W_l|_F",
    definition="The product over dense and convolutional layers of the Euclidean length of the "
    "weight, biases left out: it limits how large the outputs of a ReLU network can be.",
    citation="Neyshabur, Tomioka & Srebro, COLT 2015",
    sharper="higher",
    invariant=("layers",),
)
def frobenius_norms(problem: Problem) -> Value:
    """From the weights alone."""
    norms = {
        at.name: float(problem.params[at.parameter].double().norm())
        for at in matrix_layers(problem)
    }
    return Value(math.prod(norms.values()), "exact", parts=norms)
