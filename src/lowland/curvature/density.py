"""The density of eigenvalues by stochastic Lanczos quadrature.

(Ubaru, Chen & Saad, SIAM J. Matrix Anal. Appl. 38, 2017; Ghorbani, Krishnan & Xiao, ICML 2019.) The
nodes of a block Lanczos quadrature, each with its weight and spread by a Gaussian.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from lowland.curvature.estimate import Estimate
from lowland.curvature.operator import Operator, columns_within
from lowland.curvature.operators import of_an_operator
from lowland.curvature.spectrum import Spectrum
from lowland.errors import InputError
from lowland.figures import draw_density, drawn_on, picture
from lowland.problem import differentiating


@dataclass(frozen=True)
class Density:
    """The share of eigenvalues per unit of their value, smoothed by a Gaussian.

    ``exact`` says that the nodes are all the eigenvalues. Otherwise they are those of a quadrature,
    ``residuals`` are the distances within which A has an eigenvalue of each node, and ``stderr``
    holds what other random vectors would change and what the second half of the Lanczos steps
    changed. ``converged`` says that it integrates to less than the tolerance.
    """

    grid: Tensor  # (points,)
    density: Tensor  # (points,)
    stderr: Tensor  # (points,)
    spectrum: Spectrum
    bandwidth: float
    converged: bool

    @classmethod
    def of(
        cls,
        spectrum: Spectrum,
        bandwidth: float | None = None,
        points: int = 1024,
        steps: int = 80,
        rtol: float = 0.1,
    ) -> "Density":
        """The density of a spectrum that is known; the arguments are of `spectral_density`."""
        low, high = float(spectrum.nodes.min()), float(spectrum.nodes.max())
        # a multiple of the identity has no range, or one of rounding errors
        extent = max(high - low, 1e-3 * max(-low, high)) or 1.0
        sigma = bandwidth or extent / steps
        edges = torch.linspace(low - 5 * sigma, high + 5 * sigma, points + 1, dtype=torch.float64)
        edges = edges.to(spectrum.nodes.device)
        cells = _smoothed(spectrum.nodes, edges, sigma)  # (points, nodes)
        number, error = spectrum.sums(cells)
        stderr = error / spectrum.size
        if spectrum.quadrature is not None:
            nodes, weights = spectrum.quadrature.coarse()
            change = cells @ spectrum.weights - _smoothed(nodes, edges, sigma) @ weights
            stderr = torch.hypot(stderr, change)
        return cls(
            grid=(edges[1:] + edges[:-1]) / 2,
            density=number / spectrum.size,
            stderr=stderr,
            spectrum=spectrum,
            bandwidth=sigma,
            converged=bool(stderr.sum() * (edges[1] - edges[0]) <= rtol),
        )

    @property
    def nodes(self) -> Tensor:
        """Where the eigenvalues are, (k,)."""
        return self.spectrum.nodes

    @property
    def weights(self) -> Tensor:
        """The share of them at each node, (k,); in all 1."""
        return self.spectrum.weights

    @property
    def residuals(self) -> Tensor:
        """A has an eigenvalue within this distance of each node, (k,)."""
        return self.spectrum.residuals

    @property
    def exact(self) -> bool:
        """Whether the nodes are all the eigenvalues, to rounding."""
        return self.spectrum.exact and self.spectrum.products == "exact"

    @property
    def matvecs(self) -> int:
        """Products with one vector."""
        return self.spectrum.matvecs

    def __repr__(self) -> str:
        low, high = self.nodes.min(), self.nodes.max()
        how = self.spectrum.method if self.spectrum.exact else f"{len(self.nodes)} nodes"
        state = "" if self.converged else ", NOT converged"
        return f"Density([{low:.4g}, {high:.4g}], {how}, {self.matvecs} products{state})"

    def average(self, f: Callable[[Tensor], Tensor], *, rtol: float = 0.05) -> Estimate:
        """The mean of ``f(eigenvalue)``, that is ``tr f(A) / n``.

        The standard error joins that of the random vectors with twice what the second half of the
        steps changed, which is enough where ``f`` is smooth on the scale of the nodes' distances.
        """
        low = high = None
        if self.spectrum.quadrature is not None:
            nodes, weights = self.spectrum.quadrature.coarse()
            gauss = float(self.weights @ f(self.nodes))
            change = 2 * math.sqrt(3) * abs(gauss - float(weights @ f(nodes)))
            low, high = gauss - change, gauss + change
        return self._share(self.spectrum.total(f, low, high), rtol)

    def below(self, x: float, *, rtol: float = 0.05) -> Estimate:
        """The share of eigenvalues below ``x``."""
        return self._share(self.spectrum.between(-math.inf, math.nextafter(x, -math.inf)), rtol)

    def _share(self, total: Estimate, rtol: float) -> Estimate:
        n = self.spectrum.size
        value, stderr = total.value / n, total.stderr / n
        done = stderr <= max(rtol * abs(value), 1e-12)
        return replace(total, value=value, stderr=stderr, converged=done)

    def plot(self, ax: Any = None) -> Any:
        """Draw the density with two standard errors on matplotlib axes, logarithmic upwards."""
        return drawn_on(draw_density, self, ax)

    def _repr_html_(self) -> str:
        return picture(draw_density, self)


@of_an_operator
@differentiating()
def spectral_density(
    A: Operator,
    *,
    steps: int = 80,
    probes: int = 8,
    bandwidth: float | None = None,
    points: int = 1024,
    rtol: float = 0.1,
    seed: int = 0,
) -> Density:
    """The density of eigenvalues, from ``steps * probes`` products or, if these suffice, exactly.

    Args:
        A: anything with ``size``, ``dtype``, ``device`` and ``@``, a tensor, or a problem, which
            stands for its Hessian. Of a ``Dense`` matrix, and of
            one that takes no more products as a whole, all eigenvalues are computed.
        steps: of the Lanczos recurrence; nodes lie about ``range / steps`` apart.
        probes: random vectors, which go through ``A`` together; fewer, if the basis of them and
            all their products would not fit the memory.
        bandwidth: standard deviation of the Gaussian; by default ``range / steps``.
        points: of the grid. Each holds the mean density of its cell, so that the density adds up
            to one at any bandwidth.
        rtol: the density has ``converged`` if its error integrates to less.
        seed: of the random vectors.

    >>> from lowland.curvature import Dense
    >>> d = spectral_density(Dense(torch.diag(torch.tensor([5.0, -4.0, 1.0]))))
    >>> d
    Density([-4, 5], exact, 0 products)
    >>> d.average(lambda x: x**2)  # (25 + 16 + 1) / 3
    14 (exact, 0 products)
    """
    for name, count in {"steps": steps, "probes": probes, "points - 1": points - 1}.items():
        if count < 1:
            raise InputError(f"{name} must be at least 1; got {count}")
    if bandwidth is not None and not bandwidth > 0:
        raise InputError(f"bandwidth must be above zero; got {bandwidth}")
    probes = min(probes, max(2, columns_within(A) // steps))
    spectrum = Spectrum.of(A, steps, probes, seed)

    return Density.of(spectrum, bandwidth, points, steps, rtol)


def _smoothed(nodes: Tensor, edges: Tensor, sigma: float) -> Tensor:
    """The mean density in every cell of a Gaussian around every node, (points, nodes)."""
    below = torch.special.ndtr((edges[:, None] - nodes) / sigma)
    return below.diff(dim=0) / (edges[1] - edges[0])
