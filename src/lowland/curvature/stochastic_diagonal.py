"""The diagonal of a symmetric operator from products with random signs.

XDiag (Epperly, Tropp & Webber, SIAM J. Matrix Anal. Appl. 45, 2024): in the terms of XTrace (see
``trace``), every vector of signs ``w_i`` samples the diagonal of what the range leaves out, and the
rest of it is known,

    X_i = diag(P_i A) + w_i * (I - P_i) A w_i,        diag A ~ mean_i X_i

With no range this is the estimator of Bekas, Kokiopoulou & Saad (Appl. Numer. Math. 57, 2007).
Signs, not vectors on the sphere: ``w_j^2 = 1`` leaves the entry itself out of its variance. The
standard error counts the covariance of the ``X_i`` (see ``trace``), entry by entry.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from lowland.curvature.estimate import widened
from lowland.curvature.operator import Dense, Operator
from lowland.curvature.precision import exactness, precision
from lowland.curvature.sketch import ROWS, Plan, Sketch, allowed, finite, inner


@dataclass(frozen=True)
class DiagonalEstimate:
    """A diagonal with the standard error of every entry, both in float64."""

    value: Tensor  # (n,)
    stderr: Tensor  # (n,)
    samples: int  # products with one vector
    converged: bool
    method: str

    def __repr__(self) -> str:
        state = "converged" if self.converged else "NOT converged"
        error = float(self.stderr.norm() / self.value.norm()) if self.value.any() else 0.0
        return (
            f"DiagonalEstimate({len(self.value)} entries, relative error {error:.1g}, {state}, "
            f"{self.method}, {self.samples} products)"
        )


def estimate_diagonal(
    A: Operator, *, rtol: float = 0.05, max_matvecs: int | None = None, seed: int = 0
) -> DiagonalEstimate:
    """The diagonal, to a relative standard error of ``rtol`` in the Euclidean norm.

    Args:
        A: anything with ``size``, ``dtype``, ``device`` and ``@``.
        rtol: stop when ``|stderr| <= rtol |value|``. Small entries are known less well than that.
        max_matvecs: give up after so many products; the result then says ``converged=False``.
        seed: of the random signs.

    >>> estimate_diagonal(Dense(torch.diag(torch.tensor([5.0, -4.0, 1.0])))).value
    tensor([ 5., -4.,  1.], dtype=torch.float64)
    """
    if isinstance(A, Dense):
        d = finite(A.matrix.diagonal()).double()
        return DiagonalEstimate(d, torch.zeros_like(d), 0, True, "exact")
    plan, sketch = Plan(allowed(max_matvecs, A.size)), Sketch(A, seed, signs=True)
    fresh = torch.zeros(2, A.size, dtype=torch.float64, device=A.device)  # sums of x and of x^2
    inside = mean = variance = torch.zeros_like(fresh[0])
    k, value, stderr = 0, inside, math.inf * torch.ones_like(inside)
    while True:
        m = sketch.tests
        if m + k:
            value = (m * mean + k * inside + fresh[0]) / (m + k)
            stderr = ((m**2 * variance + k * _variance(fresh, k)) / (m + k) ** 2).sqrt()
            stderr = widened(m + k) * stderr
        floor = precision(A) * float(sketch.H.norm())
        stderr = stderr.clamp_min(floor / math.sqrt(A.size))
        target = max(rtol * float(value.norm()), (1 + 1e-9) * floor)
        error = float(stderr.norm())
        step, count = plan.next(sketch, k, error, target, error * math.sqrt(m))
        if step == "grow":
            sketch.grow(count)
            inside, mean, variance = _leave_one_out(sketch)
        elif step == "sample":
            V = sketch.draw(count)
            AV = sketch.product(V)
            X = V.mul_(torch.addmm(AV, sketch.Q, inner(sketch.Q, AV).to(A.dtype), alpha=-1))
            for sums, x in zip(fresh.split(ROWS, 1), X.split(ROWS), strict=True):
                sums += torch.stack([x.double().sum(1), x.double().square().sum(1)])
            k += count
        else:
            break
    if step == "finish":
        C, AC = sketch.complement()
        value = inside + (C.double() * AC.double()).sum(1)
        how = exactness(A)
        size = math.hypot(float(sketch.H.norm()), float(AC.norm()))
        least = 0.0 if how == "exact" else precision(A) * size
        stderr = torch.full_like(value, least / math.sqrt(A.size))
        return DiagonalEstimate(value, stderr, sketch.matvecs, True, how)
    used = " + ".join(name for name, count in (("XDiag", m), ("BKS", k)) if count)
    return DiagonalEstimate(value, stderr, sketch.matvecs, error <= target, used)


def _variance(sums: Tensor, count: int) -> Tensor:
    """Sample variance from the sums of x and of x^2."""
    if count < 2:
        return torch.zeros_like(sums[0])
    return ((sums[1] - sums[0] ** 2 / count) / (count - 1)).clamp_min(0)


def _leave_one_out(sketch: Sketch) -> tuple[Tensor, Tensor, Tensor]:
    """``diag(Q Q^T A)``, the mean of the samples ``X_i`` and its variance, for every entry.

    ``(I - P_i) A w_i = (s_i . r_i) Q s_i``, as the product lies in the range of Q. Leaving out j as
    well loses ``t = k (s_j - cos s_i)``, and ``r_i . t = -k cos (s_i . r_i)``.
    """
    S = sketch.lost_directions()
    sr = (S * sketch.R).sum(0)
    cos = S.T @ S
    apart = 1 - cos**2
    k = torch.where(apart > 1e-12, apart, torch.inf).rsqrt().fill_diagonal_(0)
    rows = (x.split(ROWS) for x in (sketch.Q, sketch.Z, sketch.Omega))
    parts = [
        _of_rows(sketch, S, sr, cos, k, *(x.double() for x in some))
        for some in zip(*rows, strict=True)
    ]
    inside, mean, variance = (torch.cat(each) for each in zip(*parts, strict=True))
    return inside, mean, variance


def _of_rows(
    sketch: Sketch,
    S: Tensor,
    sr: Tensor,
    cos: Tensor,
    k: Tensor,
    q: Tensor,
    z: Tensor,
    omega: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    m = sketch.tests
    inside = (q * z).sum(1)
    a, b = q @ S, z @ S  # (rows, m)
    X = omega * a * sr - a * b  # X_i - diag(P A)
    total = torch.zeros_like(inside)
    for i in range(m if not sketch.captured else 0):
        c, ki = cos[i, i + 1 :], k[i, i + 1 :]
        ai, bi, aj, bj = a[:, i : i + 1], b[:, i : i + 1], a[:, i + 1 :], b[:, i + 1 :]
        without_j = (aj - c * ai) * ((bj - c * bi) + omega[:, i : i + 1] * (c * sr[i])) * ki**2
        without_i = (ai - c * aj) * ((bi - c * bj) + omega[:, i + 1 :] * (c * sr[i + 1 :])) * ki**2
        total += 2 * (without_j * without_i).sum(1)
    covariance = (total / max(1, m * (m - 1))).clamp_min(0)
    return inside, inside + X.mean(1), X.var(1) / m + covariance
