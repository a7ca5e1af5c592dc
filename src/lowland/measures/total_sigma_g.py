"""Total sharpness by the duality."""

from lowland.budget import Work
from lowland.measures.registry import Value, register
from lowland.measures.shared.decomposed import decomposition, method, useful_decomposition
from lowland.problem import Problem


@register(
    title="Total sharpness by the duality",
    family="duality",
    formula="sqrt(sum_n sigma_g,n^2)",
    definition="The standard deviation over pairs of the effective gradient in the decomposed "
    "layer, in all directions together.",
    citation="Feng & Tu, 2022, Fig. 2A; Feng, Zhang & Tu, Nat. Mach. Intell. 5, 908, 2023",
    sharper="higher",
    cost=Work(needs=(decomposition,)),
    needs_test=True,
    invariant=(),
)
def total_sigma_g(problem: Problem) -> Value:
    """Read off the decomposition of the layer that stands for the model."""
    split = useful_decomposition(problem)
    return Value(split.totals.total_g**0.5, method(split))
