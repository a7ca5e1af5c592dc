"""The sharp part of the gap."""

from lowland.budget import Work
from lowland.measures.registry import Value, register
from lowland.measures.shared.decomposed import decomposition, part, useful_decomposition
from lowland.problem import Problem


@register(
    title="Sharp part of the gap",
    family="duality",
    formula="sum_{n <= n_s} c_n sigma_g,n sigma_w,n",
    definition="What the n_s sharpest directions of a layer (10 of the dense layer before the "
    "last, unless others are asked for) add to the gap between test samples and their partners.",
    citation="Feng & Tu, 2022, Sec. 4; Feng, Zhang & Tu, Nat. Mach. Intell. 5, 908, 2023",
    sharper="higher",
    cost=Work(needs=(decomposition,)),
    needs_test=True,
    invariant=("layers",),
)
def sharp_part(problem: Problem) -> Value:
    """Read off the decomposition of the layer that stands for the model."""
    split = useful_decomposition(problem)
    return part(split, split.sharp, split.totals.intervals.sharp)
