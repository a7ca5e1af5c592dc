"""What the measures of the duality share: one decomposition."""

from lowland.curvature.layers import matrices
from lowland.dual import Decomposition, duality
from lowland.errors import InputError
from lowland.measures.registry import once
from lowland.problem import Problem

# Of a wide layer so many directions: the sharp ones and some to choose them from.
DIRECTIONS = 12
ALL = 1024


@once
def decomposed(problem: Problem) -> Decomposition:
    """The gap over the directions of the dense layer before the last, or of the only one."""
    dense = [at for at in matrices(problem).values() if at.operation == "dense"]
    if not dense:
        raise InputError("the model has no dense layer that is used once")
    chosen = dense[-2] if len(dense) > 1 else dense[-1]
    few = None if chosen.size <= ALL else DIRECTIONS
    found = duality(problem, chosen.name, directions=few)
    if not found.trusted:
        raise InputError(
            f"layer {chosen.name!r} has no useful dual (activities missed by "
            f"{found.mean_residual:.0%}, losses by {found.loss_defect:.0%})"
        )
    return found
