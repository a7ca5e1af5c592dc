"""Share of eigenvalues near zero."""

from lowland.measures.registry import Value, register
from lowland.measures.spectrum import density
from lowland.problem import Problem

NEAR = 0.01  # of the largest magnitude


@register(
    title="Share of eigenvalues near zero",
    family="curvature",
    formula="#{n: |l_n| <= 0.01 max |l|} / n",
    definition="The share of directions whose curvature is below a hundredth of the largest one: "
    "the bulk of the spectral density.",
    citation="Sagun et al. 2017, arXiv:1706.04454; Chaudhari et al., ICLR 2017",
    sharper="lower",
)
def near_zero_share(problem: Problem) -> Value:
    """Read off the spectral density."""
    known = density(problem)
    limit = NEAR * float(known.nodes.abs().max())
    above, below = known.below(limit), known.below(-limit)
    stderr = (above.stderr**2 + below.stderr**2) ** 0.5
    return Value(above.value - below.value, above.method, stderr or None)
