"""The sharpness of Keskar et al. over all weights."""

from lowland.measures.registry import Value, register
from lowland.measures.shared.box_maximum import BOX_MAXIMUM, box_sharpness
from lowland.measures.shared.neighbourhood import Noise, neighbourhood
from lowland.problem import Problem

START = 0.1  # standard deviation of the starting point, in half-widths of the box


@register(
    title="Keskar sharpness",
    family="perturbation",
    formula="max_v (L(w + v) - L(w)) / (1 + L(w)), |v_i| <= eps (|w_i| + 1), eps = 0.001",
    definition="How much the training loss can rise in a small box around the weights, against "
    "one plus the loss; percent is the same times 100, as the paper tabulates it.",
    citation="Keskar et al., ICLR 2017",
    sampled=True,
    sharper="higher",
    cost=BOX_MAXIMUM,
)
def keskar_sharpness(problem: Problem) -> Value:
    """At most ten iterations from a seeded random point near the centre of the box."""
    near = neighbourhood(problem)
    start = (START * Noise(near, near.w).draw()).clamp(-1, 1)
    return box_sharpness(near, near.w.abs() + 1, start)
