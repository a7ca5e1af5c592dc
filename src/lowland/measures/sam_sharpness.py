"""The rise of the training loss that one step of SAM finds."""

from lowland.budget import Work
from lowland.measures.registry import Value, register
from lowland.measures.shared.ascent import uphill
from lowland.measures.shared.neighbourhood import neighbourhood
from lowland.problem import Problem

RHO = 0.05  # the paper's default


@register(
    title="SAM sharpness",
    family="perturbation",
    formula="L(w + rho g / |g|) - L(w), g = ∂L / ∂w, rho = 0.05",
    definition="How much the training loss rises by one step of fixed length along its gradient: "
    "the first-order guess of the worst perturbation, which SAM trains against.",
    citation="Foret et al., ICLR 2021",
    sampled=True,
    sharper="higher",
    cost=Work(forwards=1, needs=(neighbourhood,)),
)
def sam_sharpness(problem: Problem) -> Value:
    """One gradient of the whole training set, where SAM itself takes a batch's."""
    near = neighbourhood(problem)
    loss, slope = near.origin
    return Value(near.loss(RHO * uphill(slope)) - loss, "exact, one step along the gradient")
