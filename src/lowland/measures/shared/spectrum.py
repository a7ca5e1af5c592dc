"""The one spectral pass that every spectral measure reads: of the Hessian, and of the GGN."""

import math
from dataclasses import replace
from functools import partial
from typing import Literal

import torch
from torch.utils.flop_counter import FlopCounterMode
from torch.utils.module_tracker import ModuleTracker

from lowland.budget import Work
from lowland.curvature import (
    ALL_EIGENVALUES,
    Curvature,
    Density,
    Eigenpairs,
    Estimate,
    Hessian,
    Spectrum,
    columns_within,
    eigsh,
    ggn,
    hessian,
)
from lowland.curvature import (
    effective_dimension as dimension_of,
)
from lowland.distributed import total
from lowland.errors import InputError
from lowland.findings import WholeSpectrum
from lowland.measures.registry import Value
from lowland.measures.shared.neighbourhood import Noise, neighbourhood
from lowland.measures.sharing import computed, once
from lowland.problem import Problem

# Random vectors of the Hessian's run. Of 24 products, two vectors with twelve each left the norm of
# five networks (2e4 to 2e5 weights) known to 1 to 5 % and the leading eigenvalues to 1e-5; four
# vectors with six, to 15 % and 1e-1.
PROBES = 2
STEPS, MOST = 12, 32  # products with their block, and until the leading eigenvectors are found
_USUAL = 16  # of these, as a rule
# Products with the GGN, of one vector: a sum over many eigenvalues has little of a sample's error,
# and the quadrature's falls with each further step.
GGN_STEPS = 24
_USUAL_GGN = 12  # of these, as a rule: in single precision many end after a third or a half
# Its error, as a share of the effective dimension, that is too large for a value and that, after
# half of the products, the others would not mend: they halve it at best.
HOPELESS = 2.0
# The same of the part by rounding, after a third of them: no products mend that.
ROUNDED = 1.0
_ORTHOGONAL = 40  # operations in the time that one of n k^2 takes: the basis is read from memory
LEADING = 3  # of these, to residuals of 1 %, and the first
TOLERANCE = 1e-4  # to this
# Operations for which all products of a small network are made: some seconds. They are counted, not
# timed, so that the same network gives the same numbers on every machine.
AFFORDABLE = 3e10
SMOOTHING, POINTS = 80, 512  # of the density that is kept: norm / bandwidth, and its grid
_BESIDE = 4  # vectors beside those of the basis that a step takes, for each probe
CALL = 1e6  # operations in the time that the calls of one parameter's layer take, however small


def affordable(problem: Problem) -> bool:
    """Whether all eigenvalues of its matrices can be had, as far as sizes tell."""
    sizes = [p.numel() for p in problem.params.values()]
    size = sum(sizes)
    operations = 12 * size * problem.count() + CALL * len(sizes)
    return size <= ALL_EIGENVALUES and operations * size <= AFFORDABLE


def _work(of: Literal["hessian", "ggn"], problem: Problem) -> Work:
    """Products with the whole of a small matrix or with a block, and what orthogonalises it."""
    size = sum(p.numel() for p in problem.params.values())
    if affordable(problem):
        columns, flops = size, 10 * size**3
    else:
        columns = PROBES * _USUAL if of == "hessian" else _USUAL_GGN
        flops = _ORTHOGONAL * size * columns**2
    if of == "hessian":
        return Work(columns=columns, flops=flops)
    return Work(ggn_columns=columns, flops=flops)


@once()
def whole_hessian(problem: Problem) -> Hessian:
    """The Hessian of all parameters, whose graphs serve measures that come one after the other."""
    return hessian(problem)


@once(partial(_work, "hessian"))
def _hessian_run(problem: Problem) -> tuple[Spectrum, Eigenpairs | None]:
    """The Hessian's eigenvalues and, of a quadrature, the leading ones with their vectors."""
    exact = _exactly(whole_hessian(in_double(problem))) if _small(problem) else None
    if exact is not None:
        return exact, None
    H = whole_hessian(problem)
    # Where memory is short, fewer probes: of a large matrix each tells more than a wider block.
    probes = max(1, min(PROBES, columns_within(H) // (STEPS + _BESIDE)))
    start = _start(problem, H, probes)
    spectrum = Spectrum.sampled(H, start, STEPS, settled=_leading_settled, max_steps=MOST)
    H.forget()  # few products are left, if any, and the matrices of other measures need the memory
    return _bare(spectrum), spectrum.leading(min(LEADING, spectrum.size))


@once(Work(needs=(_hessian_run,)))
def hessian_spectrum(problem: Problem) -> Spectrum:
    """The Hessian's eigenvalues: all for a small network, otherwise a block Lanczos quadrature."""
    return _hessian_run(problem)[0]


@once(partial(_work, "ggn"))
def ggn_spectrum(problem: Problem) -> Spectrum:
    """The eigenvalues of the generalised Gauss-Newton matrix, got in the same way."""
    exact = _exactly(ggn(in_double(problem))) if _small(problem) else None
    if exact is not None:
        return exact
    G = ggn(problem)

    def hopeless(spectrum: Spectrum) -> bool:
        dimension = effective_dimension(problem, spectrum)
        value, error = max(dimension.value, 0.0), dimension.stderr
        unrounded = effective_dimension(problem, replace(spectrum, rounding=0.0)).stderr
        by_rounding = math.sqrt(max(error**2 - unrounded**2, 0.0))
        half = spectrum.matvecs >= GGN_STEPS // 2
        return by_rounding > ROUNDED * value or (half and error > HOPELESS * value)

    return _bare(Spectrum.sampled(G, _start(problem, G, 1), GGN_STEPS, hopeless))


def _bare(spectrum: Spectrum) -> Spectrum:
    """The spectrum without its basis, which would be held as long as other measures run."""
    assert spectrum.quadrature is not None
    bare = replace(spectrum.quadrature, V=spectrum.quadrature.V.new_empty(0, 0))
    return replace(spectrum, quadrature=bare)


def effective_dimension(problem: Problem, spectrum: Spectrum) -> Estimate:
    """``sum l / (l + 1/N)`` over the GGN's eigenvalues."""
    return dimension_of(spectrum, alpha=1 / problem.whole.count(), rank=_ggn_rank(problem))


def _ggn_rank(problem: Problem) -> int:
    """The most eigenvalues of the GGN that can differ from zero: one per output of each sample."""
    with problem.measuring(), torch.no_grad():
        outputs = problem.outputs(problem.first(1).inputs)[0].numel()
    return problem.count() * outputs


@once(Work(needs=(hessian_spectrum,)))  # which seldom has not found them
def leading(problem: Problem) -> Eigenpairs:
    """The Hessian's largest eigenvalues with their vectors, to residuals of 1 % if converged.

    Where the run has not found them, a search goes on from what it has.
    """
    spectrum, pairs = _hessian_run(problem)
    if pairs is None:
        pairs = spectrum.leading(min(LEADING, spectrum.size))
    return pairs if pairs.converged else search(problem, pairs, 1e-2)


def search(problem: Problem, pairs: Eigenpairs, tol: float) -> Eigenpairs:
    """The same eigenpairs to smaller residuals, with the products of both searches counted."""
    k = pairs.vectors.shape[1]
    better = eigsh(whole_hessian(problem), k, which="largest", tol=tol, start=pairs.vectors)
    return replace(better, matvecs=pairs.matvecs + better.matvecs)


def whole_spectrum(problem: Problem) -> WholeSpectrum | None:
    """What the measures' pass found, to be kept; None if none of them has made it.

    Where a budget left them a part of the samples, it is the spectrum of that part.
    """
    passes = {p: its for p, (its, _) in computed(_hessian_run).items() if p.whole is problem}
    if not passes:
        return None
    largest = max(passes, key=lambda p: p.count())
    spectrum = passes[largest]
    density = Density.of(spectrum, spectrum.norm / SMOOTHING, POINTS)
    return WholeSpectrum(
        size=spectrum.size,
        samples=largest.count(),
        exact=density.exact,
        method=spectrum.method,
        products=spectrum.matvecs,
        floor=spectrum.floor,
        bandwidth=density.bandwidth,
        **{
            name: getattr(where, name).cpu().numpy()
            for where, names in (
                (spectrum, ("nodes", "weights", "residuals", "single")),
                (density, ("grid", "density", "stderr")),
            )
            for name in names
        },
    )


def value_of(number: Estimate, spectrum: Spectrum, size: float = 1.0) -> Value:
    """An estimate, divided by ``size``, as the value of a measure that says what it took."""
    method = f"{number.method}, {spectrum.matvecs} products in all"
    return Value(number.value / size, method, number.stderr / size or None)


def _small(problem: Problem) -> bool:
    return sum(p.numel() for p in problem.params.values()) <= ALL_EIGENVALUES


@once()
def in_double(problem: Problem) -> Problem:
    """Return the problem in float64, or unchanged if it cannot be, for the signs of eigenvalues."""
    if problem.dtype == torch.float64 or problem.stored is not None:
        return problem
    try:
        return problem.of(problem.model, torch.float64)
    except (InputError, TypeError):
        return problem


class _Untracked(ModuleTracker):
    """No hooks on modules: they fail in a loss that differentiates the model on its way."""

    def __enter__(self) -> "_Untracked":
        return self

    def __exit__(self, *args: object) -> None:
        pass


def _exactly(A: Curvature) -> Spectrum | None:
    """All eigenvalues, if the products cost no more operations than are affordable."""
    counter = FlopCounterMode(display=False)
    counter.mod_tracker = _Untracked()
    with counter:
        A @ torch.ones(A.size, dtype=A.dtype, device=A.device)
    # the counter does not know every kind of layer, but each weight meets each sample at least
    # twice forwards and four times backwards
    counted = torch.tensor(float(counter.get_total_flops()), device=A.device)
    operations = max(float(total(counted)), 12 * A.size * A.problem.count())
    operations += CALL * len(A.params)
    return Spectrum.exactly(A) if operations * A.size <= AFFORDABLE else None


def _start(problem: Problem, A: Curvature, probes: int) -> torch.Tensor:
    noise = Noise(neighbourhood(problem), neighbourhood(problem).w)
    start = torch.empty(A.size, probes, dtype=A.dtype, device=A.device)
    for column in start.unbind(1):
        column.copy_(noise.draw())
    return start


def _leading_settled(nodes: torch.Tensor, residuals: torch.Tensor) -> bool:
    share = (residuals / nodes.abs())[-LEADING:]
    return bool(share[-1] <= TOLERANCE and (share <= 0.01).all())
