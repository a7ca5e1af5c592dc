"""Curvature matrices of the mean training loss as operators: products without the matrix."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from functools import partial
from typing import Literal

import numpy as np
import torch
from scipy.sparse.linalg import LinearOperator
from torch import Tensor

from lowland.batches import Batch
from lowland.curvature import products
from lowland.curvature.memory import graph_bytes, samples_within
from lowland.curvature.precision import rounding
from lowland.curvature.products import BatchProduct
from lowland.distributed import total
from lowland.errors import InputError
from lowland.problem import Problem, differentiating

# Ways of multiplying that run no model once their graph is made.
_ON_GRAPHS = {
    way.name for way in (products.DoubleBackward, products.Remainder, products.GaussNewton)
}


class Curvature(ABC):
    """A symmetric matrix over the chosen parameters, each flattened, in the model's order.

    ``A @ v`` and ``A @ V`` multiply by a vector (size,) or by columns (size, k). Graphs of autograd
    are kept between products while they fit the problem's memory budget; if parameters change in
    between, make a new operator. ``slices`` tells where each parameter lies in a vector.
    """

    kind: str

    def __init__(self, problem: Problem, params: str | list[str] | None = None) -> None:
        self.problem = problem
        self.params = problem.select(params)
        sizes = [p.numel() for p in self.params.values()]
        self.size = sum(sizes)
        self.shape = (self.size, self.size)
        self.dtype, self.device = problem.dtype, problem.device
        ends = np.cumsum(sizes).tolist()
        self.slices = {
            name: slice(end - size, end)
            for name, size, end in zip(self.params, sizes, ends, strict=True)
        }
        self._leaves = {name: p.clone().requires_grad_() for name, p in self.params.items()}
        self._count = problem.count()
        with problem.measuring():
            self._build, self.strategy = self._choose()
            each = graph_bytes(problem, self._build)
            self._chunk = samples_within(problem, each)
            fits = each * len(problem.train) <= problem.memory
            self.kept = fits and self.strategy in _ON_GRAPHS
        self._graphs: list[BatchProduct] | None = None

    @abstractmethod
    def _choose(self) -> tuple[Callable[[Batch], BatchProduct], str]:
        """How products on a batch are made, and the name of that way."""

    def __repr__(self) -> str:
        kept = "kept graphs" if self.kept else "graphs made again for each product"
        return (
            f"{type(self).__name__}(size={self.size:,}, parameters={len(self.params)}, "
            f"{self.strategy}, {kept})"
        )

    def __matmul__(self, V: Tensor) -> Tensor:
        if V.ndim not in (1, 2) or len(V) != self.size:
            raise InputError(
                f"a product needs a vector ({self.size},) or columns ({self.size}, k); got "
                f"{tuple(V.shape)}"
            )
        columns = V.to(self.device, self.dtype).reshape(self.size, -1)
        if self.kept and self._graphs is None:
            with self.problem.measuring():
                self._graphs = list(self._made())
        # Kept graphs need nothing of the model any more, and so none of the care it is run with.
        with differentiating(self.device) if self.kept else self.problem.measuring():
            sums = torch.zeros_like(columns)
            for product in self._graphs or self._made():
                for j, v in enumerate(columns.unbind(1)):
                    parts = product(self._shaped(v))
                    sums[:, j] += torch.cat([p.reshape(-1) for p in parts])
            return (total(sums) / self._count).reshape(V.shape)

    def _made(self) -> Iterator[BatchProduct]:
        return (self._build(batch) for batch in self.problem.batches("train", self._chunk))

    def _shaped(self, v: Tensor) -> list[Tensor]:
        return [
            part.view_as(p)
            for part, p in zip(
                v.split([p.numel() for p in self.params.values()]),
                self.params.values(),
                strict=True,
            )
        ]

    def dense(self) -> Tensor:
        """The whole matrix, (size, size)."""
        need = self.size**2 * torch.finfo(self.dtype).bits // 8
        if need > self.problem.memory:
            raise InputError(
                f"the dense matrix of {self.size:,} parameters takes {need / 2**30:,.1f} GiB; the "
                f"memory budget is {self.problem.memory / 2**30:,.1f} GiB"
            )
        A = self @ torch.eye(self.size, dtype=self.dtype, device=self.device)
        return (A + A.T) / 2

    def to_scipy(self) -> LinearOperator:
        """The same operator for NumPy arrays, as SciPy's solvers want it."""

        def multiply(V: np.ndarray) -> np.ndarray:
            return (self @ torch.from_numpy(np.ascontiguousarray(V))).cpu().numpy()

        dtype = torch.empty(0, dtype=self.dtype).numpy().dtype
        return LinearOperator(self.shape, matvec=multiply, matmat=multiply, dtype=dtype)

    def shares(self, v: Tensor, Av: Tensor) -> dict[str, dict[str, float]]:
        """What one product tells of each parameter: ``v_l . (A v)_l`` and ``|(A v)_l|``.

        The first adds up to ``v^T A v``, and for v of random signs is an estimate of the trace of
        the parameter's own block; the square of the second is one of its rows' Frobenius norm.
        """
        return {
            name: {
                "quadratic": float(v[at].double() @ Av[at].double()),
                "norm": float(Av[at].double().norm()),
            }
            for name, at in self.slices.items()
        }


class Hessian(Curvature):
    """``d2L/dw2`` of the mean training loss."""

    kind = "hessian"
    _WAYS = (products.DoubleBackward, products.ForwardOverReverse, products.FiniteDifference)

    def _choose(self) -> tuple[Callable[[Batch], BatchProduct], str]:
        """The first way that runs on two samples and gives a symmetric matrix there.

        They are the two with the largest losses of the first batch: where a sample is fitted to
        rounding, its curvature is rounding too.
        """
        few = self._hardest(next(self.problem.batches("train")))
        z = self.problem.outputs(few.inputs, self._leaves)
        if not self.problem.loss(z, few.targets).requires_grad:
            raise InputError(
                f"loss {self.problem.loss.name!r} has no gradient with respect to "
                f"{', '.join(self.params)}: it is not differentiable, or does not depend on them"
            )
        failures = []
        for way in self._WAYS:
            build = partial(way, self.problem, self._leaves)
            try:
                asymmetry = self._asymmetry(build(few), z)
            except (RuntimeError, NotImplementedError) as error:
                failures.append(f"{way.name}: {str(error).splitlines()[0]}")
                continue
            # Only differences err by more than rounding where they are right.
            if asymmetry < (1e-2 if way is products.FiniteDifference else 1e-3):
                return build, way.name
            failures.append(f"{way.name}: products are not symmetric ({asymmetry:.0e})")
        raise InputError(
            f"the loss {self.problem.loss.name!r} of this model cannot be differentiated twice: "
            + "; ".join(failures)
        )

    def _hardest(self, batch: Batch) -> Batch:
        with torch.no_grad():
            losses = self.problem.loss(self.problem.outputs(batch.inputs), batch.targets)
        first = losses.nan_to_num().topk(min(2, len(losses))).indices
        return batch.map(lambda t: t[first.to(t.device)])

    def _asymmetry(self, product: BatchProduct, z: Tensor) -> float:
        """How far the products are from those of a symmetric matrix, beyond their rounding.

        Rounding is relative to the squared slopes of the outputs, which the loss's own second
        derivatives, at most of order one, multiply: these vanish where the data is fitted.
        """
        slopes = torch.autograd.grad(
            z.sum(), list(self._leaves.values()), retain_graph=True, allow_unused=True
        )
        squared = sum(float(s.double().square().sum()) for s in slopes if s is not None)
        generator = torch.Generator(device=self.device).manual_seed(0)
        u, v = (
            torch.randn(self.size, dtype=self.dtype, device=self.device, generator=generator)
            for _ in range(2)
        )
        Hu, Hv = (torch.cat([p.reshape(-1) for p in product(self._shaped(t))]) for t in (u, v))
        if not (Hu.isfinite().all() and Hv.isfinite().all()):
            raise InputError(
                "second derivatives of the loss are NaN or infinite on the first samples; the "
                "curvature is not defined at these weights"
            )
        scale = float(u.norm() * Hv.norm() + v.norm() * Hu.norm())
        difference = abs(float(u @ Hv - v @ Hu))
        if difference <= rounding(self.dtype) * squared * float(u.norm() * v.norm()):
            return 0.0
        return difference / scale


class Remainder(Curvature):
    """Hessian less GGN, ``1/N sum_k sum_c (dl_k/dz_c) d2z_c/dw2``."""

    kind = "remainder"

    def _choose(self) -> tuple[Callable[[Batch], BatchProduct], str]:
        build = partial(products.Remainder, self.problem, self._leaves)
        return build, products.Remainder.name


class GGN(Curvature):
    """Generalised Gauss-Newton, ``1/N sum_k J_k^T (d2l_k/dz2) J_k`` (Schraudolph 2002)."""

    kind = "ggn"

    def _choose(self) -> tuple[Callable[[Batch], BatchProduct], str]:
        return self._gauss_newton(products.output_hessian)

    def _gauss_newton(self, middle: products.Middle) -> tuple[Callable[[Batch], BatchProduct], str]:
        build = partial(products.GaussNewton, self.problem, self._leaves, middle=middle)
        return build, products.GaussNewton.name


class Fisher(GGN):
    """Fisher information: of the data's labels (empirical) or of the model's own (true)."""

    def __init__(
        self,
        problem: Problem,
        params: str | list[str] | None = None,
        labels: Literal["data", "model"] = "data",
    ) -> None:
        self.kind = "empirical fisher" if labels == "data" else "true fisher"
        if labels not in ("data", "model"):
            raise InputError(f"labels must be 'data' or 'model'; got {labels!r}")
        if labels == "model" and not problem.loss.classes and problem.loss.name != "mse":
            raise InputError(
                f"the true Fisher matrix needs to know how the model draws targets, which the loss "
                f"{problem.loss.name!r} does not tell; it is known for class labels and for 'mse'"
            )
        super().__init__(problem, params)

    def _choose(self) -> tuple[Callable[[Batch], BatchProduct], str]:
        if self.kind == "empirical fisher":
            return self._gauss_newton(products.identity)
        if self.problem.loss.name == "mse":
            # exp(-loss) is a Gaussian whose mean is z: E[g g^T] is its constant second derivative
            return self._gauss_newton(products.output_hessian)
        return self._gauss_newton(products.model_labels)


def hessian(problem: Problem, params: str | list[str] | None = None) -> Hessian:
    """The Hessian of the mean training loss as an operator.

    ``params`` chooses parameters by name, glob or list of these; all of them by default.
    """
    return Hessian(problem, params)


def ggn(problem: Problem, params: str | list[str] | None = None) -> GGN:
    """The generalised Gauss-Newton matrix as an operator: the Hessian without the model's own."""
    return GGN(problem, params)


def fisher(
    problem: Problem,
    params: str | list[str] | None = None,
    labels: Literal["data", "model"] = "data",
) -> Fisher:
    """The Fisher matrix as an operator: ``1/N sum_k g_k g_k^T`` over the data's labels.

    With ``labels="model"`` the true Fisher matrix, the expectation over labels that the model
    would draw: summed exactly over all classes, and equal to the GGN for cross-entropy.
    """
    return Fisher(problem, params, labels)
