"""Share of negative eigenvalues."""

from lowland.budget import Work
from lowland.curvature import (
    negative_eigenvalues,
)
from lowland.errors import InputError
from lowland.measures.registry import Value, register
from lowland.measures.shared.determined import check_hessian_determined
from lowland.measures.shared.spectrum import hessian_spectrum, value_of
from lowland.problem import Problem

OPEN = 0.1  # a share with a larger standard error is none


@register(
    title="Share of negative eigenvalues",
    family="curvature",
    formula="(#{n: l_n < -threshold}) / n",
    definition="The share of directions along which the training loss curves downwards: zero at a "
    "minimum, so that it tells how far from one the training stopped.",
    citation="Sagun et al. 2017, arXiv:1706.04454",
    sharper=None,
    cost=Work(needs=(hessian_spectrum, check_hessian_determined)),
)
def negative_share(problem: Problem) -> Value:
    """Counted below rounding, which the method states, in networks that are small enough.

    In others most eigenvalues are so near to zero that products do not tell their sign, and there
    is no value. Rescaling does not change how many eigenvalues are negative (Sylvester's law of
    inertia), but it changes how many of them can be told from zero.
    """
    check_hessian_determined(problem)
    spectrum = hessian_spectrum(problem)
    number = negative_eigenvalues(spectrum)
    if number.stderr > OPEN * spectrum.size:
        surely = int((spectrum.single & (spectrum.nodes < 0)).sum())
        raise InputError(
            f"{spectrum.matvecs} products do not tell the sign of eigenvalues near zero: "
            f"{number.value / spectrum.size:.2f} ± {number.stderr / spectrum.size:.2f} of them are "
            f"negative; found were {surely}, and as the lowest {float(spectrum.nodes[0]):.2g}"
        )
    return value_of(number, spectrum, spectrum.size)
