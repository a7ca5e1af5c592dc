"""The distribution of all eigenvalues of a matrix, and sums over them with their errors.

A sum over eigenvalues that only a few products are known of has three errors, and each is counted:

- The quadrature's: Gauss-Radau rules bound it from both sides (see ``quadrature``).
- The sampling's: a node that has converged to a single eigenvalue counts as exactly one, and only
  the others are sampled. With p probes on the sphere ``n mean_a v_a^T f(A) v_a`` has the variance
  ``2/p sum (f - mean f)^2``, itself a sum over eigenvalues that the same quadrature gives. So no
  error is computed from the spread of a few numbers. Where few eigenvalues make up that sum it is
  uncertain itself, and the error is widened as Student's distribution would have it.
- Rounding's: from the asymmetry that the products show.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from scipy.special import chdtri, stdtrit
from torch import Tensor

from lowland.curvature.estimate import Estimate
from lowland.curvature.lanczos import Eigenpairs, eigsh
from lowland.curvature.operator import Dense, Operator
from lowland.curvature.precision import exactness, precision
from lowland.curvature.quadrature import Quadrature, block_lanczos
from lowland.curvature.sketch import finite

# Rows up to which all eigenvalues of a dense matrix are a matter of a second or two.
ALL_EIGENVALUES = 2048
_CONVERGED = 1e-3  # residual of a node that counts as one eigenvalue, as a share of it
_TWO_SIGMA = 0.97725  # of a normal distribution is below two standard deviations


@dataclass(frozen=True)
class Spectrum:
    """All eigenvalues of a symmetric matrix, or a quadrature of their distribution.

    Without a ``quadrature`` the nodes are the eigenvalues. With one, node j stands for the share
    ``weights[j]`` of them, and has one within ``residuals[j]``. ``rounding`` is how far errors of
    the products may have moved an eigenvalue.
    """

    size: int
    nodes: Tensor  # (k,), ascending, float64 as the others
    weights: Tensor  # (k,); in all 1
    residuals: Tensor  # (k,)
    matvecs: int
    dtype: torch.dtype  # of the products
    rounding: float
    products: str  # "exact", or how they came about if they are not so to rounding
    quadrature: Quadrature | None = field(default=None, repr=False)
    matrix: Tensor | None = field(default=None, repr=False)

    @classmethod
    def exactly(cls, A: Operator) -> "Spectrum":
        """All eigenvalues, from as many products as there are rows, or none if A is dense."""
        if isinstance(A, Dense):
            matrix, matvecs = finite(A.matrix).double(), 0
        else:
            eye = torch.eye(A.size, dtype=A.dtype, device=A.device)
            products = [A @ columns for columns in eye.split(64, 1)]
            matrix, matvecs = finite(torch.cat(products, 1)).double(), A.size
        # entries off by e at random move eigenvalues by up to 2 e sqrt(n), one column by its length
        astray = matrix - matrix.T
        asymmetry = float(astray.norm()) / math.sqrt(2) / A.size
        reach = max(2 * asymmetry * math.sqrt(A.size), float(astray.norm(dim=0).max()))
        matrix = (matrix + matrix.T) / 2
        nodes = torch.linalg.eigvalsh(matrix)
        weights, residuals = torch.full_like(nodes, 1 / A.size), torch.zeros_like(nodes)
        reach = max(reach, _reach(A, nodes))
        return cls(
            A.size, nodes, weights, residuals, matvecs, A.dtype, reach, exactness(A), matrix=matrix
        )

    @classmethod
    def sampled(
        cls,
        A: Operator,
        start: Tensor,
        steps: int,
        hopeless: "Callable[[Spectrum], bool]" = lambda spectrum: False,
        **until: Any,
    ) -> "Spectrum":
        """A quadrature from a block Lanczos run; the arguments are those of ``block_lanczos``."""

        def spectrum(q: Quadrature) -> Spectrum:
            numbers = (A.size, q.nodes, q.weights, q.residuals, q.matvecs, A.dtype)
            return cls(*numbers, max(q.rounding, _reach(A, q.nodes)), exactness(A), q)

        run = block_lanczos(A, start, steps, hopeless=lambda q: hopeless(spectrum(q)), **until)
        return spectrum(run)

    @classmethod
    def of(cls, A: Operator, steps: int, probes: int, seed: int) -> "Spectrum":
        """All eigenvalues or a quadrature, whichever takes fewer products."""
        if isinstance(A, Dense) or A.size <= min(steps * probes, ALL_EIGENVALUES):
            return cls.exactly(A)
        generator = torch.Generator(device=A.device).manual_seed(seed)
        start = torch.randn(A.size, probes, dtype=A.dtype, device=A.device, generator=generator)
        return cls.sampled(A, start, steps)

    @property
    def exact(self) -> bool:
        """Whether all eigenvalues are known."""
        return self.quadrature is None

    @property
    def norm(self) -> float:
        """The largest magnitude of an eigenvalue."""
        return float(self.nodes.abs().max())

    @property
    def floor(self) -> float:
        """The magnitude below which an eigenvalue may be nothing but errors of the products."""
        eps = torch.finfo(self.dtype).eps
        return max((self.size if self.exact else 10) * eps * self.norm, self.rounding)

    @property
    def method(self) -> str:
        """How its numbers came about."""
        return self.products if self.exact else "block Lanczos quadrature"

    @cached_property
    def single(self) -> Tensor:
        """Which nodes have converged to one eigenvalue each, (k,).

        Of a single eigenvalue, ``n p`` times the weight has the chi-squared distribution with p
        degrees of freedom: a node with far more stands for many equal ones.
        """
        if self.quadrature is None:
            return torch.ones_like(self.nodes, dtype=torch.bool)
        p, size = self.quadrature.probes, self.nodes.abs()
        plausible = self.size * p * self.weights <= float(chdtri(p, 1e-4))
        return plausible & (self.residuals <= _CONVERGED * size) & (size > 1e-6 * self.norm)

    def leading(self, k: int) -> Eigenpairs:
        """The k largest eigenvalues with their vectors; ``converged`` asks for residuals of 1 %."""
        if self.matrix is not None:
            pairs = eigsh(Dense(self.matrix), k, which="largest", tol=1e-10)
            return replace(pairs, matvecs=self.matvecs)
        assert self.quadrature is not None
        V, Y = self.quadrature.V, self.quadrature.Y[:, -k:].flip(1)
        values, residuals = self.nodes[-k:].flip(0), self.residuals[-k:].flip(0)
        converged = len(values) == k and bool((residuals <= 0.01 * values.abs()).all())
        return Eigenpairs(values, V @ Y.to(V.dtype), residuals, converged, self.matvecs)

    def total(
        self,
        f: Callable[[Tensor], Tensor],
        low: float | None = None,
        high: float | None = None,
        samples: Tensor | None = None,
    ) -> Estimate:
        """The sum of ``f(eigenvalue)``.

        ``low`` and ``high`` bound the integral of f over the probes' spectral measure, where the
        Gauss quadrature is not exact. Further ``samples`` of the sum over eigenvalues that are not
        ``single`` make the error smaller.
        """
        values = f(self.nodes)
        astray = self._astray(f)
        if self.quadrature is None:
            return Estimate(float(values.sum()), astray, self.matvecs, True, self.method)
        gauss, count = float(self.weights @ values), len(samples) if samples is not None else 0
        least, most = (
            float(self.sums(values, gauss if bound is None else bound)[0]) for bound in (low, high)
        )
        value, noise = (least + most) / 2, float(self.sums(values, gauss, count)[1])
        if samples is not None:
            probes, singles = self.quadrature.probes, float(values[self.single].sum())
            value = (probes * value + count * singles + float(samples.sum())) / (probes + count)
        stderr = math.hypot(noise, (most - least) / math.sqrt(12), astray)
        return Estimate(value, stderr, self.matvecs + count, True, self.method)

    def _astray(self, f: Callable[[Tensor], Tensor]) -> float:
        """How far the errors of the products may have moved a sum of ``f(eigenvalue)``.

        Half of the range, such that two standard errors hold it; 0 where they are but rounding.
        """
        if self.products == "exact":
            return 0.0
        change = f(self.nodes + self.rounding) - f(self.nodes - self.rounding)
        return float((self.size * self.weights * change.abs()).sum()) / 2

    def sums(
        self, values: Tensor, integral: Tensor | float | None = None, samples: int = 0
    ) -> tuple[Tensor, Tensor]:
        """Sums over all eigenvalues, and their standard errors from the choice of the probes.

        Functions are given by their ``values`` at the nodes, (..., k), and their ``integral`` over
        the probes' measure, if it is not that of the quadrature. The errors are those with so many
        ``samples`` more.
        """
        if self.quadrature is None:
            return values.sum(-1), torch.zeros_like(values[..., 0])
        single, count = self.single, self.size - int(self.single.sum())
        mass = self.weights[~single].sum().clamp_min(1e-12)
        if integral is None:
            integral = values @ self.weights
        rest = (integral - values[..., single] @ self.weights[single]) / mass
        probes = self.quadrature.probes + samples
        noise = _noise(values[..., ~single], self.weights[~single] / mass, count, probes)
        return values[..., single].sum(-1) + count * rest, noise

    def between(self, low: float, high: float) -> Estimate:
        """The number of eigenvalues above ``low`` and up to ``high``; to one of them at best."""

        def inside(x: Tensor) -> Tensor:
            return ((x > low) & (x <= high)).double()

        if self.quadrature is None:
            return self.total(inside)
        under = self.quadrature.below(low) if low > -math.inf else (0.0, 0.0)
        over = self.quadrature.below(high) if high < math.inf else (1.0, 1.0)
        number = self.total(inside, max(0.0, over[0] - under[1]), over[1] - under[0])
        return replace(number, stderr=math.hypot(number.stderr, 1.0))


def _reach(A: Operator, nodes: Tensor) -> float:
    """How far products of a known precision, if not rounding, may have moved an eigenvalue."""
    return precision(A) * float(nodes.abs().max()) if exactness(A) != "exact" else 0.0


def _noise(values: Tensor, weights: Tensor, count: int, probes: int) -> Tensor:
    """Standard errors, from the choice of the probes, of sums over ``count`` eigenvalues.

    Welch and Satterthwaite's degrees of freedom of ``2/p sum (f - mean f)^2`` widen it, such that
    two standard errors hold what they hold of a normal distribution.
    """
    values = values - (values @ weights)[..., None]
    # Low weights would make the sum and its error small together. A node is one eigenvalue at
    # least; from half the weight of one, two errors held the truth in 94 to 98 % of the runs.
    weights = weights.clamp_min(0.5 / count)
    second, fourth = (values**2 @ weights).clamp_min(0), (values**4 @ weights).clamp_min(0)
    freedom = (probes * count * second**2 / fourth).nan_to_num(1.0, 1.0).clamp_min(1)
    student = torch.as_tensor(stdtrit(freedom.cpu().numpy(), _TWO_SIGMA) / 2).to(values)
    return student * (2 * count * second / probes).sqrt()
