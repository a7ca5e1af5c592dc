"""Variance of the samples' gradients."""

from lowland.budget import Work
from lowland.measures.registry import Value, register
from lowland.measures.shared.sample_gradients import sample_gradients
from lowland.problem import Problem


@register(
    title="Gradient variance",
    family="gradients",
    formula="tr S = mean_k |g_k - G|^2, G = mean_k g_k",
    definition="How far the samples' own gradients scatter about their mean: the noise of "
    "stochastic gradients of one sample.",
    citation="Jiang et al., ICLR 2020",
    sharper="higher",
    cost=Work(needs=(sample_gradients,)),
)
def gradient_variance(problem: Problem) -> Value:
    """The mean square less the square of the mean, with each parameter's share."""
    moments = sample_gradients(problem)
    parts = {
        name: float((s - moments.mean[name].square()).clamp(min=0).sum())
        for name, s in moments.squares.items()
    }
    return Value(sum(parts.values()), "exact", parts=parts)
