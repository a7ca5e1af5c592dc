"""What the spectral measures share: the operator and its density."""

from lowland.curvature import (
    GGN,
    Density,
    Eigenpairs,
    Hessian,
    eigsh,
    ggn,
    hessian,
    spectral_density,
)
from lowland.measures.neighbourhood import Noise, neighbourhood
from lowland.measures.sharing import once
from lowland.problem import Problem

# Lanczos steps and random vectors: enough for shares of the spectrum to some per cent, and for
# sums over eigenvalues near zero to some ten.
STEPS, GGN_STEPS, PROBES = 16, 32, 2
LEADING = 3  # eigenvectors of the Hessian


@once
def whole_hessian(problem: Problem) -> Hessian:
    """The Hessian of all parameters; its kept graphs serve every measure."""
    return hessian(problem)


@once
def leading(problem: Problem) -> Eigenpairs:
    """Its largest eigenvalues with their vectors, to residuals of 1 %, or what came of it."""
    H, near = whole_hessian(problem), neighbourhood(problem)
    start = Noise(near, near.w).draw()  # which goes with the weights, wherever their units stand
    return eigsh(H, min(LEADING, H.size), which="largest", tol=1e-2, start=start)


@once
def density(problem: Problem) -> Density:
    """Its spectral density by stochastic Lanczos quadrature, exact for small networks."""
    return spectral_density(whole_hessian(problem), steps=STEPS, probes=PROBES)


@once
def whole_ggn(problem: Problem) -> GGN:
    """The generalised Gauss-Newton matrix of all parameters."""
    return ggn(problem)


@once
def ggn_density(problem: Problem) -> Density:
    """Its spectral density."""
    return spectral_density(whole_ggn(problem), steps=GGN_STEPS, probes=PROBES)
