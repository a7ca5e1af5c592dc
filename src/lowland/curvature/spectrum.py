"""Numbers read off the spectrum: norm, effective dimension, negative eigenvalues, condition."""

import math
from dataclasses import replace

import torch
from torch import Tensor

from lowland.curvature.density import SMALL, Density, eigenvalues, spectral_density
from lowland.curvature.estimate import Estimate
from lowland.curvature.lanczos import eigsh
from lowland.curvature.operator import Dense, Operator
from lowland.curvature.precision import rounding
from lowland.curvature.sketch import finite
from lowland.curvature.xtrace import power_trace
from lowland.errors import InputError


def frobenius_norm(
    A: Operator, *, rtol: float = 0.01, max_matvecs: int | None = None, seed: int = 0
) -> Estimate:
    """``|A|_F = sqrt(tr A^2)``, to a relative standard error of ``rtol``.

    ``tr A^2 = |A Q|^2 + |A (I - Q Q^T)|^2``, with leave-one-out samples of the second term as in
    XTrace (see ``trace``) and products with A alone; the error of the root by the delta method.

    >>> frobenius_norm(Dense(torch.diag(torch.tensor([3.0, -4.0]))))
    5 (exact, 0 products)
    """
    if isinstance(A, Dense):
        return Estimate(float(finite(A.matrix).double().norm()), 0.0, 0, True, "exact")
    squared = power_trace(A, 2, 2 * rtol, 0.0, max_matvecs, seed, deflate=True)
    value = math.sqrt(max(squared.value, 0.0))
    stderr = squared.stderr / (2 * value) if value else math.sqrt(squared.stderr)
    return replace(squared, value=value, stderr=stderr)


def effective_dimension(
    A: Operator,
    alpha: float,
    *,
    rtol: float = 0.05,
    steps: int = 80,
    probes: int = 8,
    seed: int = 0,
    density: Density | None = None,
) -> Estimate:
    """``sum_i l_i / (l_i + alpha)`` over eigenvalues ``l_i >= 0``: directions the data determine.

    (MacKay, NeurIPS 1991; Maddox, Benton & Wilson 2020.) A negative eigenvalue counts as zero: it
    determines no direction, and its term would have a pole at ``-alpha``. A ``density`` of A that
    is at hand saves its products.

    >>> effective_dimension(Dense(torch.diag(torch.tensor([3.0, 1.0, -2.0]))), alpha=1.0)
    1.25 (exact, 0 products)
    """
    if not alpha > 0:
        raise InputError(f"alpha must be above zero; got {alpha}")
    density = density or spectral_density(A, steps=steps, probes=probes, seed=seed)

    def determined(x: Tensor) -> Tensor:
        return x.clamp_min(0) / (x.clamp_min(0) + alpha)

    # no eigenvalue is negative as seen from -alpha, the pole: f is smooth, and has close bounds
    smooth = float(density.nodes.min()) >= -alpha / 100
    error = _radau_error(density, alpha) if smooth else density.monotone_error(determined)
    share = density.average(determined, quadrature=error, rtol=rtol)
    return replace(share, value=A.size * share.value, stderr=A.size * share.stderr)


def _radau_error(density: Density, alpha: float) -> float:
    """Half the distance between the Gauss and Gauss-Radau quadratures of ``alpha / (x + alpha)``.

    The mean is between them, if all eigenvalues are above the node that Radau prescribes (Golub &
    Meurant 2010, Ch. 6). The rows of the larger Jacobi matrix follow from nodes, weights and
    residuals: first and last components of its vectors have alternating signs.
    """
    x, w, residuals = density.nodes, density.weights, density.residuals
    node = -alpha / 50
    signs = (-1.0) ** torch.arange(x.shape[1], device=x.device)
    coupling = (signs * w.sqrt() * residuals / (x + alpha)).sum(1)
    corner = alpha + node + (residuals**2 * (1 / (x - node) - 1 / (x + alpha))).sum(1)
    return float((alpha * coupling**2 / corner).mean()) / 2


def negative_eigenvalues(
    A: Operator,
    *,
    threshold: float | None = None,
    rtol: float = 0.1,
    steps: int = 80,
    probes: int = 8,
    seed: int = 0,
    density: Density | None = None,
) -> Estimate:
    """The number of eigenvalues below ``-threshold``.

    The default threshold is what can be told from zero: ``n eps |A|`` where all eigenvalues are
    computed, and otherwise the distance of the quadrature's nodes, ``range / steps``. ``method``
    states it. The standard error holds the spread over probes and the weight that may lie on the
    other side of the threshold; ``converged`` asks for ``rtol``, or for half an eigenvalue.

    >>> H = torch.diag(torch.tensor([3.0, 1e-20, -1e-20, -2.0], dtype=torch.float64))
    >>> negative_eigenvalues(Dense(H))
    1 (below -2.7e-15: exact, 0 products)
    """
    density = density or spectral_density(A, steps=steps, probes=probes, seed=seed)
    if threshold is None:
        largest = float(density.nodes.abs().max())
        floor = A.size * torch.finfo(A.dtype).eps * largest
        threshold = floor if density.exact else max(density.bandwidth, floor)
    if not threshold >= 0:
        raise InputError(f"threshold must not be negative; got {threshold}")
    share = density.below(-threshold)
    value, stderr = A.size * share.value, A.size * share.stderr
    return Estimate(
        value=float(round(value)) if density.exact else value,
        stderr=stderr,
        samples=share.samples,
        converged=stderr <= max(rtol * value, 0.5),
        method=f"below {-threshold:.2g}: {share.method}",
    )


def condition_number(
    A: Operator, *, rtol: float = 0.05, max_matvecs: int | None = None, seed: int = 0
) -> Estimate:
    """``|l|_max / |l|_min`` over the eigenvalues.

    Of a ``Dense`` or small matrix from all eigenvalues; otherwise from Lanczos at both ends of the
    spectrum, where ``stderr`` is the distance to the largest number that the residuals allow.
    It is infinite if zero is among the eigenvalues to within rounding or residual, and if the
    operator has eigenvalues of both signs: the one next to zero is then inside the spectrum,
    out of a Lanczos method's reach. ``method`` says which.

    >>> condition_number(Dense(torch.diag(torch.tensor([8.0, 2.0, -4.0]))))
    4 (exact, 0 products)
    """
    limit = 1000 if max_matvecs is None else max_matvecs
    if isinstance(A, Dense) or A.size <= min(limit, SMALL // 8):
        values, products = eigenvalues(A)
        largest, smallest = float(values.abs().max()), float(values.abs().min())
        if smallest <= A.size * torch.finfo(A.dtype).eps * largest:
            return Estimate(math.inf, 0.0, products, True, "exact: singular to rounding")
        return Estimate(largest / smallest, 0.0, products, True, "exact")

    tol = rtol / 4
    top = eigsh(A, 1, which="largest", tol=tol, max_matvecs=limit // 2, seed=seed)
    bottom = eigsh(A, 1, which="smallest", tol=tol, max_matvecs=limit - top.matvecs, seed=seed)
    products = top.matvecs + bottom.matvecs
    found = top.converged and bottom.converged
    low, high = float(bottom.values[0]), float(top.values[0])
    floor = rounding(A.dtype) * max(-low, high)
    low_error = max(float(bottom.residuals[0]), floor)
    high_error = max(float(top.residuals[0]), floor)
    if abs(low) <= low_error or abs(high) <= high_error:
        why = "Lanczos: singular to within the residual"
        return Estimate(math.inf, math.inf, products, found, why)
    if low < 0 < high:
        why = "Lanczos: eigenvalues of both signs, the smallest is out of reach"
        return Estimate(math.inf, math.inf, products, False, why)
    if low < 0:  # negative definite: the same of -A
        low, high, low_error, high_error = -high, -low, high_error, low_error
    value = high / low
    stderr = (high + high_error) / (low - low_error) - value
    return Estimate(value, stderr, products, found and stderr <= rtol * value, "Lanczos")
