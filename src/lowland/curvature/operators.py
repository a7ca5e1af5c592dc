"""Curvature matrices of the mean training loss as operators: products without the matrix."""

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from functools import partial, wraps
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar

import numpy as np
import torch
from scipy.sparse.linalg import LinearOperator
from torch import Tensor

from lowland.batches import Batch
from lowland.budget import check_time
from lowland.curvature import block_products, products
from lowland.curvature.block_products import BlockProduct, ColumnByColumn, Matrix, Tapes
from lowland.curvature.jacobians import check_output_differences, jacobian_way
from lowland.curvature.memory import samples_within
from lowland.curvature.operator import Dense, Operator
from lowland.curvature.precision import rounding
from lowland.curvature.products import BatchProduct
from lowland.curvature.second_derivatives import (
    check_differences,
    check_double_backward,
    check_loss_curvature,
    way,
)
from lowland.curvature.trials import losses_in_double
from lowland.distributed import most, total
from lowland.errors import InputError
from lowland.problem import Problem, differentiating, graph_bytes, of_a_problem


class Curvature(ABC):
    """A symmetric matrix over the chosen parameters, each flattened, in the model's order.

    ``A @ v`` and ``A @ V`` multiply by a vector (size,) or by columns (size, k): all columns
    together if ``in_blocks``, which takes half the time where layers are small. What products
    need of the model is kept between them while it fits the problem's memory budget; if
    parameters change in between, make a new operator. ``slices`` tells where each parameter lies in
    a vector.
    """

    kind: str
    _matrix: Matrix

    @differentiating()
    def __init__(self, problem: Problem, params: str | list[str] | None = None) -> None:
        self.problem = problem
        self.params = problem.select(params)
        sizes = [p.numel() for p in self.params.values()]
        self.size = sum(sizes)
        self.shape = (self.size, self.size)
        self.dtype, self.device = problem.dtype, problem.device
        self.memory = problem.memory // 2  # for vectors; the other half is for graphs
        ends = np.cumsum(sizes).tolist()
        self.slices = {
            name: slice(end - size, end)
            for name, size, end in zip(self.params, sizes, ends, strict=True)
        }
        self._count = problem.count()
        self.precision = rounding(self.dtype)  # of products, as a share of the matrix's norm
        with problem.measuring():
            self._build, chosen = self._choose()
            self.strategy = chosen.name
            tapes = self._tapes() if chosen.keeps_graph else None
            self._blocks: Callable[[Batch], BlockProduct] = tapes or ColumnByColumn.of(self._build)
            each = tapes.sample_bytes if tapes else self._graph_bytes()
            count = len(problem.train)
            if problem.sharded:  # ranks must do the same
                each, count = most(each), most(count)
            self._chunk = tapes.samples() if tapes else samples_within(problem, each)
            self.in_blocks = tapes is not None
            fits = problem.memory // 2 // each if chosen.keeps_graph else 0
            # The share of the samples whose graphs are kept: all, or that of whole batches.
            self.kept = 1.0 if fits >= count else fits // self._chunk * self._chunk / count
        self._graphs: list[BlockProduct] = []  # of the first batches,
        self._graphed = 0  # which have so many samples

    def _tapes(self) -> Tapes | None:
        """The way to multiply by many columns at once, if single products confirm it."""
        if self.problem.loss.needs_model or self.problem.stored is not None:
            return None
        return block_products.confirmed(self.problem, self.params, self._matrix, self._build)

    def _graph_bytes(self) -> int:
        """What one sample's graph takes, once a product has shown that torch can do it."""
        try:
            ones = torch.ones(self.size, dtype=self.dtype, device=self.device)
            self._build(self.problem.first(1))(self._shaped(ones))
            return graph_bytes(self.problem, self._build)
        except (RuntimeError, NotImplementedError) as error:
            raise InputError(
                f"products with the {self.kind} matrix need derivatives that torch does not have "
                f"for this model: {str(error).splitlines()[0]}"
            ) from error

    @abstractmethod
    def _choose(self) -> tuple[Callable[[Batch], BatchProduct], Any]:
        """How products on a batch are made, and the way of differentiating behind it."""

    def __repr__(self) -> str:
        kept = f"graphs of {self.kept:.0%} of the samples kept"
        if self.kept in (0, 1):
            kept = "kept graphs" if self.kept else "graphs made again for each product"
        kept += ", columns together" if self.in_blocks else ""
        return (
            f"{type(self).__name__}(size={self.size:,}, parameters={len(self.params)}, "
            f"{self.strategy}, {kept})"
        )

    @differentiating()
    def __matmul__(self, V: Tensor) -> Tensor:
        if not isinstance(V, Tensor) or V.ndim not in (1, 2) or len(V) != self.size:
            came = tuple(V.shape) if isinstance(V, Tensor) else type(V).__name__
            raise InputError(
                f"a product needs a vector ({self.size},) or columns ({self.size}, k) as a tensor; "
                f"got {came}"
            )
        columns = V.to(self.device, self.dtype).reshape(self.size, -1)
        directions = [
            columns[where].T.reshape(-1, *p.shape)  # (k, *shape), whole in memory
            for where, p in zip(self.slices.values(), self.params.values(), strict=True)
        ]
        sums = columns.new_zeros(columns.shape[1], self.size)
        # Kept graphs need nothing of the model any more, and so none of the care it is run with.
        whole = self._graphed == len(self.problem.train)
        with contextlib.nullcontext() if whole else self.problem.measuring():
            for product in self._graphs if whole else self._made():
                for rows, parts in product(directions):
                    check_time()
                    for where, part in zip(self.slices.values(), parts, strict=True):
                        if part is not None:
                            sums[rows, where].view_as(part).add_(part)
        return (total(sums) / self._count).T.reshape(V.shape)

    def _made(self) -> Iterator[BlockProduct]:
        """The products of every batch; as many of the first ones are kept as may be."""
        samples = 0
        for i, batch in enumerate(self.problem.batches("train", self._chunk)):
            samples += len(batch)
            if i < len(self._graphs):
                yield self._graphs[i]
                continue
            product = self._blocks(batch)
            if samples <= round(self.kept * len(self.problem.train)):
                self._graphs.append(product)
                self._graphed = samples
            yield product

    def forget(self) -> None:
        """Free the memory of all that is kept between products; the next one makes it again."""
        self._graphs, self._graphed = [], 0

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


class Hessian(Curvature):
    """``d2L/dw2`` of the mean training loss."""

    kind = "hessian"
    _matrix = block_products.HESSIAN

    def _choose(self) -> tuple[Callable[[Batch], BatchProduct], Any]:
        """The first way of differentiating twice that differences of gradients confirm."""
        leaves = {name: p.detach().requires_grad_() for name, p in self.params.items()}
        losses = self.problem.batch_losses(self.problem.first(2), leaves)
        if not losses.requires_grad:
            raise InputError(
                f"loss {self.problem.loss.name!r} has no gradient with respect to "
                f"{', '.join(self.params)}: it is not differentiable, or does not depend on them"
            )
        chosen = way(self.problem)

        if chosen is products.FiniteDifference:
            error = check_differences(self.problem, self.params)
            self.precision = max(self.precision, error)

        def build(batch: Batch) -> BatchProduct:
            if chosen is products.FiniteDifference:
                return chosen(losses_in_double(self.problem, batch), self.params)
            return chosen(self._sum_of_losses(batch), self.params)

        return build, chosen

    def _sum_of_losses(self, batch: Batch) -> products.Scalar:
        return lambda params: self.problem.batch_losses(batch, params).sum()


class Remainder(Curvature):
    """Hessian less GGN, ``1/N sum_k sum_c (dl_k/dz_c) d2z_c/dw2``."""

    kind = "remainder"
    _matrix = block_products.REMAINDER

    def _choose(self) -> tuple[Callable[[Batch], BatchProduct], Any]:
        check_double_backward(self.problem, self.params)
        return partial(products.Remainder, self.problem, self.params), products.Remainder


class GGN(Curvature):
    """Generalised Gauss-Newton, ``1/N sum_k J_k^T (d2l_k/dz2) J_k`` (Schraudolph 2002)."""

    kind = "ggn"
    _matrix = block_products.GGN

    def _choose(self) -> tuple[Callable[[Batch], BatchProduct], Any]:
        return self._gauss_newton(products.output_hessian)

    def _gauss_newton(
        self, middle: Callable[..., products.Middle]
    ) -> tuple[Callable[[Batch], BatchProduct], Any]:
        if middle is products.output_hessian:
            check_loss_curvature(self.problem)
        chosen = jacobian_way(self.problem, middle)
        build = partial(chosen, self.problem, self.params, middle=middle)
        if chosen is products.OutputDifference:
            self.precision = max(self.precision, check_output_differences(self.problem, build))
        return build, chosen


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
        self._matrix = block_products.FISHER if labels == "data" else block_products.TRUE_FISHER
        super().__init__(problem, params)

    def _choose(self) -> tuple[Callable[[Batch], BatchProduct], Any]:
        drawn = self.kind == "true fisher"
        return self._gauss_newton(products.drawn_targets if drawn else products.identity)


@of_a_problem
def hessian(problem: Problem, params: str | list[str] | None = None) -> Hessian:
    """The Hessian of the mean training loss as an operator.

    ``params`` chooses parameters by name, glob or list of these; all of them by default.
    """
    return Hessian(problem, params)


@of_a_problem
def ggn(problem: Problem, params: str | list[str] | None = None) -> GGN:
    """The generalised Gauss-Newton matrix as an operator.

    It is the Hessian as if the model were linear in its parameters: the loss's curvature alone.
    """
    return GGN(problem, params)


@of_a_problem
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


_P = ParamSpec("_P")
_T = TypeVar("_T")


def of_an_operator(
    function: Callable[Concatenate[Operator, _P], _T],
) -> Callable[Concatenate[Operator | Problem | Tensor, _P], _T]:
    """Let a function of an operator take a problem for its Hessian, and a tensor for itself."""

    @wraps(function)
    def checked(A: Operator | Problem | Tensor, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        if isinstance(A, Problem):
            A = hessian(A)
        elif isinstance(A, Tensor):
            A = Dense(A)
        elif not hasattr(type(A), "__matmul__") or not hasattr(A, "size"):
            raise InputError(
                f"{function.__name__} takes a matrix, such as ll.hessian(problem) with problem = "
                "ll.Problem(model, 'cross_entropy', train=(inputs, targets)); got "
                f"{type(A).__name__}"
            )
        return function(A, *args, **kwargs)

    return checked
