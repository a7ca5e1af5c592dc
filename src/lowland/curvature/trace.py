"""The trace of a symmetric operator from products with random vectors.

XTrace (Epperly, Tropp & Webber, SIAM J. Matrix Anal. Appl. 45, 2024): every test vector ``w_i``
estimates what the range of the products with all the others leaves out,

    X_i = tr(Q_i^T A Q_i) + w_i^T (I - P_i) A (I - P_i) w_i,   P_i = Q_i Q_i^T,   tr A ~ mean_i X_i

with ``Q_i`` an orthonormal basis of ``{A w_j : j != i}``. All of them come from one QR
factorisation ``A W = Q R``: ``P_i = Q (I - s_i s_i^T) Q^T``, with ``s_i`` the normalised column i
of ``R^-T``. Test vectors lie on a sphere, so that ``(I - P_i) w_i`` can be given the length it
has on average: with signs the error was the same on decaying spectra, and 1.9 times as large on a
flat one (n = 300, m = 32).

The standard error is not the paper's. The ``X_i`` share test vectors, and ``std(X) / sqrt(m)``
leaves their covariance out: on planted spectra it was .4 to 1 of the true error, and its interval
of two standard errors held the truth in 45 to 94 % of the runs. With ``X_ij`` the estimate of
``w_i`` that leaves ``w_j`` out as well, ``cov(X_i, X_j) = E (X_i - X_ij)(X_j - X_ji)`` exactly,
because every ``X_i`` is unbiased given the other vectors. That costs no product, makes the
variance unbiased, and gave 88 to 97 %.
"""

import math
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor

from lowland.curvature.estimate import Estimate
from lowland.curvature.lanczos import Dense, Operator, _bordered, _rounding
from lowland.errors import InputError

Method = Literal["xtrace", "hutchinson"]
Step = Literal["grow", "sample", "finish", "stop"]
Samples = tuple[Tensor, float, Tensor]  # leave-one-out samples, their covariance, trace in range

FIRST = 10  # test vectors before the first look: fewer say little about their own spread
BLOCK = 64  # columns that go through the operator at once, at most
MEMORY = 2**31  # bytes for the test vectors, their range and its products
ROWS = 2**16  # of long matrices converted to float64 at once


def trace(
    A: Operator,
    *,
    rtol: float = 0.01,
    atol: float = 0.0,
    max_matvecs: int | None = None,
    seed: int = 0,
    method: Method = "xtrace",
) -> Estimate:
    """The trace, to a relative standard error of ``rtol``.

    With ``method="xtrace"`` the range grows while that is the cheapest way to the tolerance, going
    by how the spread fell so far. Otherwise the range stays, and more vectors sample what it leaves
    out ("XTrace + Hutchinson"); or a whole basis gives the exact trace of a small matrix. To 1 %,
    with n = 1000, that took 40 products for eigenvalues ``0.8^k`` (Hutchinson 2,200), 60 for
    ``1/k`` (570), 32 for ten outliers over a decaying bulk (2,200), 20 for a flat spectrum (10).

    Args:
        A: anything with ``size``, ``dtype``, ``device`` and ``@``. If it has ``slices`` (names to
            slices of the vector), ``parts`` holds the traces of these diagonal blocks, from the
            same products.
        rtol: stop when the standard error is below ``rtol`` times the trace,
        atol: or below this.
        max_matvecs: give up after so many products; the result then says ``converged=False``.
        seed: of the random vectors.
        method: ``"xtrace"`` or ``"hutchinson"`` (Girard 1989, Hutchinson 1990: no range).

    >>> trace(Dense(torch.diag(torch.tensor([5.0, -4.0, 1.0]))))
    2 (exact, 0 products)
    """
    methods = ("xtrace", "hutchinson")
    if method not in methods:
        raise InputError(f"method must be one of {', '.join(map(repr, methods))}; got {method!r}")
    if isinstance(A, Dense):
        value = float(finite(A.matrix.diagonal()).double().sum())
        return Estimate(value, 0.0, 0, True, "exact")
    return power_trace(A, 1, rtol, atol, max_matvecs, seed, method == "xtrace")


def power_trace(
    A: Operator,
    power: Literal[1, 2],
    rtol: float,
    atol: float,
    limit: int | None,
    seed: int,
    deflate: bool,
) -> Estimate:
    """The trace of A or of A^2, from products with A alone."""
    plan, sketch = Plan(allowed(limit, A.size), deflate), Sketch(A, seed)
    slices: dict[str, slice] = getattr(A, "slices", {}) if power == 1 else {}
    fresh = sketch.R.new_empty(1 + len(slices), 0)  # samples outside the range: whole, then parts
    loo = LeaveOneOut(sketch, power)
    while True:
        value, stderr = pooled(*loo.whole(), fresh[0])
        rounding = _rounding(A.dtype) * float(loo.gram.norm())
        target = max(rtol * abs(value), atol, rounding)
        step, count = plan.next(sketch, fresh.shape[1], stderr, target, spread(loo.whole()[0]))
        if step == "grow":
            sketch.grow(count)
            loo = LeaveOneOut(sketch, power)
        elif step == "sample":
            V = sketch.outside(sketch.draw(count))
            AV = sketch.product(V)
            samples = [dots(V if power == 1 else AV, AV)]
            if slices:
                residual = AV - sketch.Q @ inner(sketch.Q, AV).to(A.dtype)
                samples += [dots(V[at], residual[at]) for at in slices.values()]
            fresh = torch.cat([fresh, torch.stack(samples)], 1)
        else:
            break

    def estimate(value: float, stderr: float) -> Estimate:
        stderr = max(stderr, rounding) if method != "exact" else 0.0
        done = stderr <= max(rtol * abs(value), atol, rounding)
        return Estimate(value, stderr, sketch.matvecs, done, method)

    if step == "finish":
        method = "exact"
        C, AC = sketch.complement()
        value = float(loo.gram.trace() + dots(C if power == 1 else AC, AC).sum())
        stderr = 0.0
        found = [
            (sketch.block(at) + float(dots(C[at], AC[at]).sum()), 0.0) for at in slices.values()
        ]
    else:
        used = {"XTrace": sketch.tests, "Hutchinson": fresh.shape[1]}
        method = " + ".join(name for name, count in used.items() if count)
        blocks = zip(slices.values(), fresh[1:], strict=True)
        found = [pooled(*loo.part(at), samples) for at, samples in blocks]
    parts = {name: estimate(*each) for name, each in zip(slices, found, strict=True)}
    return replace(estimate(value, stderr), parts=parts)


class LeaveOneOut:
    """The samples ``X_i`` of a sketch, and what each changes by when another one is left out too.

    In coordinates of Q: leaving out test vector i loses the direction ``s_i``; leaving out j as
    well loses ``t_ij``, the normalised part of ``s_j`` orthogonal to ``s_i``. For B = A or A^2,
    ``gram = Q^T B Q`` and ``g_i = Q^T B (I - P_i) w_i``.
    """

    def __init__(self, sketch: "Sketch", power: Literal[1, 2] = 1) -> None:
        self.sketch = sketch
        R, W, H = sketch.R, sketch.W, sketch.H
        n, r = sketch.n, len(H)
        self.gram = H if power == 1 else inner(sketch.Z, sketch.Z)
        own, across = ((W * R).sum(0), R) if power == 1 else ((R * R).sum(0), H @ R)

        self.S = S = sketch.lost_directions()  # (r, m)
        sw = (S * W).sum(0)
        self.U = U = W - S * sw  # coordinates of P_i w_i
        self.g = g = across - self.gram @ U
        self.form = own - (U * across).sum(0) - (U * g).sum(0)  # w_i^T (I - P_i) B (I - P_i) w_i
        length = n - (W * W).sum(0) + sw**2  # |(I - P_i) w_i|^2
        dim = n - r + (0 if sketch.captured else 1)
        self.scale = dim / length  # (m,)

        self.cos = S.T @ S  # (m, m), [i, j] throughout
        apart = 1 - self.cos**2
        # where two directions agree to rounding, the second one left out changes nothing
        self.k = torch.where(apart > 1e-12, apart, torch.inf).rsqrt().fill_diagonal_(0)
        self.sBs = S.T @ self.gram @ S
        self.tu = (U.T @ S) * self.k  # t_ij . u_i
        self.tg = self.along(g.T @ S)  # t_ij . g_i
        self.tBt = self.both(self.sBs)
        self.scale2 = (dim + 1) / (length[:, None] + self.tu**2)

    def along(self, xy: Tensor) -> Tensor:
        """``x_i . y_t`` from the products ``x_i . y_j``, where ``y_t = k (y_j - cos y_i)``."""
        return self.k * (xy - self.cos * xy.diagonal()[:, None])

    def both(self, xy: Tensor) -> Tensor:
        """``x_t . y_t`` from the products ``x_i . y_j``."""
        d = xy.diagonal()
        return self.k**2 * (d - self.cos * (xy + xy.T) + self.cos**2 * d[:, None])

    def whole(self) -> Samples:
        """The samples of the trace of B."""
        inside = self.gram.trace()
        X = inside - self.sBs.diagonal() + self.scale * self.form
        form2 = self.form[:, None] + 2 * self.tu * self.tg + self.tu**2 * self.tBt
        change = self.tBt + (self.scale * self.form)[:, None] - self.scale2 * form2  # X_i - X_ij
        return X, covariance(change), inside

    def part(self, at: slice) -> Samples:
        """The samples of the trace of one diagonal block of A; over all blocks they add up.

        With ``A = P A + A P - P A P + (I - P) A (I - P)``, the block's share of the first three is
        known, and ``w' * (I - P) A w'`` summed over its rows, ``w' = (I - P) w``, samples the last.
        """
        rows = (x[at].double() for x in (self.sketch.Q, self.sketch.Z, self.sketch.Omega))
        q, z, omega = rows
        H, S, U, g = self.gram, self.S, self.U, self.g
        inside = 2 * (q * z).sum() - (q @ H * q).sum()
        a, b, e = q @ S, z @ S, q @ (H @ S)  # (rows, m)
        v = omega - q @ U
        f = q @ (self.sketch.R - g + S * (S * g).sum(0)) - z @ U  # (I - P_i) A (I - P_i) w_i
        aa, ab, ae, va, vb, ve, af = (
            x.T @ y for x, y in ((a, a), (a, b), (a, e), (v, a), (v, b), (v, e), (a, f))
        )
        vf = (v * f).sum(0)
        h = self.sBs.diagonal()
        known = inside + (2 * ae - 2 * ab - h * aa).diagonal()
        X = known + self.scale * vf

        sHt = self.along(self.sBs)  # s_i . H t_ij
        tu, tBt = self.tu, self.tBt
        ta, aat = self.along(aa), self.both(aa)  # a_i . a_t and a_t . a_t
        lost = -2 * self.both(ab) + 2 * self.both(ae) - 2 * sHt * ta - tBt * aat
        # v_t = v + tu a_t and f_t = f + tu b_t + (tg + tu tBt) a_t - tu e_t + tu sHt a_i
        more = self.tg + tu * tBt
        form2 = (
            vf[:, None]
            + tu * (self.along(vb) - self.along(ve) + sHt * va.diagonal()[:, None])
            + more * self.along(va)
            + tu * self.along(af.T)
            + tu**2 * (self.both(ab) - self.both(ae) + sHt * ta)
            + tu * more * aat
        )
        change = -lost + (self.scale * vf)[:, None] - self.scale2 * form2
        return X, covariance(change), inside


def covariance(change: Tensor) -> float:
    """Of two samples, from what each changes by without the other: ``E D_ij D_ji``."""
    m = len(change)
    change = change.clone().fill_diagonal_(0)
    return max(0.0, float((change * change.T).sum() / max(1, m * (m - 1))))


def pooled(X: Tensor, covariance: float, inside: Tensor, fresh: Tensor) -> tuple[float, float]:
    """Mean and standard error of all samples, the fresh ones being given the range."""
    m, k = len(X), len(fresh)
    if m + k == 0:
        return 0.0, math.inf
    value = float((X.sum() + k * inside + fresh.sum()) / (m + k))
    variance = (m * spread(X) ** 2 + m**2 * covariance + k * spread(fresh) ** 2) / (m + k) ** 2
    return value, math.sqrt(variance)


def spread(X: Tensor) -> float:
    """Standard deviation of samples."""
    return float(X.std()) if len(X) > 1 else 0.0


@dataclass(frozen=True)
class Plan:
    """Chooses the cheapest way to the tolerance, from the spread of the samples so far.

    With a standard error F times too large and a spread that fell like ``m^-p``, growing the range
    from m test vectors costs ``2 m (F^(1 / (p + 1/2)) - 1)`` products, sampling what it leaves out
    costs ``N (F^2 - 1)`` with N samples so far, and completing the basis costs the rest of it.
    """

    limit: int
    deflate: bool = True
    spreads: dict[int, float] = field(default_factory=dict)  # test vectors -> spread

    def next(
        self, sketch: "Sketch", sampled: int, stderr: float, target: float, spread: float
    ) -> tuple[Step, int]:
        """What to do next to bring the standard error to the target, with how many vectors."""
        n, m, r = sketch.n, sketch.tests, sketch.Q.shape[1]
        left = self.limit - sketch.matvecs
        if m + sampled == 0:
            if n <= min(4 * FIRST, left):
                return "finish", n
            return ("grow", min(FIRST, left // 2)) if self.deflate else ("sample", min(FIRST, left))
        if stderr <= target:
            return "stop", 0
        # F is capped: beyond, the tolerance is out of reach and only the order of costs matters
        F = min(stderr / target, 1e3) if target > 0 else 1e3
        more = (m + sampled) * (F**2 - 1)
        costs: dict[Step, float] = {"sample": more}
        if n - r <= left:
            costs["finish"] = n - r
        held = 3 * n * m * sketch.Q.element_size()
        if self.deflate and not sampled and not sketch.captured and held < MEMORY:
            self.spreads[m] = spread
            wider = m * (F ** (1 / (self._decay(m) + 0.5)) - 1)
            costs["grow"] = 2 * wider
        if left < 2:  # one sample more would have no spread
            return "stop", 0
        step = min(costs, key=lambda name: costs[name])
        if step == "grow":
            wanted = min(max(FIRST, m // 2), max(4, math.ceil(wider)))
            return "grow", min(wanted, left // 2, n - r)
        if step == "finish":
            return "finish", n - r
        return "sample", min(max(FIRST, math.ceil(more)), BLOCK, left)

    def _decay(self, m: int) -> float:
        """The exponent p, measured against half as many test vectors."""
        before = max((k for k in self.spreads if 2 * k <= m), default=m)
        if before == m or not self.spreads[m] or not self.spreads[before]:
            return 0.5
        return max(0.0, math.log(self.spreads[before] / self.spreads[m]) / math.log(m / before))


class Sketch:
    """Test vectors, the range of their products, and the products with that range.

    ``A Omega = Q R``, ``W = Q^T Omega``, ``Z = A Q``, ``H = Q^T Z``. It grows by new test vectors
    and never repeats a product. Small matrices are in float64.
    """

    def __init__(self, A: Operator, seed: int, signs: bool = False) -> None:
        self.A, self.n, self.signs = A, A.size, signs
        self.generator = torch.Generator(device=A.device).manual_seed(seed)
        self.Omega = self.Q = self.Z = torch.empty(A.size, 0, dtype=A.dtype, device=A.device)
        self.R = self.W = self.H = self.Q.new_empty(0, 0, dtype=torch.float64)
        self.captured = False  # a product lay in the range of the earlier ones: so do all
        self.matvecs = 0

    @property
    def tests(self) -> int:
        """Number of test vectors."""
        return self.Omega.shape[1]

    def draw(self, count: int) -> Tensor:
        """Random vectors with ``E w w^T = I``: signs, or on the sphere of radius sqrt(n)."""
        V = torch.randn(
            *(self.n, count),
            dtype=self.A.dtype,
            device=self.A.device,
            generator=self.generator,
        )
        return V.sign() if self.signs else V * (math.sqrt(self.n) / V.norm(dim=0))

    def product(self, V: Tensor) -> Tensor:
        """A V, checked and counted."""
        self.matvecs += V.shape[1]
        return finite(torch.cat([self.A @ block for block in V.split(BLOCK, 1)], 1))

    def grow(self, count: int) -> None:
        """Add test vectors to the range (block Gram-Schmidt, twice)."""
        Omega = self.draw(count)
        Y = self.product(Omega)
        dtype, Q = self.A.dtype, self.Q
        C = inner(Q, Y)
        new, R = torch.linalg.qr(Y - Q @ C.to(dtype))
        lost = R.diagonal().abs() <= _rounding(dtype) * Y.norm(dim=0)
        if lost.any():
            self.captured = True
            new = new[:, : int(lost.nonzero()[0])]
        again = inner(Q, new)
        new, R2 = torch.linalg.qr(new - Q @ again.to(dtype))
        R = R[: new.shape[1]].double()
        C, R = C + again @ R, R2.double() @ R

        below = R.new_zeros(len(R), self.tests)
        self.R = torch.cat([torch.cat([self.R, C], 1), torch.cat([below, R], 1)])
        self.Omega = torch.cat([self.Omega, Omega], 1)
        self.W = torch.cat([torch.cat([self.W, inner(Q, Omega)], 1), inner(new, self.Omega)])
        self.Q = torch.cat([Q, new], 1)
        AQ = self.product(new)
        self.H = _bordered(self.H, inner(self.Q, AQ))
        self.Z = torch.cat([self.Z, AQ], 1)

    def lost_directions(self) -> Tensor:
        """Column i: the direction, in Q, that the range loses without test vector i."""
        if self.captured:
            return torch.zeros_like(self.R)  # one product less spans the same range
        eye = torch.eye(len(self.R), dtype=self.R.dtype, device=self.R.device)
        S = torch.linalg.solve_triangular(self.R.T, eye, upper=False)
        return S / S.norm(dim=0)

    def outside(self, V: Tensor) -> Tensor:
        """V without its part in the range, at the length that leaves ``E v v^T = I - Q Q^T``."""
        for _ in range(2):
            V = V - self.Q @ inner(self.Q, V).to(V.dtype)
        return V * (math.sqrt(self.n - self.Q.shape[1]) / V.norm(dim=0))

    def complement(self) -> tuple[Tensor, Tensor]:
        """An orthonormal basis of all that is outside of the range, and its products."""
        C = torch.linalg.qr(self.Q, mode="complete").Q[:, self.Q.shape[1] :]
        return C, self.product(C)

    def block(self, at: slice) -> float:
        """The range's share of the trace of one diagonal block: that of ``A Q Q^T``."""
        return float(dots(self.Q[at], self.Z[at]).sum())


def finite(product: Tensor) -> Tensor:
    """A product as it came, unless it is none."""
    if not product.isfinite().all():
        raise InputError(
            "a product with the operator is NaN or infinite: the curvature is not defined here"
        )
    return product


def inner(X: Tensor, Y: Tensor) -> Tensor:
    """X^T Y in float64, a few rows at a time."""
    total = X.new_zeros(X.shape[1], Y.shape[1], dtype=torch.float64)
    for x, y in zip(X.split(ROWS), Y.split(ROWS), strict=True):
        total += x.double().T @ y.double()
    return total


def dots(X: Tensor, Y: Tensor) -> Tensor:
    """The inner products of the columns of X with those of Y, in float64."""
    total = X.new_zeros(X.shape[1], dtype=torch.float64)
    for x, y in zip(X.split(ROWS), Y.split(ROWS), strict=True):
        total += (x.double() * y.double()).sum(0)
    return total


def allowed(limit: int | None, n: int) -> int:
    """The number of products that may be used; a standard error needs a few."""
    if limit is None:
        return 500
    if limit < min(6, n):
        raise InputError(f"max_matvecs must be at least {min(6, n)} here; got {limit}")
    return limit
