"""The one pass over the data that every measure of diagonals and sample gradients reads."""

import math

from torch import Tensor

from lowland.budget import Work
from lowland.curvature import (
    JointDiagonals,
    exact_diagonal,
    few_outputs,
    fisher_diagonal,
    joint_diagonals,
    outputs_of_a_sample,
    parameters,
    remainder_work,
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


def _work(problem: Problem) -> Work:
    return Work(diagonals=1) if few_outputs(problem) else Work(fishers=1)


@once(_work)
def joint(problem: Problem) -> JointDiagonals:
    """Exact diagonals of all parameters that can be seen through, and ``w . g_k``.

    The GGN's for the problem's own loss and, where it applies, for the surrogate; and the empirical
    Fisher matrix's.
    """
    if not few_outputs(problem):
        return fisher_diagonal(problem)
    try:
        surrogate = problem.with_loss(SURROGATE)
    except InputError:  # no class labels
        return joint_diagonals([problem])
    return joint_diagonals([problem, surrogate])


@once(Work(needs=(joint,)))
def gauss_newton_diagonal(problem: Problem) -> dict[str, Tensor]:
    """The exact diagonal of every parameter that can be seen through, by name."""
    losses = [problem.base.loss.name, SURROGATE]
    if few_outputs(problem) and problem.loss.name in losses:
        diagonals = joint(problem.base).ggn
        place = 0 if problem is problem.base else 1
        if place < len(diagonals):
            return diagonals[place]
    outputs = outputs_of_a_sample(problem)
    if outputs > _MOST_OUTPUTS:
        raise InputError(
            f"the exact Gauss-Newton diagonal takes a backward pass for each of the {outputs:,} "
            "outputs of a sample"
        )
    return exact_diagonal(problem, list(parameters(problem).values()), "ggn")


def hessian_work(problem: Problem, limit: int) -> Work:
    """What a trace or diagonal of the Hessian takes, in at most so many passes beside the GGN's."""
    needs = (gauss_newton_diagonal,) if few_outputs(problem) else ()
    return remainder_work(problem, limit) + Work(needs=needs)
