"""The average rise of the training loss under noise in proportion to each weight."""

from lowland.measures.registry import Value, register
from lowland.measures.shared.average_rise import AVERAGE_RISE, average_rise
from lowland.measures.shared.neighbourhood import Noise, neighbourhood
from lowland.problem import Problem

RHO = 0.05


@register(
    title="Adaptive average case",
    family="perturbation",
    formula="E[L(w + v)] - L(w), v ~ N(0, rho^2 diag(w^2)), rho = 0.05",
    definition="How much the training loss rises on average when every weight changes at random by "
    "a few per cent of itself.",
    citation="Andriushchenko et al., ICML 2023",
    sampled=True,
    sharper="higher",
    cost=AVERAGE_RISE,
    invariant=("layers", "units"),
)
def adaptive_average_case(problem: Problem) -> Value:
    """On the whole training set; the noise goes with w * dL/dw, which no rescaling changes."""
    near = neighbourhood(problem)
    _, slope = near.origin
    return average_rise(near, RHO * near.w.abs(), Noise(near, near.w * slope))
