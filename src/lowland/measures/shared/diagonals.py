"""The one pass over the data that every measure of diagonals and sample gradients reads."""

import math

from torch import Tensor

from lowland.curvature import (
    JointDiagonals,
    exact_diagonal,
    few_outputs,
    fisher_diagonal,
    joint_diagonals,
    outputs_of_a_sample,
    parameters,
)
from lowland.errors import InputError
from lowland.measures.sharing import once
from lowland.problem import Problem

SURROGATE = "normalized_cross_entropy"  # the loss that normalized sharpness is measured with
# Outputs of a sample up to which the Gauss-Newton diagonal is computed at all.
_MOST_OUTPUTS = 1024

# Draws of random shifts, over samples and passes, and the fewest passes: their spread is the error.
_DRAWS, _PASSES = 512, 4


def shifts(problem: Problem) -> int:
    """Passes over the data for what is estimated by random shifts: every sample draws its own."""
    return max(_PASSES, math.ceil(_DRAWS / problem.count()))


@once
def _joint(problem: Problem) -> JointDiagonals:
    """Of a problem's own loss and, where it applies, of the surrogate."""
    if not few_outputs(problem):
        return fisher_diagonal(problem)
    try:
        surrogate = problem.with_loss(SURROGATE)
    except InputError:  # no class labels
        return joint_diagonals([problem])
    return joint_diagonals([problem, surrogate])


def fisher_moments(problem: Problem) -> JointDiagonals:
    """The empirical Fisher diagonal and ``w . g_k``, of the parameters that can be seen through."""
    return _joint(problem)


@once
def gauss_newton_diagonal(problem: Problem) -> dict[str, Tensor]:
    """The exact diagonal of every parameter that can be seen through, by name."""
    losses = [problem.base.loss.name, SURROGATE]
    if few_outputs(problem) and problem.loss.name in losses:
        found = _joint(problem.base).ggn
        place = 0 if problem is problem.base else 1
        if place < len(found):
            return found[place]
    outputs = outputs_of_a_sample(problem)
    if outputs > _MOST_OUTPUTS:
        raise InputError(
            f"the exact Gauss-Newton diagonal takes a backward pass for each of the {outputs:,} "
            "outputs of a sample"
        )
    return exact_diagonal(problem, list(parameters(problem).values()), "ggn")
