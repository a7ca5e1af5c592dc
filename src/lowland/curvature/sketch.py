"""A range found by random test vectors, and how far to go with it.

What trace and diagonal estimators share: the sketch that they project on, and the rule by which
they choose between a wider range, more samples outside of it, and a whole basis.
"""

import math
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from lowland.budget import Forecast
from lowland.curvature.lanczos import bordered
from lowland.curvature.operator import Operator, columns_within
from lowland.curvature.precision import rounding
from lowland.errors import InputError

Step = Literal["grow", "sample", "finish", "stop"]

FIRST = 10  # test vectors before the first look: fewer say little about their own spread
BLOCK = 64  # columns that go through the operator at once, at most
ROWS = 2**16  # of long matrices converted to float64 at once
# Columns in memory at once for each new vector of the range, and for each one that samples.
_GROWING, _SAMPLING = 9, 5


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
        self.columns = columns_within(A)
        if self.columns < 2 * _SAMPLING:
            raise InputError(
                f"an estimate from products takes {2 * _SAMPLING} vectors of {A.size:,} entries, "
                "for which half of the memory budget is too small; pass Problem(memory=...) with "
                "more bytes"
            )

    @property
    def tests(self) -> int:
        """Number of test vectors."""
        return self.Omega.shape[1]

    @property
    def room(self) -> int:
        """How many vectors fit beside the test vectors, their range and its products."""
        return self.columns - 3 * self.tests

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
        lost = R.diagonal().abs() <= rounding(dtype) * Y.norm(dim=0)
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
        self.H = bordered(self.H, inner(self.Q, AQ))
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

    def block(self, rows: slice) -> float:
        """The range's share of the trace of one diagonal block: that of ``A Q Q^T``."""
        return float(dots(self.Q[rows], self.Z[rows]).sum())


@dataclass(frozen=True)
class Plan:
    """Chooses the cheapest way to the tolerance, from the spread of the samples so far.

    With a standard error F times too large and a spread that fell like ``m^-p``, growing the range
    from m test vectors costs ``2 m (F^(1 / (p + 1/2)) - 1)`` products, sampling what it leaves out
    costs ``N (F^2 - 1)`` with N samples so far, and completing the basis costs the rest of it.
    """

    limit: int
    spreads: dict[int, float] = field(default_factory=dict)  # test vectors -> spread
    forecast: Forecast = field(default_factory=Forecast)

    def next(
        self, sketch: Sketch, sampled: int, stderr: float, target: float, spread: float
    ) -> tuple[Step, int]:
        """What to do next to bring the standard error to the target, with how many vectors."""
        n, m, r = sketch.n, sketch.tests, sketch.Q.shape[1]
        left = self.limit - sketch.matvecs
        if m + sampled == 0:
            if n <= min(4 * FIRST, left):
                return "finish", n
            fits = sketch.room // _GROWING
            if fits >= 2:
                return "grow", min(FIRST, left // 2, fits)
            return "sample", min(FIRST, left, sketch.room // _SAMPLING)
        if stderr <= target:
            return "stop", 0
        # F is capped: beyond, the tolerance is out of reach and only the order of costs matters
        F = min(stderr / target, 1e3) if target > 0 else 1e3
        more = (m + sampled) * (F**2 - 1)
        costs: dict[Step, float] = {"sample": more}
        if n - r <= left:
            costs["finish"] = n - r
        fits = sketch.room // _GROWING
        if not sampled and not sketch.captured and fits:
            self.spreads[m] = spread
            wider = m * (F ** (1 / (self._decay(m) + 0.5)) - 1)
            costs["grow"] = 2 * wider
        if left < 2:  # one sample more would have no spread
            return "stop", 0
        step = min(costs, key=lambda name: costs[name])
        self.forecast.tell(sketch.matvecs, min(costs[step], left), "products")
        if step == "grow":
            wanted = min(max(FIRST, m // 2), max(4, math.ceil(wider)))
            return "grow", min(wanted, left // 2, n - r, fits)
        if step == "finish":
            return "finish", n - r
        fits = max(1, sketch.room // _SAMPLING)
        return "sample", min(max(FIRST, math.ceil(more)), BLOCK, left, fits)

    def _decay(self, m: int) -> float:
        """The exponent p, measured against half as many test vectors."""
        before = max((k for k in self.spreads if 2 * k <= m), default=m)
        if before == m or not self.spreads[m] or not self.spreads[before]:
            return 0.5
        return max(0.0, math.log(self.spreads[before] / self.spreads[m]) / math.log(m / before))


def finite(values: Tensor) -> Tensor:
    """The values unchanged; an error if one of them is not finite."""
    if not values.isfinite().all():
        raise InputError(
            "the curvature is NaN or infinite: it is not defined here, or its numbers are too "
            "large for the model's precision (Problem(dtype=torch.float64))"
        )
    return values


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
