"""A model's weight matrices, the Hessian's diagonal on them, and their best noise (Eq. 17).

What enters linearly between units is a matrix of outputs by inputs. A convolution has one for each
group, of channels by channels; its kernel positions share a variance, so they are summed. Biases,
scales of normalisations and free parameters carry no noise (Tsuzuku et al., footnote 5).
"""

import torch
from torch import Tensor

from lowland.curvature import (
    Diagonal,
    diagonal,
    layers,
)
from lowland.errors import InputError
from lowland.measures.shared.balancing import Balanced, balance
from lowland.measures.sharing import once
from lowland.problem import Problem


def weight_matrices(problem: Problem) -> dict[str, int]:
    """The names of the weights that are matrices, with how many groups each has."""
    kinds = ("dense", "convolution", "embedding")
    every = {
        at.parameter: at.shape[0] if at.is_matrix else 1
        for at in layers(problem).values()
        if at.operation in kinds and problem.params[at.parameter].ndim > 1
    }
    if not every:
        raise InputError(
            "the model has no weight matrix that can be seen through (dense, convolutional, "
            "embedding, recurrent or attention layers)"
        )
    return every


def as_matrices(t: Tensor, groups: int) -> Tensor:
    """Entries of a weight summed over kernel positions, (groups, rows, columns), in float64."""
    return t.double().reshape(groups, t.shape[0] // groups, t.shape[1], -1).sum(-1)


@once
def hessian_diagonal(problem: Problem) -> Diagonal:
    """The diagonal of the whole Hessian; an error where the loss has none."""
    if not problem.loss.needs_model:
        with problem.measuring(), torch.no_grad():
            why = problem.loss.flat(problem.outputs(problem.first(1).inputs))
        if why is not None:
            raise InputError(why)
    return diagonal(problem)


@once
def best_variances(problem: Problem) -> dict[str, list[Balanced]]:
    """The solution of Eq. 17 for each weight, group by group."""
    h = hessian_diagonal(problem)
    found = {}
    for name, groups in weight_matrices(problem).items():
        curvature = as_matrices(h[name].clamp_min(0), groups)
        squares = as_matrices(problem.params[name].double().square(), groups)
        found[name] = [balance(a, b) for a, b in zip(curvature, squares, strict=True)]
        if not all(b.converged for b in found[name]):
            raise InputError(f"the variances of {name!r} did not converge in 10,000 sweeps")
    return found
