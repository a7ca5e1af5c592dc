"""Product of the layers' spectral norms."""

import math

from lowland.budget import Work
from lowland.measures.registry import Value, register
from lowland.measures.shared.layer_spectra import spectral
from lowland.problem import Problem


@register(
    title="Product of spectral norms",
    family="norms",
    formula="prod_l s_l, s_l = max |W_l v|, |v| = 1",
    definition="The product over dense and convolutional layers of the weight's largest singular "
    "value; for a convolution it is that of the kernel as a matrix (outputs, inputs x positions). "
    "The scale of a normalisation counts with the layer after it, where the two can be traded for "
    "each other.",
    citation="Bartlett, Foster & Telgarsky, NeurIPS 2017",
    sharper="higher",
    cost=Work(needs=(spectral,)),
    invariant=("layers",),
)
def spectral_norms(problem: Problem) -> Value:
    """From the weights, with the scale of a normalisation counted in the layer after it."""
    norms = spectral(problem)
    return Value(math.prod(norms.values()), "exact", parts=norms)
