"""The average rise of the training loss under isotropic noise on the weights."""

from lowland.measures.registry import Value, register
from lowland.measures.shared.average_rise import AVERAGE_RISE, average_rise
from lowland.measures.shared.neighbourhood import Noise, neighbourhood
from lowland.problem import Problem

SIGMA = 0.01


@register(
    title="Expected sharpness",
    family="perturbation",
    formula="E[L(w + v)] - L(w), v ~ N(0, sigma^2 I), sigma = 0.01",
    definition="How much the training loss rises on average under Gaussian noise of one size on "
    "all weights.",
    citation="Neyshabur et al., NeurIPS 2017",
    sampled=True,
    sharper="higher",
    cost=AVERAGE_RISE,
)
def expected_sharpness(problem: Problem) -> Value:
    """Every parameter carries noise, biases and normalisation scales too."""
    near = neighbourhood(problem)
    return average_rise(near, SIGMA, Noise(near, near.w))
