"""Extreme eigenpairs of a symmetric operator by thick-restart block Lanczos.

The method keeps ``A V = V T + Q B^T`` with orthonormal ``[V Q]`` (Krylov-Schur form; Wu & Simon,
SIAM J. Matrix Anal. Appl. 22, 2000): when the basis is full, its best Ritz vectors replace it
and the iteration goes on from the same residual block. Every new block is orthogonalised twice
against the whole basis, so that no eigenvalue appears more often than it should.
"""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from lowland.curvature.operator import Operator, columns_within
from lowland.curvature.operators import of_an_operator
from lowland.curvature.precision import rounding
from lowland.errors import InputError
from lowland.figures import draw_eigenvalues, drawn_on, picture
from lowland.problem import differentiating

End = Literal["magnitude", "largest", "smallest"]

_ROWS = 1 << 16  # entries of every basis vector that are combined at once


@dataclass(frozen=True)
class Eigenpairs:
    """Eigenvalues with what is known of their error.

    ``residuals`` are the norms ``|A v - value v|``, computed and not estimated: by Weyl's
    inequality an eigenvalue of A lies within that distance of each value.
    """

    values: Tensor  # (k,), float64
    vectors: Tensor  # (n, k)
    residuals: Tensor  # (k,), float64
    converged: bool
    matvecs: int

    def __repr__(self) -> str:
        shown = ", ".join(f"{v:.4g}" for v in self.values[:5].tolist())
        more = ", ..." if len(self.values) > 5 else ""
        state = "converged" if self.converged else "NOT converged"
        return (
            f"Eigenpairs([{shown}{more}], residuals <= {self.residuals.max():.1e}, {state}, "
            f"{self.matvecs} products)"
        )

    def plot(self, ax: Any = None) -> Any:
        """Draw the eigenvalues with their residuals on matplotlib axes."""
        return drawn_on(draw_eigenvalues, self, ax)

    def _repr_html_(self) -> str:
        return picture(draw_eigenvalues, self)


@of_an_operator
@differentiating()
def eigsh(
    A: Operator,
    k: int = 10,
    *,
    which: End = "magnitude",
    tol: float = 1e-3,
    block: int = 1,
    start: Tensor | None = None,
    max_matvecs: int | None = None,
    seed: int = 0,
) -> Eigenpairs:
    """The ``k`` eigenpairs of largest magnitude, or at either end of the spectrum.

    Args:
        A: anything with ``size``, ``dtype``, ``device`` and ``@``, a tensor, or a problem, which
            stands for its Hessian.
        k: how many.
        which: ``"magnitude"``, ``"largest"`` or ``"smallest"`` (algebraically).
        tol: stop when every residual is below ``tol`` times its eigenvalue's magnitude.
        block: how many vectors go through ``A`` at once. An eigenvalue of multiplicity m needs m
            of them to be found m times. More take more products: for ten pairs of 784-30-30-10,
            25 by one and 44 by four, which was no faster although products share work.
        start: earlier eigenvectors, (n,) or (n, b), to start from; they set the block size.
        max_matvecs: give up after so many products; the result then says ``converged=False``.
        seed: of the random starting block.

    >>> from lowland.curvature import Dense
    >>> H = torch.diag(torch.tensor([5.0, -4.0, 1.0], dtype=torch.float64))
    >>> eigsh(Dense(H), k=2).values
    tensor([ 5., -4.], dtype=torch.float64)
    """
    n = A.size
    if not 1 <= k <= n:
        raise InputError(f"k must be between 1 and the size {n} of the operator; got {k}")
    if start is not None and len(start) != n:
        raise InputError(f"start has {len(start)} rows; the operator has size {n}")
    generator = torch.Generator(device=A.device).manual_seed(seed)
    if start is None:
        start = torch.randn(n, min(block, n), device=A.device, generator=generator)
    Q = start.reshape(n, -1).to(A.device, A.dtype)
    b = Q.shape[1]
    capacity = min(n, max(2 * k, k + 40) + 4 * b)  # columns of the basis before a restart
    limit = max_matvecs if max_matvecs is not None else max(1000, 50 * k)
    fits = columns_within(A) - 4 * b  # beside the block, its products and what is left of them
    # The basis times A gives the residuals; where memory is short, they take k products more.
    keeps_products = 2 * (capacity + b) <= fits
    if not keeps_products:
        capacity = min(capacity, fits - b)
        if capacity < min(n, k + 2 * b):
            raise InputError(
                f"a search for {k} eigenvectors of {n:,} entries takes "
                f"{(k + 7 * b) * n * A.dtype.itemsize / 2**20:,.0f} MiB at least, and half of the "
                "memory budget is less; ask for fewer, or pass Problem(memory=...) with more"
            )

    V = Columns(A, capacity + b)
    AV = Columns(A, capacity + b if keeps_products else 0)
    T = torch.empty(0, 0, dtype=torch.float64, device=A.device)
    Q, _ = _orthonormal(Q, Q.norm(dim=0), V.all, generator)
    matvecs, restarted = 0, False
    while True:
        W = A @ Q
        if not W.isfinite().all():
            raise InputError(
                "a product with the operator is NaN or infinite: the curvature is not defined here"
            )
        matvecs += Q.shape[1]
        V.append(Q)
        if keeps_products:
            AV.append(W)
        # Only the last two blocks overlap with A Q, or all of them after a restart; one more pass
        # over the whole basis takes out what rounding leaves.
        near = V.all if restarted else V.all[:, -2 * b :]
        size, restarted = W.norm(dim=0), False
        overlap = near.T @ W
        W = W - near @ overlap
        within = V.all.T @ W
        W = W - V.all @ within
        within[-len(overlap) :] += overlap
        T = bordered(T, within.double())
        theta, Y = torch.linalg.eigh(T)
        order = _order(theta, which)
        theta, Y = theta[order], Y[:, order]
        allowed = (tol * theta[:k].abs()).clamp_min(rounding(A.dtype) * theta.abs().max())

        room = n - V.count
        seem_done = False
        if room:
            Q, coupling = _orthonormal(W, size, V.all, generator)
            # |A y - theta y| = |coupling y_last|: tells, without a vector of length n, when to look
            expected = (coupling @ Y[-W.shape[1] :, :k]).norm(dim=0)
            seem_done = len(theta) >= k and bool((expected <= allowed).all())
            Q = Q[:, :room]
        stop = matvecs >= limit or not room
        if stop or seem_done or V.count + b > capacity:
            kept = min(len(theta), max(k, capacity - max(b, (capacity - k) // 2)))
            theta, Y, T = theta[:kept], Y[:, :kept].to(A.dtype), torch.diag(theta[:kept])
            V.turn(Y)
            if keeps_products:
                AV.turn(Y)
            restarted = True
            if not (keeps_products or stop or seem_done):
                continue
            top = V.all[:, :k]
            residuals = torch.empty(top.shape[1], dtype=torch.float64, device=A.device)
            for i, vector in enumerate(top.unbind(1)):
                product = AV.all[:, i] if keeps_products else A @ vector
                residuals[i] = (product - vector * theta[i].to(A.dtype)).norm()
            matvecs += 0 if keeps_products else len(residuals)
            done = len(residuals) == k and bool((residuals <= allowed).all())
            if done or stop:
                return Eigenpairs(theta[:k], top.clone(), residuals, done, matvecs)


class Columns:
    """Columns of length n in memory for ``most`` of them: adding some copies none of the others."""

    def __init__(self, A: Operator, most: int) -> None:
        self._rows = torch.empty(most, A.size, dtype=A.dtype, device=A.device)
        self.count = 0

    @property
    def all(self) -> Tensor:
        """The columns so far, (n, count)."""
        return self._rows[: self.count].T

    def append(self, columns: Tensor) -> None:
        """Add columns, (n, k)."""
        # One by one: torch copies a transposed matrix of one column ten times as slowly.
        for row, column in zip(self._rows[self.count :], columns.unbind(1), strict=False):
            row.copy_(column)
        self.count += columns.shape[1]

    def turn(self, Y: Tensor) -> None:
        """Replace the columns by combinations of them, ``columns @ Y``."""
        for part in self._rows.split(_ROWS, dim=1):  # not a second basis beside the first
            part[: Y.shape[1]] = Y.T @ part[: self.count]
        self.count = Y.shape[1]


def _order(theta: Tensor, which: End) -> Tensor:
    keys = {"magnitude": -theta.abs(), "largest": -theta, "smallest": theta}
    if which not in keys:
        raise InputError(f"which must be one of {', '.join(map(repr, keys))}; got {which!r}")
    return keys[which].argsort()


def bordered(T: Tensor, columns: Tensor) -> Tensor:
    """The matrix T with ``columns`` as its new last columns and rows, exactly symmetric."""
    m, b = columns.shape
    grown = columns.new_zeros(m, m)
    grown[: m - b, : m - b] = T
    grown[:, m - b :] = columns
    grown[m - b :, :] = columns.T
    corner = columns[m - b :]
    grown[m - b :, m - b :] = (corner + corner.T) / 2
    return grown


def _qr(W: Tensor) -> tuple[Tensor, Tensor]:
    if W.shape[1] > 1:
        return torch.linalg.qr(W)
    norm = W.norm()  # LAPACK takes ten times as long for a single column
    return W / norm.clamp_min(torch.finfo(W.dtype).tiny), norm.view(1, 1)


def _orthonormal(
    W: Tensor, size: Tensor, V: Tensor, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """An orthonormal basis of W, which is orthogonal to V, and R with ``W = Q R``.

    A column that has all but vanished against its ``size`` before (an invariant subspace was
    found) is replaced by a random direction with no coupling, so that the search goes on in the
    rest of the space.
    """
    Q, R = _qr(W)
    lost = R.diagonal().abs() <= rounding(W.dtype) * size
    if lost.any():
        Q = Q.clone()
        fresh = torch.randn(Q[:, lost].shape, dtype=Q.dtype, device=Q.device, generator=generator)
        Q[:, lost] = fresh
        for _ in range(2):
            Q = Q - V @ (V.T @ Q)
            Q, _ = _qr(Q)
        R = Q.T @ W
    return Q, R.double()
