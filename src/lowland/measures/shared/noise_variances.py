"""A model's weight matrices, the Hessian's diagonal on them, and their best noise (Eq. 17).

What enters linearly between units is a matrix of outputs by inputs. A convolution has one for each
group, of channels by channels; its kernel positions share a variance, so they are summed. Biases,
scales of normalisations and free parameters carry no noise (Tsuzuku et al., footnote 5).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from lowland.budget import Work
from lowland.curvature import (
    Diagonal,
    diagonal,
    few_outputs,
    layers,
)
from lowland.errors import InputError
from lowland.measures.shared.balancing import Balanced, balance
from lowland.measures.shared.diagonals import gauss_newton_diagonal, hessian_work, shifts
from lowland.measures.sharing import once
from lowland.problem import Problem

OPEN = 0.5  # a value with a larger standard error, as a share of it, is none


def weight_matrices(problem: Problem) -> dict[str, int]:
    """The names of the weights that are matrices, with how many groups each has."""
    kinds = ("dense", "convolution", "embedding")
    every = {
        layer.parameter: layer.shape[0] if layer.is_matrix else 1
        for layer in layers(problem).values()
        if layer.operation in kinds and problem.params[layer.parameter].ndim > 1
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


@once(lambda problem: hessian_work(problem, shifts(problem)))
def hessian_diagonal(problem: Problem) -> Diagonal:
    """The diagonal of the whole Hessian; an error where the loss has none.

    What would take more than 256 passes over the data is estimated from a few.
    """
    if not problem.loss.needs_model:
        with problem.measuring(), torch.no_grad():
            why = problem.loss.flat(problem.outputs(problem.first(1).inputs))
        if why is not None:
            raise InputError(why)
    gauss_newton = gauss_newton_diagonal(problem) if few_outputs(problem) else None
    return diagonal(problem, max_matvecs=shifts(problem), gauss_newton=gauss_newton)


@dataclass(frozen=True)
class Clipped:
    """The error of a sum of slopes times ``max(h, 0)`` where h is estimated."""

    variance: float  # from the errors of h
    bias: float  # that clipping adds to the sum, on average
    share: float  # of the sum of |h| that was clipped


def clipped(h: Diagonal, name: str, slopes: Tensor) -> Clipped:
    """What the errors of the diagonal's estimates do to ``sum slopes * max(h, 0)``.

    Two entries of a diagonal estimated with random signs covary by no more than their variances
    allow: at most twice the independent sum. Noise that is clipped at zero does not average out:
    with s the error of an entry it adds ``b = s phi(h/s) - |h| Phi(-|h|/s)`` at the true h. From
    estimated h that comes out as 0.41 of it where h = 0, and as all of it far from there, so that
    the sum is too large by 1 to 2.4 times ``b``: 1.7 are taken off, and 0.7 may be missed.
    """
    value = h[name].double()
    total = float(value.abs().sum())
    share = float(-value.clamp_max(0).sum()) / total if total else 0.0
    if name not in h.spread:
        return Clipped(0.0, 0.0, share)
    error = h.spread[name].double()
    s = error.clamp_min(torch.finfo(torch.float64).tiny)
    t = (value.abs() / s).clamp_max(30)  # beyond, nothing is clipped
    b = s * ((-t.square() / 2).exp() / (2 * torch.pi) ** 0.5 - t * torch.special.ndtr(-t))
    b = float((slopes * b.clamp_min(0)).sum())
    variance = 2 * float((slopes * error).square().sum())
    return Clipped(variance + (0.7 * b) ** 2, 1.7 * b, share)


@once(Work(needs=(hessian_diagonal,)))
def best_variances(problem: Problem) -> dict[str, list[Balanced]]:
    """The solution of Eq. 17 for each weight, group by group."""
    h = hessian_diagonal(problem)
    variances = {}
    for name, groups in weight_matrices(problem).items():
        curvature = as_matrices(h[name].clamp_min(0), groups)
        squares = as_matrices(problem.params[name].double().square(), groups)
        variances[name] = [balance(a, b) for a, b in zip(curvature, squares, strict=True)]
        if not all(b.converged for b in variances[name]):
            raise InputError(f"the variances of {name!r} did not converge in 10,000 sweeps")
    return variances
