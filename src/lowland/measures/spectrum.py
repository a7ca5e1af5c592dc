"""What the spectral measures share: the operator and its density."""

from lowland.curvature import Density, Hessian, hessian, spectral_density
from lowland.measures.registry import once
from lowland.problem import Problem

# Lanczos steps and random vectors: enough for shares of the spectrum to some per cent.
STEPS, PROBES = 40, 2


@once
def whole_hessian(problem: Problem) -> Hessian:
    """The Hessian of all parameters; its kept graphs serve every measure."""
    return hessian(problem)


@once
def density(problem: Problem) -> Density:
    """Its spectral density by stochastic Lanczos quadrature, exact for small networks."""
    return spectral_density(whole_hessian(problem), steps=STEPS, probes=PROBES)
