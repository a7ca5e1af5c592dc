"""The one spectral pass that every spectral measure reads: of the Hessian, and of the GGN."""

import copy
from dataclasses import replace
from functools import partial
from typing import Literal

import torch
from torch.utils.flop_counter import FlopCounterMode

from lowland.budget import Work
from lowland.curvature import (
    ALL_EIGENVALUES,
    GGN,
    Curvature,
    Eigenpairs,
    Estimate,
    Hessian,
    Spectrum,
    eigsh,
    ggn,
    hessian,
)
from lowland.distributed import total
from lowland.errors import InputError
from lowland.measures.registry import Value
from lowland.measures.shared.neighbourhood import Noise, neighbourhood
from lowland.measures.sharing import once
from lowland.problem import Problem

PROBES = 4  # random vectors of the block Lanczos run
STEPS, MOST = 16, 40  # products with their block, and until the leading eigenvectors are found
_USUAL = 20  # of these, as a rule
_ORTHOGONAL = 40  # operations in the time that one of n k^2 takes: the basis is read from memory
LEADING = 3  # of these, to residuals of 1 %, and the first
TOLERANCE = 1e-4  # to this
# Operations for which all products of a small network are made: some seconds. They are counted, not
# timed, so that the same network gives the same numbers on every machine.
AFFORDABLE = 3e10
CALL = 1e6  # operations in the time that the calls of one parameter's layer take, however small


def _work(of: Literal["hessian", "ggn"], problem: Problem) -> Work:
    """Products with the whole of a small matrix or with a block, and what orthogonalises it."""
    size = sum(p.numel() for p in problem.params.values())
    operations = 12 * size * problem.count() + CALL * len(problem.params)
    if _small(problem) and operations * size <= AFFORDABLE:
        columns, flops = size, 10 * size**3
    else:
        columns = PROBES * (_USUAL if of == "hessian" else STEPS)
        flops = _ORTHOGONAL * size * columns**2
    if of == "hessian":
        return Work(columns=columns, flops=flops)
    return Work(ggn_columns=columns, flops=flops)


@once()
def whole_hessian(problem: Problem) -> Hessian:
    """The Hessian of all parameters; its kept graphs serve every measure."""
    return hessian(problem)


@once(partial(_work, "hessian"))
def hessian_spectrum(problem: Problem) -> Spectrum:
    """Its eigenvalues: all of a small network, otherwise from block Lanczos with random starts."""
    exact = _exactly(hessian(_in_double(problem))) if _small(problem) else None
    return exact or _sampled(problem, whole_hessian(problem))


@once(partial(_work, "ggn"))
def ggn_spectrum(problem: Problem) -> Spectrum:
    """The same of the generalised Gauss-Newton matrix."""
    exact = _exactly(ggn(_in_double(problem))) if _small(problem) else None
    return exact or _sampled(problem, ggn(problem))


@once(Work(needs=(hessian_spectrum,)))  # which seldom has not found them
def leading(problem: Problem) -> Eigenpairs:
    """The Hessian's largest eigenvalues with their vectors, to residuals of 1 % if converged.

    Where the run has not found them, a search goes on from what it has.
    """
    spectrum = hessian_spectrum(problem)
    pairs = spectrum.leading(min(LEADING, spectrum.size))
    return pairs if pairs.converged else search(problem, pairs, 1e-2)


def search(problem: Problem, pairs: Eigenpairs, tol: float) -> Eigenpairs:
    """The same eigenpairs to smaller residuals, with the products of both searches counted."""
    k = pairs.vectors.shape[1]
    better = eigsh(whole_hessian(problem), k, which="largest", tol=tol, start=pairs.vectors)
    return replace(better, matvecs=pairs.matvecs + better.matvecs)


def value_of(number: Estimate, spectrum: Spectrum, size: float = 1.0) -> Value:
    """An estimate, divided by ``size``, as the value of a measure that says what it took."""
    method = f"{number.method}, {spectrum.matvecs} products in all"
    return Value(number.value / size, method, number.stderr / size or None)


def _small(problem: Problem) -> bool:
    return sum(p.numel() for p in problem.params.values()) <= ALL_EIGENVALUES


def _in_double(problem: Problem) -> Problem:
    """The problem in float64, where a small eigenvalue has a sign; as it is if that cannot be."""
    if problem.dtype == torch.float64:
        return problem
    try:
        return problem.of(copy.deepcopy(problem.model).double())
    except (InputError, TypeError):
        return problem


def _exactly(A: Curvature) -> Spectrum | None:
    """All eigenvalues, if the products cost no more operations than are affordable."""
    with FlopCounterMode(display=False) as counter:
        A @ torch.ones(A.size, dtype=A.dtype, device=A.device)
    # the counter does not know every kind of layer, but each weight meets each sample at least
    # twice forwards and four times backwards
    counted = torch.tensor(float(counter.get_total_flops()), device=A.device)
    operations = max(float(total(counted)), 12 * A.size * A.problem.count())
    operations += CALL * len(A.params)
    return Spectrum.exactly(A) if operations * A.size <= AFFORDABLE else None


def _sampled(problem: Problem, A: Hessian | GGN) -> Spectrum:
    noise = Noise(neighbourhood(problem), neighbourhood(problem).w)
    start = torch.stack([noise.draw() for _ in range(PROBES)], 1)
    settled = _leading_settled if isinstance(A, Hessian) else lambda nodes, residuals: True
    return Spectrum.sampled(A, start, STEPS, settled=settled, max_steps=MOST)


def _leading_settled(nodes: torch.Tensor, residuals: torch.Tensor) -> bool:
    share = (residuals / nodes.abs())[-LEADING:]
    return bool(share[-1] <= TOLERANCE and (share <= 0.01).all())
