"""Extreme eigenpairs of a symmetric operator by thick-restart block Lanczos.

The method keeps ``A V = V T + Q B^T`` with orthonormal ``[V Q]`` (Krylov-Schur form; Wu & Simon,
SIAM J. Matrix Anal. Appl. 22, 2000): when the basis is full, its best Ritz vectors replace it
and the iteration goes on from the same residual block. Every new block is orthogonalised twice
against the whole basis, so that no eigenvalue appears more often than it should.

It sees one copy of a multiple eigenvalue, and none of an eigenvector that the start happens to be
orthogonal to. So it is followed by a search from a random direction in what the basis leaves out,
unless one eigenvalue is asked for: a copy of it changes nothing, and its own search began so.
If that holds an eigenvalue beyond those found, j products show it, except with the probability

    .824 sqrt(n) ((1 - sqrt e) / (1 + sqrt e))^(j - 1/2)

where e is the gap to what they show, as a share of the range (Kuczynski & Wozniakowski, SIAM J.
Matrix Anal. Appl. 13, 1992, Thm. 4.2). What is found joins the basis, and the search is repeated.
"""

import math
from dataclasses import dataclass
from operator import index
from typing import Any, Literal

import torch
from torch import Tensor

from lowland.curvature.operator import Operator, Scaled, columns_within
from lowland.curvature.operators import of_an_operator
from lowland.curvature.precision import rounding
from lowland.errors import InputError
from lowland.figures import draw_eigenvalues, drawn_on, picture
from lowland.problem import differentiating

End = Literal["magnitude", "largest", "smallest"]

_ROWS = 1 << 16  # entries of every basis vector that are combined at once
_MISSED = 1e-3  # probability of an eigenvalue that is left out, by a bound that is not sharp
_SMALL = 1e-2  # share of a vector that is left, from which on its rounding is negligible
# Gaps whose products are enough if what was left out has come to within its residual of the
# edge, and if it has converged.
_NEAR, _SETTLED = 0.1, 0.25
# What is allowed of a residual, if no second search follows: one that is near is seen by then.
_ALONE = 0.1
_SHARE = 0.3  # of a random direction, in a start from an earlier vector


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
    """Return the ``k`` eigenpairs of largest magnitude, or at either end of the spectrum.

    Equal eigenvalues are returned as often as they occur. No search takes more products than the
    matrix has columns if its basis fits the memory and it has at most 1,000 columns, or 50 ``k``.

    Args:
        A: anything with ``size``, ``dtype``, ``device`` and ``@``, a tensor, or a problem, which
            stands for its Hessian.
        k: how many.
        which: ``"magnitude"``, ``"largest"`` or ``"smallest"`` (algebraically).
        tol: stop when every residual is below ``tol`` times its eigenvalue's magnitude, and a
            random direction shows that no eigenvalue beyond them is left out.
        block: how many vectors go through ``A`` at once. More take more products: for ten pairs of
            784-30-30-10, 25 by one and 44 by four, which was no faster although products share
            work.
        start: earlier eigenvectors, (n,) or (n, b), to start from; they set the block size.
        max_matvecs: give up after so many products; the result then says ``converged=False``.
        seed: of the random starting block.

    >>> from lowland.curvature import Dense
    >>> H = torch.diag(torch.tensor([5.0, -4.0, 1.0], dtype=torch.float64))
    >>> eigsh(Dense(H), k=2).values
    tensor([ 5., -4.], dtype=torch.float64)
    """
    n = A.size
    try:
        k, block, seed = index(k), index(block), index(seed)
    except TypeError:
        raise InputError(
            f"k, block and seed are whole numbers; got {k!r}, {block!r} and {seed!r}"
        ) from None
    if block < 1 or not tol > 0:
        raise InputError(f"block is at least 1, and tol above 0; got {block} and {tol}")
    if not 1 <= k <= n:
        raise InputError(f"k must be between 1 and the size {n} of the operator; got {k}")
    if start is not None and len(start) != n:
        raise InputError(f"start has {len(start)} rows; the operator has size {n}")
    A = Scaled(A)
    generator = torch.Generator(device=A.device).manual_seed(seed)
    b = min(block, n) if start is None else start.reshape(n, -1).shape[1]
    # A search for one from a random direction is itself one for what it may have left out. One
    # from an earlier vector is as well, with a share of such a direction in its start.
    alone, random = k == 1, torch.randn(n, b, device=A.device, generator=generator).to(A.dtype)
    Q = random
    if start is not None:
        Q = start.reshape(n, -1).to(A.device, A.dtype)
        if alone:
            Q = Q / Q.norm(dim=0) + _SHARE * random / random.norm(dim=0)
    usual = max(1000, 50 * k)
    limit = max_matvecs if max_matvecs is not None else usual
    fits = columns_within(A) - 4 * b  # beside the block, its products and what is left of them
    # Columns of the basis before a restart: all, where that ends the search in n products.
    capacity = min(n, max(2 * k, k + 40) + 4 * b)
    if n <= usual and 2 * (n + b) <= fits:
        capacity = n
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

    # The search outside has as much room once more, where there is memory for it.
    most = min(n, 2 * capacity, (fits // 2 if keeps_products else fits) - b)
    V = Columns(A, most + b)
    AV = Columns(A, most + b if keeps_products else 0)
    T = torch.empty(0, 0, dtype=torch.float64, device=A.device)
    Q, _ = _orthonormal(Q, Q.norm(dim=0), V.all, generator)
    matvecs, restarted, look = 0, False, 0
    outside: int | None = None  # where a search from a random direction began in the basis,
    tried = 0  # and its products
    while True:
        W = A @ Q
        if not W.isfinite().all():
            raise InputError(
                "a product with the operator is NaN or infinite: the curvature is not defined here"
            )
        matvecs += Q.shape[1]
        tried += Q.shape[1]
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
        room = n - V.count
        coupling = T.new_zeros(W.shape[1], W.shape[1])
        if room:
            Q, coupling = _orthonormal(W, size, V.all, generator)
            Q = Q[:, :room]
        stop = matvecs >= limit or not room
        full = V.count + b > (capacity if outside is None else most)
        if not (stop or full) and V.count < look:
            continue
        look = V.count + V.count // 50  # the basis of a whole matrix is not looked at every time

        theta, Y = _ritz(T, which)
        unsure = rounding(A.dtype) if room else n * torch.finfo(A.dtype).eps
        allowed = (tol * theta[:k].abs()).clamp_min(unsure * theta.abs().max())
        edge = float(_far(theta, which)[:k][-1] + allowed[-1])
        # |A y - theta y| = |coupling y_last|: tells, without a vector of length n, when to look
        expected = (coupling @ Y[-W.shape[1] :]).norm(dim=0)
        found = len(theta) >= k and bool((expected[:k] <= allowed).all())
        # Nor may another one come to lie beyond the last of them.
        found = found and bool((_far(theta, which) + 2 * expected <= edge)[k:].all())
        complete = not room  # nothing is outside
        if found and room and (alone or outside is not None):
            F = T[outside or 0 :, outside or 0 :]
            # Little of a random direction shows as much as a longer vector's would.
            share = 1.0 if start is None or outside is not None else _SHARE
            left_out = _left_out(F, coupling, edge, which, tol, n / share**2, tried // b)
            complete, found = left_out is False, left_out is not None
            if alone and float(expected[0]) > _ALONE * float(allowed[0]):
                complete = found = False
        if not (stop or found or full):
            continue
        if outside is not None and not (stop or found):  # the best of the search outside
            F = _ritz(T[outside:, outside:], which)[1]
            Y = torch.block_diag(torch.eye(outside).to(F), F[:, : len(F) // 2])
            T, restarted, look = Y.T @ T @ Y, True, 0
            V.turn(Y.to(A.dtype))
            if keeps_products:
                AV.turn(Y.to(A.dtype))
            continue
        kept = max(k, capacity - max(b, (capacity - k) // 2)) if capacity < n else n
        theta, Y, T = theta[:kept], Y[:, :kept].to(A.dtype), theta[:kept].diag()
        V.turn(Y)
        if keeps_products:
            AV.turn(Y)
        alone, restarted, look = False, True, 0
        if not (keeps_products or stop or found):
            continue
        top = V.all[:, :k]
        residuals = torch.empty(top.shape[1], dtype=torch.float64, device=A.device)
        for i, vector in enumerate(top.unbind(1)):
            product = AV.all[:, i] if keeps_products else A @ vector
            residuals[i] = (product - vector * theta[i].to(A.dtype)).norm()
        matvecs += 0 if keeps_products else len(residuals)
        done = len(residuals) == k and bool((residuals <= allowed).all())
        if stop or (done and complete):
            values, residuals = theta[:k] * A.scale, residuals * A.scale
            return Eigenpairs(values, top.clone(), residuals, done and complete, matvecs)
        if done and found:
            Q, _ = _orthonormal(torch.zeros_like(Q[:, :1]), Q.new_ones(1), V.all, generator)
            b, outside, tried = 1, V.count, 0


def _left_out(
    F: Tensor,
    coupling: Tensor,
    edge: float,
    which: End,
    tol: float,
    n: float,
    products: int,
) -> bool | None:
    """Return whether there are eigenvalues beyond the edge outside; None if it is not known yet.

    F is the matrix on the basis of the search outside, after so many ``products``, and ``coupling``
    leads out of it.
    """
    values, Y = torch.linalg.eigh(F)
    residuals = (coupling @ Y[-coupling.shape[1] :]).norm(dim=0)
    signs = {"largest": (1,), "smallest": (-1,), "magnitude": (1, -1)}[which]
    chances = []
    for sign in signs:
        own = sign * values
        top = int(own.argmax())
        if own[top] > edge:
            return True
        # Few products do not reach the other end of the range: it is as far as they may err.
        gap = float((edge - own[top]) / (edge - (own - residuals).min()).clamp_min(1e-300))
        if own[top] + residuals[top] <= edge:
            gap = max(gap, _NEAR)
        if residuals[top] <= tol * abs(own[top]):
            gap = max(gap, _SETTLED)
        root = math.sqrt(min(gap, 1.0))
        rate = (1 - root) / (1 + root)
        chances.append(0.824 * math.sqrt(n) * rate ** (products - 0.5))
    return False if max(chances) <= _MISSED else None


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


def _far(theta: Tensor, which: End) -> Tensor:
    """Return how far out eigenvalues are, at the end that is asked for."""
    if which not in ("magnitude", "largest", "smallest"):
        raise InputError(f"which must be one of 'magnitude', 'largest', 'smallest'; got {which!r}")
    return theta.abs() if which == "magnitude" else theta if which == "largest" else -theta


def _ritz(T: Tensor, which: End) -> tuple[Tensor, Tensor]:
    """Return the eigenvalues of T, the farthest out first, and its eigenvectors."""
    theta, Y = torch.linalg.eigh(T)
    order = _far(theta, which).argsort(descending=True)
    return theta[order], Y[:, order]


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
    rest of the space. One of which little is left is mostly rounding, and made orthogonal again.
    """
    Q, R = _qr(W)
    left = R.diagonal().abs()
    lost = left <= rounding(W.dtype) * size
    if lost.any():
        Q = Q.clone()
        fresh = torch.randn(Q[:, lost].shape, dtype=Q.dtype, device=Q.device, generator=generator)
        Q[:, lost] = fresh
    if (left <= _SMALL * size).any():
        for _ in range(2):
            Q = Q - V @ (V.T @ Q)
            Q, _ = _qr(Q)
        R = Q.T @ W
    return Q, R.double()
