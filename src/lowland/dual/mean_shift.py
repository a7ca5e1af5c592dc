"""The dual shift that all pairs have in common, as a direction of weight space."""

from torch import Tensor

from lowland.curvature import layer
from lowland.dual.choice import choose
from lowland.dual.matching import MATCHED
from lowland.dual.replay import shaped
from lowland.dual.reproduced import solved_for_outputs
from lowland.dual.shifts import dual_shifts, layer_with_dual
from lowland.errors import InputError
from lowland.problem import Problem


def mean_shift(problem: Problem, name: str | None = None) -> tuple[str, dict[str, Tensor]]:
    """The layer, and the mean over pairs of its dual shifts by the name of its parameter.

    Moving the weights by a pair's shift does to the training sample what replacing it by the test
    sample does: for the layer's outputs or, where data goes around the layer, for the network's.
    Pairs without a dual count as no shift.
    """
    if name is not None:
        layer_with_dual(problem, name)  # an error in words if there is none
    choice = choose(problem, name)
    chosen = layer(problem, choice.layer)
    seen = [] if chosen.in_series else [chosen]
    paired = dual_shifts(problem, seen, choice.pairs)
    paired, reasons = solved_for_outputs(
        problem, [chosen], paired, choice.pairs, "auto", matched=MATCHED, seed=0
    )
    if reasons:
        raise InputError(reasons[chosen.name])
    shifts = paired.shifts[chosen.name]
    mean = shifts.weighted_sum(shifts.kept.double() / len(shifts))
    if not mean.norm() > 0:
        raise InputError(f"the dual shifts of layer {chosen.name!r} cancel, and name no direction")
    return chosen.name, {chosen.parameter: shaped(problem, chosen, mean)}
