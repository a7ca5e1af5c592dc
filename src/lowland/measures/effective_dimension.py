"""Effective dimensionality of the whole network's curvature."""

from lowland.budget import Work
from lowland.errors import InputError
from lowland.measures.registry import Value, register
from lowland.measures.shared.spectrum import effective_dimension as dimension_of
from lowland.measures.shared.spectrum import ggn_spectrum, value_of
from lowland.problem import Problem

OPEN = 0.5  # a dimension with a larger standard error, as a share of it, is none


@register(
    title="Effective dimension",
    family="curvature",
    formula="sum_n l_n / (l_n + 1/N)",
    definition="How many directions of weight space the data determine: those whose curvature, "
    "summed over all N samples, is above that of a prior of unit precision. The curvature is the "
    "Gauss-Newton one, which has no negative directions.",
    citation="MacKay, NeurIPS 1991; Maddox, Benton & Wilson 2020, arXiv:2003.02139",
    sharper="higher",
    cost=Work(needs=(ggn_spectrum,)),
)
def effective_dimension(problem: Problem) -> Value:
    """By block Lanczos quadrature, or from all eigenvalues of a small network."""
    spectrum = ggn_spectrum(problem)
    dimension = dimension_of(problem, spectrum)
    if not dimension.stderr <= OPEN * dimension.value:
        raise InputError(f"the quadrature leaves it open: {dimension!r}")
    return value_of(dimension, spectrum)
