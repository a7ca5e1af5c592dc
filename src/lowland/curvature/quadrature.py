"""Block Lanczos quadrature: the spectral measure of a few random vectors, and bounds on it.

From p vectors, m products with the whole block give a block-tridiagonal T. Its eigenvalues (nodes)
and the squares of the first rows of its eigenvectors (weights) are the Gauss quadrature of the
vectors' spectral measure, exact for polynomials of degree 2 m - 1. One more block that prescribes
a node makes it a Gauss-Radau quadrature, and the two bound what they approximate (Golub & Meurant
2010, Ch. 6). Every block is orthogonalised twice against the whole basis.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from lowland.curvature.lanczos import Columns, bordered
from lowland.curvature.operator import Operator, columns_within
from lowland.curvature.precision import precision
from lowland.curvature.sketch import finite


@dataclass(frozen=True)
class Quadrature:
    """What a block Lanczos run found: ``A V = V T + Q B E^T``, with E the last columns of I."""

    T: Tensor  # (k, k), float64 as all but V
    B: Tensor  # (b', b): what couples to the next block; no rows where the run came to an end
    V: Tensor  # (n, k), orthonormal
    nodes: Tensor  # (k,), ascending: eigenvalues of T
    Y: Tensor  # (k, k): its eigenvectors
    probes: int
    matvecs: int
    rounding: float  # how far rounding in the products may have moved an eigenvalue

    @property
    def weights(self) -> Tensor:
        """Mean over the probes of the weight of each node, (k,); in all 1."""
        return self._weights(self.Y)

    @property
    def residuals(self) -> Tensor:
        """A has an eigenvalue within this distance of each node, (k,)."""
        return (self.B @ self.Y[len(self.Y) - self.B.shape[1] :]).norm(dim=0)

    def radau(self, x: float) -> tuple[Tensor, Tensor]:
        """Nodes and weights of the quadrature that has a node at x for each vector of a block."""
        k, (more, b) = len(self.T), self.B.shape
        if not more:
            return self.nodes, self.weights
        least = 1e-13 * float(self.nodes.abs().max())
        apart = self.nodes - x
        apart = torch.where(apart.abs() < least, least, apart)
        last = self.B @ self.Y[k - b :]  # (more, k)
        columns = self.T.new_zeros(k + more, more)
        columns[k - b : k] = self.B.T
        columns[k:] = (last / apart) @ last.T  # B (T - x)^-1 B^T
        columns[k:].diagonal().add_(x)
        nodes, Y = torch.linalg.eigh(bordered(self.T, columns))
        return nodes, self._weights(Y)

    def coarse(self) -> tuple[Tensor, Tensor]:
        """Nodes and weights after half of the products."""
        k = max(self.probes, len(self.T) // 2)
        nodes, Y = torch.linalg.eigh(self.T[:k, :k])
        return nodes, self._weights(Y)

    def below(self, x: float) -> tuple[float, float]:
        """The least and the most weight that the probes' spectral measure can have below x.

        The extremes are taken by the quadrature with a node at x, without and with that node
        (Chebyshev, Markov, Stieltjes).
        """
        nodes, weights = self.radau(x)
        slack = 1e-9 * float(self.nodes.abs().max()) if len(self.B) else 0.0
        return float(weights[nodes < x - slack].sum()), float(weights[nodes <= x + slack].sum())

    def _weights(self, Y: Tensor) -> Tensor:
        return Y[: self.probes].square().sum(0) / self.probes


def block_lanczos(
    A: Operator,
    start: Tensor,
    steps: int,
    settled: Callable[[Tensor, Tensor], bool] = lambda nodes, residuals: True,
    max_steps: int | None = None,
    hopeless: Callable[[Quadrature], bool] = lambda quadrature: False,
) -> Quadrature:
    """The quadrature after ``steps`` products with a block.

    Args:
        A: anything with ``size``, ``dtype``, ``device`` and ``@``.
        start: the probes, (n, p): independent columns of a rotation-invariant distribution.
        steps: how many blocks. Fewer, if the basis would not fit the memory, and if the products
            with what was found lead out of it nowhere: then all nodes are eigenvalues.
        settled: called with nodes and residuals from then on; the run goes on until it returns
            true,
        max_steps: or there were so many.
        hopeless: called with what there is after a third and after half of the steps; the run ends
            if it returns true.
    """
    n, probes = A.size, start.shape[1]
    Q = torch.linalg.qr(start.to(A.device, A.dtype)).Q
    del start
    fits = columns_within(A) // probes
    steps = max(1, min(steps, fits))
    most = max(steps, min(max_steps or steps, fits))
    basis = Columns(A, min(most * probes, n))
    T = Q.new_empty(0, 0, dtype=torch.float64)
    taken, strays, count, last, norm = 0, 0.0, 0, 0, 0.0

    def quadrature() -> Quadrature:
        nodes, Y = torch.linalg.eigh(T)
        reach = 2 * math.sqrt(n * strays / max(1, count))  # of a matrix with such entries
        reach = max(reach, torch.finfo(A.dtype).eps * norm)
        return Quadrature(T, B, V, nodes, Y, probes, basis.count, reach)

    while True:
        # As rows: a few long columns side by side take six times as long.
        W = finite(A @ Q).T.contiguous()  # (b, n)
        before, b = basis.count, Q.shape[1]
        basis.append(Q)
        V = basis.all
        within = V.T @ W.T
        W = torch.addmm(W, within.T, V.T, alpha=-1)
        again = V.T @ W.T
        W = torch.addmm(W, again.T, V.T, alpha=-1)
        within = (within + again).double()
        T = bordered(T, within)
        taken += 1
        # Exact products of a symmetric matrix overlap with the last two blocks alone.
        far = within[: max(0, before - last)]
        strays, count, last = strays + float(far.square().sum()), count + far.numel(), b
        norm = max(norm, float(torch.linalg.matrix_norm(within, 2)))
        Q, B = _remaining(W.T, precision(A) * norm)
        if not len(B) or basis.count + len(B) > n or taken >= most:
            break
        if taken in (steps // 3, steps // 2) and hopeless(quadrature()):
            break
        if taken >= steps:
            nodes, Y = torch.linalg.eigh(T)
            if settled(nodes, (B @ Y[len(Y) - b :]).norm(dim=0)):
                break
    return quadrature()


def _remaining(W: Tensor, least: float) -> tuple[Tensor, Tensor]:
    """Q and B with ``W = Q B``: orthonormal columns, as many as W has that exceed ``least``."""
    Q, R = torch.linalg.qr(W)
    U, S, Vh = torch.linalg.svd(R.double())
    keep = least < S
    return (U[:, keep].T.to(Q.dtype) @ Q.T).T, (S[:, None] * Vh)[keep]
