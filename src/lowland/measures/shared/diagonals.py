"""The one pass over the data that every measure of diagonals reads."""

import math

from torch import Tensor

from lowland.budget import Work
from lowland.curvature import (
    exact_diagonal,
    few_outputs,
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


@once(Work(diagonals=1.3), any_loss=True)  # for two losses
def joint(problem: Problem) -> list[dict[str, Tensor]]:
    """Exact GGN diagonals of all parameters that can be seen through.

    For the problem's own loss and, where it applies, for the surrogate.
    """
    try:
        surrogate = problem.with_loss(SURROGATE)
    except InputError:  # no class labels
        return joint_diagonals([problem])
    return joint_diagonals([problem, surrogate])


def _work(problem: Problem) -> Work:
    """The pass, unless it is refused."""
    return Work(needs=(joint,) if outputs_of_a_sample(problem) <= _MOST_OUTPUTS else ())


@once(_work)
def gauss_newton_diagonal(problem: Problem) -> dict[str, Tensor]:
    """The exact diagonal of every parameter that can be seen through, by name."""
    losses = [problem.base.loss.name, SURROGATE]
    if few_outputs(problem) and problem.loss.name in losses:
        diagonals = joint(problem)
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
