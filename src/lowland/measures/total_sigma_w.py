"""Total size by the duality."""

from lowland.budget import Work
from lowland.measures.registry import Value, register
from lowland.measures.shared.decomposed import decomposition, method, useful_decomposition
from lowland.problem import Problem


@register(
    title="Total size by the duality",
    family="duality",
    formula="sqrt(T_w), T_w = sum_n sigma_w,n^2",
    definition="The standard deviation over pairs of the dual weights of the decomposed layer: "
    "the size of the solution as the data see it.",
    citation="Feng & Tu, 2022, Eq. 12; Feng, Zhang & Tu, Nat. Mach. Intell. 5, 908, 2023",
    sharper=None,
    cost=Work(needs=(decomposition,)),
    needs_test=True,
    invariant=(),
)
def total_sigma_w(problem: Problem) -> Value:
    """Read off the decomposition of the layer that stands for the model."""
    split = useful_decomposition(problem)
    return Value(split.totals.total_w_data**0.5, method(split))
