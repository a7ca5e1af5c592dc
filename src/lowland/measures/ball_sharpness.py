"""The worst rise of the training loss within a ball around the weights."""

from lowland.measures.registry import Value, register
from lowland.measures.sam_sharpness import RHO
from lowland.measures.shared.ascent import WORST_RISE, worst_rise
from lowland.measures.shared.neighbourhood import neighbourhood
from lowland.problem import Problem


@register(
    title="Worst case in a ball",
    family="perturbation",
    formula="max_{|v| <= rho} L(w + v) - L(w), rho = 0.05",
    definition="How much the training loss can rise within a small ball around the weights.",
    citation="Foret et al., ICLR 2021",
    sampled=True,
    sharper="higher",
    cost=WORST_RISE,
)
def ball_sharpness(problem: Problem) -> Value:
    """Ascent from SAM's step, so never less than SAM's sharpness."""
    return worst_rise(neighbourhood(problem), 1.0, RHO)
