"""Trace of the empirical Fisher matrix."""

from lowland.budget import Work
from lowland.measures.registry import Value, register
from lowland.measures.shared.sample_gradients import sample_gradients
from lowland.problem import Problem


@register(
    title="Fisher trace",
    family="gradients",
    formula="tr F = mean_k |g_k|^2",
    definition="The mean squared length of the samples' own gradients, which is the trace of the "
    "empirical Fisher matrix.",
    citation="Jastrzebski et al., ICML 2021",
    sharper="higher",
    cost=Work(needs=(sample_gradients,)),
)
def fisher_trace(problem: Problem) -> Value:
    """The trace, with each parameter's share as a part."""
    parts = {name: float(s.sum()) for name, s in sample_gradients(problem).squares.items()}
    return Value(sum(parts.values()), "exact", parts=parts)
