"""Product of the layers' Frobenius norms."""

import math

from lowland.budget import Work
from lowland.measures.registry import Value, register
from lowland.measures.shared.layer_spectra import layer_matrices, matrix_layers, scaled
from lowland.problem import Problem


@register(
    title="Product of Frobenius norms",
    family="norms",
    formula="prod_l |W_l|_F",
    definition="The product over dense and convolutional layers of the Euclidean length of the "
    "weight, biases left out: it limits how large the outputs of a ReLU network can be. The scale "
    "of a normalisation counts with the layer after it, where the two can be traded for each "
    "other.",
    citation="Neyshabur, Tomioka & Srebro, COLT 2015",
    sharper="higher",
    cost=Work(needs=(matrix_layers, scaled)),
    invariant=("layers",),
)
def frobenius_norms(problem: Problem) -> Value:
    """From the weights, with the scale of a normalisation counted in the layer after it."""
    norms = {
        name: float(matrix.norm())
        for name, matrix in layer_matrices(problem, problem.params).items()
    }
    return Value(math.prod(norms.values()), "exact", parts=norms)
