"""Numbers read off a spectrum: norm, effective dimension, negative eigenvalues, condition."""

import math
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from lowland.curvature.estimate import Estimate
from lowland.curvature.lanczos import eigsh
from lowland.curvature.operator import Dense, Operator
from lowland.curvature.precision import precision
from lowland.curvature.quadrature import Quadrature
from lowland.curvature.sketch import BLOCK, allowed, dots, finite
from lowland.curvature.spectrum import ALL_EIGENVALUES, Spectrum
from lowland.errors import InputError

_FEWEST = 12  # products of four vectors from which on a norm's error is one
_LEVELS = 64  # of the step function that stands for a monotone one


def frobenius_norm(
    A: Operator | Spectrum, *, rtol: float = 0.01, max_matvecs: int | None = None, seed: int = 0
) -> Estimate:
    """``|A|_F = sqrt(tr A^2)``, to a relative standard error of ``rtol``.

    The leading eigenvalues, from a block Lanczos run, enter exactly, and ``|A v|^2`` for random v
    orthogonal to their vectors samples the others until the error is small enough; its own by the
    delta method, and NaN of fewer than 12 products. Of a ``Spectrum`` the number that it tells,
    whatever its error.

    >>> frobenius_norm(Dense(torch.diag(torch.tensor([3.0, -4.0]))))
    5 (exact, 0 products)
    """
    if isinstance(A, Spectrum):
        return _root(A.total(torch.square), rtol)
    if isinstance(A, Dense):
        return Estimate(float(finite(A.matrix).double().norm()), 0.0, 0, True, "exact")
    limit, probes = allowed(max_matvecs, A.size), 4
    spectrum = Spectrum.of(A, min(16, limit // probes), probes, seed)
    squared = spectrum.total(torch.square)
    quadrature = spectrum.quadrature
    if quadrature is None:
        return _root(squared, rtol)
    U = quadrature.V @ quadrature.Y[:, spectrum.single].to(A.dtype)
    generator = torch.Generator(device=A.device).manual_seed(seed + 1)
    samples = squared.value * quadrature.T.new_empty(0)
    while True:
        excess = squared.stderr / (2 * rtol * squared.value) if squared.value else 0.0
        wanted = math.ceil((probes + len(samples)) * (excess**2 - 1))
        wanted = min(wanted, BLOCK, limit - squared.samples)
        if wanted <= 0:
            return _root(squared, rtol)
        V = torch.randn(A.size, wanted, dtype=A.dtype, device=A.device, generator=generator)
        for _ in range(2):
            V = V - U @ (U.T @ V)
        V = V * (math.sqrt(A.size - U.shape[1]) / V.norm(dim=0))
        AV = finite(A @ V)
        samples = torch.cat([samples, dots(AV, AV)])
        squared = spectrum.total(torch.square, samples=samples)


def _root(squared: Estimate, rtol: float) -> Estimate:
    value = math.sqrt(max(squared.value, 0.0))
    stderr = squared.stderr / (2 * value) if value else math.sqrt(squared.stderr)
    if squared.stderr and squared.samples < _FEWEST:
        stderr = math.nan
    return replace(squared, value=value, stderr=stderr, converged=stderr <= rtol * value)


def effective_dimension(
    A: Operator | Spectrum,
    alpha: float,
    *,
    rank: int | None = None,
    rtol: float = 0.05,
    steps: int = 32,
    probes: int = 8,
    seed: int = 0,
) -> Estimate:
    """``sum_i l_i / (l_i + alpha)`` over eigenvalues ``l_i >= 0``: directions the data determine.

    (MacKay, NeurIPS 1991; Maddox, Benton & Wilson 2020.) A negative eigenvalue counts as zero: it
    determines no direction, and its term would have a pole at ``-alpha``.

    Of a matrix of which no more than ``rank`` eigenvalues can differ from zero, as of the GGN of
    few samples, rounding moves no others: a product with a vector of its null space is made of its
    range all the same.

    >>> effective_dimension(Dense(torch.diag(torch.tensor([3.0, 1.0, -2.0]))), alpha=1.0)
    1.25 (exact, 0 products)
    """
    if not alpha > 0:
        raise InputError(f"alpha must be above zero; got {alpha}")
    spectrum = A if isinstance(A, Spectrum) else Spectrum.of(A, steps, probes, seed)

    def determined(x: Tensor) -> Tensor:
        return x.clamp_min(0) / (x.clamp_min(0) + alpha)

    low = high = None
    if spectrum.quadrature is not None:
        low, high = _bounds(spectrum.quadrature, determined, alpha)
    estimate = spectrum.total(determined, low, high)
    # all eigenvalues that are not told apart from others may be off by the rounding of the products
    loose = spectrum.nodes[~spectrum.single], spectrum.size * spectrum.weights[~spectrum.single]
    if spectrum.exact:
        loose = spectrum.nodes, torch.ones_like(spectrum.nodes)
    up, down = (
        float((loose[1] * determined(loose[0] + sign * spectrum.rounding)).sum())
        for sign in (1, -1)
    )
    moved = up - down
    if rank is not None and not spectrum.exact:
        singles = int(spectrum.single.sum())
        moved *= min(1.0, max(0, rank - singles) / max(1, spectrum.size - singles))
    if moved > 1e-3 * estimate.value:
        estimate = replace(estimate, stderr=math.hypot(estimate.stderr, moved / math.sqrt(12)))
    return replace(estimate, converged=estimate.stderr <= rtol * estimate.value)


def _bounds(
    quadrature: Quadrature, determined: Callable[[Tensor], Tensor], alpha: float
) -> tuple[float, float]:
    """Bounds, low and high, on the mean of ``x / (x + alpha)`` over the probes' measure.

    Without negative eigenvalues, as seen from the pole, the Gauss quadrature is the upper bound and
    that of Gauss-Radau with a node below the spectrum the lower one. Otherwise from the shares
    above ``alpha s / (1 - s)``, whose integral over s between 0 and 1 it is.
    """
    if float(quadrature.nodes.min()) >= -alpha / 100:
        nodes, weights = quadrature.radau(-alpha / 50)
        # the prescribed node is negative, and the formula without its clamp is the bound
        low = float((weights * nodes / (nodes + alpha)).sum())
        return low, float((quadrature.weights * determined(quadrature.nodes)).sum())
    levels = [(i + 0.5) / _LEVELS for i in range(_LEVELS)]
    under = [quadrature.below(alpha * s / (1 - s)) for s in levels]
    most, least = (1 - sum(bounds) / _LEVELS for bounds in zip(*under, strict=True))
    return least, most


def negative_eigenvalues(
    A: Operator | Spectrum,
    *,
    threshold: float | None = None,
    rtol: float = 0.1,
    steps: int = 32,
    probes: int = 8,
    seed: int = 0,
) -> Estimate:
    """The number of eigenvalues below ``-threshold``.

    The default threshold is rounding, ``n eps |A|`` in float64. Whatever may lie on either side of
    it is in the standard error: of a quadrature all that it cannot place, which near zero is often
    most, and where products are less precise all that is zero to their rounding. ``method`` states
    the threshold; ``converged`` asks for ``rtol``, or for half an eigenvalue.

    >>> H = torch.diag(torch.tensor([3.0, 1e-20, -1e-20, -2.0], dtype=torch.float64))
    >>> negative_eigenvalues(Dense(H))
    1 (below -2.7e-15: exact, 0 products)
    """
    spectrum = A if isinstance(A, Spectrum) else Spectrum.of(A, steps, probes, seed)
    unsure = 0.0
    if threshold is None:
        threshold = spectrum.floor
        precise = spectrum.products == "exact" and torch.finfo(spectrum.dtype).eps < 1e-15
        unsure = 0.0 if precise else 2 * threshold
    if not threshold >= 0:
        raise InputError(f"threshold must not be negative; got {threshold}")
    edge = math.nextafter(-threshold, -math.inf)
    estimate = spectrum.between(-math.inf, edge)
    if unsure:
        surely, perhaps = estimate, spectrum.between(-math.inf, edge + unsure)
        middle, width = (surely.value + perhaps.value) / 2, perhaps.value - surely.value
        error = max(surely.stderr, perhaps.stderr)
        estimate = replace(surely, value=middle, stderr=math.hypot(error, width / math.sqrt(12)))
    return replace(
        estimate,
        converged=estimate.stderr <= max(rtol * estimate.value, 0.5),
        method=f"below {-threshold:.2g}: {estimate.method}",
    )


def condition_number(
    A: Operator | Spectrum, *, rtol: float = 0.05, max_matvecs: int | None = None, seed: int = 0
) -> Estimate:
    """``|l|_max / |l|_min`` over the eigenvalues.

    Of a ``Dense`` or small matrix from all eigenvalues; otherwise from Lanczos at both ends of the
    spectrum, where ``stderr`` is the distance to the largest number that the residuals allow.
    It is infinite if zero is among the eigenvalues to within rounding or residual, and if the
    operator has eigenvalues of both signs: the one next to zero is then inside the spectrum,
    out of a Lanczos method's reach. ``method`` says which. Of a ``Spectrum`` from its two ends.

    >>> condition_number(Dense(torch.diag(torch.tensor([8.0, 2.0, -4.0]))))
    4 (exact, 0 products)
    """
    limit = 1000 if max_matvecs is None else max_matvecs
    if not isinstance(A, Spectrum) and (
        isinstance(A, Dense) or A.size <= min(limit, ALL_EIGENVALUES // 8)
    ):
        A = Spectrum.exactly(A)
    if isinstance(A, Spectrum) and A.exact:
        smallest = float(A.nodes.abs().min())
        if smallest <= A.floor:
            return Estimate(math.inf, 0.0, A.matvecs, True, f"{A.method}: singular to rounding")
        value, error = A.norm / smallest, 0.0
        if A.products != "exact":
            error = (A.norm + A.rounding) / (smallest - A.rounding) - value
        return Estimate(value, error, A.matvecs, error <= rtol * value, A.method)
    if isinstance(A, Spectrum):
        products, ends, residuals = A.matvecs, A.nodes[[0, -1]], A.residuals[[0, -1]]
    else:
        tol = rtol / 4
        top = eigsh(A, 1, which="largest", tol=tol, max_matvecs=limit // 2, seed=seed)
        left = limit - top.matvecs
        bottom = eigsh(A, 1, which="smallest", tol=tol, max_matvecs=left, seed=seed)
        products = top.matvecs + bottom.matvecs
        ends = torch.cat([bottom.values, top.values])
        residuals = torch.cat([bottom.residuals, top.residuals])
    low, high = ends.tolist()
    floor = A.floor if isinstance(A, Spectrum) else precision(A) * max(-low, high)
    low_error, high_error = residuals.clamp_min(floor).tolist()
    reached = bool((residuals <= (rtol / 4 * ends.abs()).clamp_min(floor)).all())
    if abs(low) <= low_error or abs(high) <= high_error:
        why = "Lanczos: singular to within the residual"
        return Estimate(math.inf, math.inf, products, reached, why)
    if low < 0 < high:
        why = "Lanczos: eigenvalues of both signs, the smallest is out of reach"
        return Estimate(math.inf, math.inf, products, False, why)
    if low < 0:  # negative definite: the same of -A
        low, high, low_error, high_error = -high, -low, high_error, low_error
    value = high / low
    stderr = (high + high_error) / (low - low_error) - value
    return Estimate(value, stderr, products, reached and stderr <= rtol * value, "Lanczos")
