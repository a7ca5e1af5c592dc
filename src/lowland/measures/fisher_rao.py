"""Fisher-Rao norm."""

from lowland.budget import Work
from lowland.measures.registry import Value, register
from lowland.measures.shared.sample_gradients import sample_gradients
from lowland.problem import Problem


@register(
    title="Fisher-Rao norm",
    family="norms",
    formula="sum_i w_i^2 mean_k (∂l_k / ∂w_i)^2",
    definition="Every squared parameter times the mean square of its samples' gradients, added "
    "up: the diagonal form of w^T F w, whose value with the whole empirical Fisher matrix F is the "
    "part inner_product.",
    citation="Liang et al., AISTATS 2019; Tsuzuku et al., ICML 2020, Eq. 25",
    sharper="higher",
    cost=Work(needs=(sample_gradients,)),
    invariant=("layers", "units"),
)
def fisher_rao(problem: Problem) -> Value:
    """No Fisher matrix is formed: w^T F w is the mean square of w . g_k."""
    moments = sample_gradients(problem)
    value = sum(
        float((p.double().square() * moments.squares[name]).sum())
        for name, p in problem.params.items()
    )
    return Value(value, "exact", parts={"inner_product": moments.along})
