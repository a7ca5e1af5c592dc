"""Share of eigenvalues near zero."""

from lowland.budget import Work
from lowland.errors import InputError
from lowland.measures.registry import Value, register
from lowland.measures.shared.determined import check_hessian_determined
from lowland.measures.shared.spectrum import hessian_spectrum, value_of
from lowland.problem import Problem

NEAR = 0.01  # of the largest magnitude
OPEN = 0.1  # a share with a larger standard error is none


@register(
    title="Share of eigenvalues near zero",
    family="curvature",
    formula="(#{n: |l_n| <= 0.01 max |l|}) / n",
    definition="The share of directions whose curvature is below a hundredth of the largest one: "
    "the bulk of the spectral density.",
    citation="Sagun et al. 2017, arXiv:1706.04454; Chaudhari et al., ICLR 2017",
    sharper="lower",
    cost=Work(needs=(hessian_spectrum, check_hessian_determined)),
)
def near_zero_share(problem: Problem) -> Value:
    """The share counted from all eigenvalues, or the middle of the quadrature's bounds."""
    check_hessian_determined(problem)
    spectrum = hessian_spectrum(problem)
    limit = NEAR * spectrum.norm
    number = spectrum.between(-limit, limit)
    if number.stderr > OPEN * spectrum.size:
        raise InputError(
            f"the quadrature leaves it open: {number!r} of {spectrum.size:,} eigenvalues"
        )
    return value_of(number, spectrum, spectrum.size)
