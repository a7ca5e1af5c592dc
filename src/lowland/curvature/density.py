"""The density of eigenvalues by stochastic Lanczos quadrature.

For a random unit vector v, m Lanczos steps give the Gauss quadrature of its spectral measure,
``v^T f(A) v ~ sum_j weight_j f(node_j)``, exact for polynomials of degree 2 m - 1; and the mean
over v is ``tr f(A) / n`` (Ubaru, Chen & Saad, SIAM J. Matrix Anal. Appl. 38, 2017; Ghorbani,
Krishnan & Xiao, ICML 2019). Every recurrence is orthogonalised against its whole basis, twice.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lowland.curvature.estimate import Estimate
from lowland.curvature.operator import Dense, Operator
from lowland.curvature.precision import rounding
from lowland.curvature.sketch import finite
from lowland.curvature.spectrum import SMALL, Spectrum
from lowland.errors import InputError

MEMORY = 2**31  # bytes of the bases that are held at once


@dataclass(frozen=True)
class Density:
    """The share of eigenvalues per unit of their value, smoothed by a Gaussian.

    ``exact`` says that the nodes are all the eigenvalues. Otherwise row p of ``nodes`` and
    ``weights`` is the quadrature from probe p, ``residuals`` are the distances within which A has
    an eigenvalue of each node, ``stderr`` comes from the spread over probes, and ``converged`` says
    that the error integrates to less than the tolerance: from the spread, and from what the
    last quarter of the Lanczos steps changed.
    """

    grid: Tensor  # (points,)
    density: Tensor  # (points,)
    stderr: Tensor  # (points,)
    nodes: Tensor  # (probes, steps), or (1, n)
    weights: Tensor  # as nodes; every row adds up to one
    residuals: Tensor  # as nodes
    coarse: tuple[Tensor, Tensor]  # nodes and weights after three quarters of the steps
    bandwidth: float
    size: int
    exact: bool
    converged: bool
    matvecs: int

    def __repr__(self) -> str:
        low, high = self.nodes.min(), self.nodes.max()
        how = "exact" if self.exact else f"{len(self.nodes)} probes of {self.nodes.shape[1]} steps"
        state = "" if self.converged else ", NOT converged"
        return f"Density([{low:.4g}, {high:.4g}], {how}, {self.matvecs} products{state})"

    def average(
        self, f: Callable[[Tensor], Tensor], *, quadrature: float = 0.0, rtol: float = 0.05
    ) -> Estimate:
        """The mean of ``f(eigenvalue)``, that is ``tr f(A) / n``.

        The standard error joins the spread over probes and the error of the quadrature: what the
        last quarter of the steps changed, or ``quadrature`` if that is more. The change alone tells
        enough where ``f`` is smooth on the scale of the whole spectrum.
        """
        values = (self.weights * f(self.nodes)).sum(1)  # (probes,)
        before = (self.coarse[1] * f(self.coarse[0])).sum(1)
        value = float(values.mean())
        if self.exact:
            return Estimate(value, 0.0, self.matvecs, True, "exact")
        quadrature = max(quadrature, abs(value - float(before.mean())))
        stderr = math.hypot(_standard_error(values), quadrature)
        done = stderr <= max(rtol * abs(value), 1e-12)
        return Estimate(value, stderr, self.matvecs, done, "Lanczos quadrature")

    def below(self, x: float, *, rtol: float = 0.05) -> Estimate:
        """The share of eigenvalues below ``x``."""

        def step(nodes: Tensor) -> Tensor:
            return (nodes < x).double()

        return self.average(step, quadrature=self.monotone_error(step), rtol=rtol)

    def monotone_error(self, f: Callable[[Tensor], Tensor]) -> float:
        """The error of the quadrature of a monotone ``f``, from its bounds.

        A node's weight stands for eigenvalues between its two neighbours (Chebyshev, Markov,
        Stieltjes), and three quarters of it at least for such within two residuals. The tighter
        interval is divided by sqrt(12), as the mean may lie anywhere inside.
        """
        at = f(self.nodes)
        low, high = (f(self.nodes + sign * 2 * self.residuals) for sign in (-1, 1))
        under = torch.cat([low[:, :1], at[:, :-1]], 1)
        over = torch.cat([at[:, 1:], high[:, -1:]], 1)
        by_neighbours, by_residuals = (
            (self.weights * difference).sum(1).abs() for difference in (over - under, high - low)
        )
        return float(torch.minimum(by_neighbours, by_residuals).mean()) / math.sqrt(12)

    def plot(self, ax: Any = None) -> Any:
        """Draw the density with its standard error on matplotlib axes, logarithmic upwards."""
        import matplotlib.pyplot as plt

        ax = ax if ax is not None else plt.subplots()[1]
        x, y, error = (t.cpu().numpy() for t in (self.grid, self.density, self.stderr))
        floor = y.max() * 1e-7  # eigenvalues in a million parameters are seen one by one
        [line] = ax.semilogy(x, y.clip(floor))
        if not self.exact:
            low, high = (y - error).clip(floor), (y + error).clip(floor)
            ax.fill_between(x, low, high, color=line.get_color(), alpha=0.25, linewidth=0)
        ax.set(xlabel="eigenvalue", ylabel="density", ylim=(floor, None))
        return ax


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
        A: anything with ``size``, ``dtype``, ``device`` and ``@``. Of a ``Dense`` matrix, and of
            one that takes no more products as a whole, all eigenvalues are computed.
        steps: of every Lanczos recurrence; nodes lie about ``range / steps`` apart.
        probes: random vectors, which go through ``A`` together.
        bandwidth: standard deviation of the Gaussian; by default ``range / steps``.
        points: of the grid. Each holds the mean density of its cell, so that the density adds up
            to one at any bandwidth.
        rtol: the density has ``converged`` if its error integrates to less.
        seed: of the random vectors.

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
    exact = isinstance(A, Dense) or A.size <= min(steps * probes, SMALL)
    if exact:
        spectrum = Spectrum.exactly(A)
        nodes, weights, residuals = (
            each[None] for each in (spectrum.nodes, spectrum.weights, spectrum.residuals)
        )
        matvecs = spectrum.matvecs
        coarse = nodes, weights
    else:
        alpha, beta, matvecs = _recurrences(A, min(steps, A.size), probes, seed)
        nodes, weights, residuals = _quadrature(alpha, beta)
        fewer = max(1, 3 * alpha.shape[1] // 4)
        coarse = _quadrature(alpha[:, :fewer], beta[:, :fewer])[:2]

    low, high = float(nodes.min()), float(nodes.max())
    # a multiple of the identity has no range, or one of rounding errors
    extent = max(high - low, 1e-3 * max(-low, high)) or 1.0
    sigma = bandwidth if bandwidth is not None else extent / steps
    edges = torch.linspace(low - 5 * sigma, high + 5 * sigma, points + 1, dtype=torch.float64)
    edges = edges.to(A.device)
    rows = _smoothed(nodes, weights, edges, sigma)  # (probes, points)
    change = (rows.mean(0) - _smoothed(*coarse, edges, sigma).mean(0)).abs()
    stderr = _standard_error(rows) if not exact else torch.zeros_like(rows[0])
    error = torch.hypot(stderr, change).sum() * (edges[1] - edges[0])
    return Density(
        grid=(edges[1:] + edges[:-1]) / 2,
        density=rows.mean(0),
        stderr=stderr,
        nodes=nodes,
        weights=weights,
        residuals=residuals,
        coarse=coarse,
        bandwidth=sigma,
        size=A.size,
        exact=exact,
        converged=bool(error <= rtol),
        matvecs=matvecs,
    )


def _recurrences(A: Operator, steps: int, probes: int, seed: int) -> tuple[Tensor, Tensor, int]:
    """Diagonals (probes, steps) and what follows below them, of independent Lanczos recurrences.

    All probes advance by one product with a block. A recurrence that has exhausted its
    invariant subspace goes on with zeros, which carry no weight.
    """
    generator = torch.Generator(device=A.device).manual_seed(seed)
    start = torch.randn(A.size, probes, dtype=A.dtype, device=A.device, generator=generator)
    together = max(1, MEMORY // (steps * A.size * start.element_size()))
    alphas, betas, matvecs = [], [], 0
    for group in start.split(together, 1):
        q = (group / group.norm(dim=0)).T  # (p, n)
        basis = q.new_empty(len(q), steps, A.size)
        alpha, beta = torch.zeros(2, len(q), steps, dtype=torch.float64, device=A.device)
        alive = torch.ones(len(q), dtype=torch.bool, device=A.device)
        for k in range(steps):
            basis[:, k] = q
            w = finite(A @ q.T).T.contiguous()
            matvecs += int(alive.sum())
            rayleigh = (w.double() * q.double()).sum(1)
            alpha[:, k] = torch.where(alive, rayleigh, alpha[:, 0])  # a node inside the spectrum
            for _ in range(2):
                w = _outside(basis[:, : k + 1], w)
            norm = w.double().norm(dim=1)
            scale = torch.maximum(alpha.abs().amax(1), beta.amax(1))
            alive = alive & (norm > rounding(A.dtype) * scale)
            beta[:, k] = torch.where(alive, norm, 0)
            q = torch.where(alive[:, None], w / norm[:, None].to(w.dtype), 0)
            if not alive.any():
                alpha[:, k + 1 :] = alpha[:, :1]
                break
        alphas.append(alpha)
        betas.append(beta)
    return torch.cat(alphas), torch.cat(betas), matvecs


def _outside(basis: Tensor, w: Tensor) -> Tensor:
    """Each w, (p, n), without its part in its own basis, (p, k, n); 5 times faster than batched."""
    rows = [torch.addmv(x, Q.T, Q @ x, alpha=-1) for Q, x in zip(basis, w, strict=True)]
    return torch.stack(rows)


def _quadrature(alpha: Tensor, beta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Nodes, weights and residuals, each (probes, steps): Golub & Welsch 1969."""
    T = torch.diag_embed(alpha)
    off = torch.diag_embed(beta[:, :-1], 1)
    nodes, Y = torch.linalg.eigh(T + off + off.transpose(1, 2))
    return nodes, Y[:, 0] ** 2, beta[:, -1:] * Y[:, -1].abs()


def _smoothed(nodes: Tensor, weights: Tensor, edges: Tensor, sigma: float) -> Tensor:
    """The mean density of every cell, (probes, points)."""
    rows = [
        torch.special.ndtr((edges[:, None] - x) / sigma) @ w
        for x, w in zip(nodes, weights, strict=True)
    ]
    return torch.stack(rows).diff(dim=1) / (edges[1] - edges[0])


def _standard_error(values: Tensor) -> Any:
    """Of the mean over the first dimension; unknown from one probe alone."""
    if len(values) == 1:
        return math.inf * torch.ones_like(values[0]) if values.ndim > 1 else math.inf
    error = values.std(0) / math.sqrt(len(values))
    return error if values.ndim > 1 else float(error)
