"""The flat part of the gap."""

from lowland.measures.decomposed import decomposed
from lowland.measures.registry import Value, register
from lowland.problem import Problem


@register(
    title="Flat part of the gap",
    family="duality",
    formula="sum_{n > 10} c_n sigma_g,n sigma_w,n",
    definition="What all other directions of that layer add to the gap.",
    citation="Feng & Tu, 2022, Sec. 4; Feng, Zhang & Tu, Nat. Mach. Intell. 5, 908, 2023",
    sharper="higher",
    needs_test=True,
    invariant=("layers",),
)
def flat_part(problem: Problem) -> Value:
    """Of the dense layer before the last, all directions of a small layer."""
    found = decomposed(problem)
    low, high = found.intervals["flat"]
    return Value(found.flat, found.route, (high - low) / (2 * 1.96))
