"""The worst rise of the training loss when every weight changes in proportion to itself."""

from lowland.measures.registry import Value, register
from lowland.measures.shared.ascent import WORST_RISE, worst_rise
from lowland.measures.shared.neighbourhood import neighbourhood
from lowland.problem import Problem

RHO = 0.05


@register(
    title="Adaptive worst case",
    family="perturbation",
    formula="max_{|u| <= rho} L(w + |w| * u) - L(w), rho = 0.05",
    definition="How much the training loss can rise when the relative changes of all weights "
    "together have a small norm.",
    citation="Kwon et al., ICML 2021 (ASAM); Andriushchenko et al., ICML 2023",
    sampled=True,
    sharper="higher",
    cost=WORST_RISE,
    invariant=("layers", "units"),
)
def adaptive_worst_case(problem: Problem) -> Value:
    """Ascent in u from ASAM's step, on the whole training set; the papers average over batches."""
    near = neighbourhood(problem)
    return worst_rise(near, near.w.abs(), RHO)
