"""Curvature matrices of the mean training loss as operators: products without the matrix."""

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, replace
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, TypeVar

import numpy as np
import torch
from torch import Tensor

from lowland.batches import Batch
from lowland.budget import check_time
from lowland.curvature import block_products, products
from lowland.curvature.block_products import BlockProduct, ColumnByColumn, Matrix, Tapes
from lowland.curvature.first_derivatives import check_alone
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
from lowland.problem import ONE_AT_A_TIME, Problem, differentiating, graph_bytes, of_a_problem

if TYPE_CHECKING:
    from scipy.sparse.linalg import LinearOperator

Build = Callable[[Batch], BatchProduct]


@dataclass(frozen=True)
class _Products:
    """How the products of an operator are made, for a problem in one state."""

    state: Hashable
    strategy: str
    precision: float
    of_batch: Callable[[Batch], BlockProduct]
    in_blocks: bool
    chunk: int
    kept: float


class Curvature(ABC):
    """A symmetric matrix over the chosen parameters, each flattened, in the model's order.

    ``A @ v`` and ``A @ V`` multiply by a vector (size,) or by columns (size, k): all columns
    together if ``in_blocks``, which takes half the time where layers are small. What products
    need of the model is kept between them while it fits the problem's memory budget, and made anew
    where the model, the data or the loss has changed: an operator follows its problem. ``slices``
    tells where each parameter lies in a vector.
    """

    kind: str
    _matrix: Matrix

    @differentiating()
    def __init__(self, problem: Problem, params: str | list[str] | None = None) -> None:
        self.problem, self._chosen = problem, params
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
        self._ready: _Products | None = None
        self._graphs: list[BlockProduct] = []  # of the first batches,
        self._graphed = 0  # which have so many samples

    @property
    def precision(self) -> float:
        """The rounding of products, as a share of the matrix's norm."""
        return self._products().precision

    @property
    def strategy(self) -> str:
        """The way of differentiating behind a product."""
        return self._products().strategy

    @property
    def in_blocks(self) -> bool:
        """Whether all columns are multiplied together."""
        return self._products().in_blocks

    @property
    def kept(self) -> float:
        """The share of the samples whose graphs are kept: all, or that of whole batches."""
        return self._products().kept

    def _products(self) -> "_Products":
        """Return how products are made for the problem as it is now.

        That is found out when the matrix is first multiplied, and again where the problem has
        changed since.
        """
        with ONE_AT_A_TIME:
            if self._ready is None or self.problem.changed_since(self._ready.state):
                self.forget()
                self._ready = self._prepared()
            return self._ready

    def _prepared(self) -> "_Products":
        """Choose, verify and measure how products are made."""
        problem = self.problem
        state = problem.state
        self.check_parameters()
        with differentiating(), problem.measuring():
            build, chosen, precision = self._choose()
            tapes = self._tapes(build) if chosen.keeps_graph else None
            each = tapes.sample_bytes if tapes else self._graph_bytes(build)
            count = len(problem.train)
            if problem.sharded:  # ranks must do the same
                each, count = most(each), most(count)
            chunk = tapes.samples() if tapes else samples_within(problem, each)
            fits = problem.memory // 2 // each if chosen.keeps_graph else 0
        return _Products(
            state=state,
            strategy=chosen.name,
            precision=max(precision, rounding(self.dtype)),
            of_batch=tapes or ColumnByColumn.of(build),
            in_blocks=tapes is not None,
            chunk=chunk,
            kept=1.0 if fits >= count else fits // chunk * chunk / count,
        )

    def check_parameters(self) -> None:
        """Raise an error if the problem has other parameters than the operator was made for."""
        params = self.problem.select(self._chosen)
        before, now = ([(n, p.shape) for n, p in ps.items()] for ps in (self.params, params))
        if before != now or self.dtype != self.problem.dtype:
            raise InputError(
                f"the parameters that are measured are others than this {self.kind} matrix was "
                "made for (requires_grad, shape or precision have changed); make a new operator"
            )
        self.params = params

    def keep(self, share: float) -> None:
        """Keep the graphs of this share of the samples between products."""
        self._ready = replace(self._products(), kept=share)

    def _tapes(self, build: Build) -> Tapes | None:
        """The way to multiply by many columns at once, if single products confirm it."""
        if self.problem.loss.needs_model or self.problem.stored is not None:
            return None
        return block_products.confirmed(self.problem, self.params, self._matrix, build)

    def _graph_bytes(self, build: Build) -> int:
        """What one sample's graph takes, once a product has shown that torch can do it."""
        try:
            ones = torch.ones(self.size, dtype=self.dtype, device=self.device)
            build(self.problem.first(1))(self._shaped(ones))
            return graph_bytes(self.problem, build)
        except (RuntimeError, NotImplementedError) as error:
            raise InputError(
                f"products with the {self.kind} matrix need derivatives that torch does not have "
                f"for this model: {str(error).splitlines()[0]}"
            ) from error

    @abstractmethod
    def _choose(self) -> tuple[Build, Any, float]:
        """Return how products on a batch are made, the way behind it, and its precision."""

    def __repr__(self) -> str:
        how = ""
        if (ready := self._ready) is not None:  # it was multiplied
            kept = f"graphs of {ready.kept:.0%} of the samples kept"
            if ready.kept in (0, 1):
                kept = "kept graphs" if ready.kept else "graphs made again for each product"
            how = f", {ready.strategy}, {kept}" + (", columns together" * ready.in_blocks)
        return f"{type(self).__name__}(size={self.size:,}, parameters={len(self.params)}{how})"

    @differentiating()
    def __matmul__(self, V: Tensor) -> Tensor:
        if not isinstance(V, Tensor) or V.ndim not in (1, 2) or len(V) != self.size:
            came = tuple(V.shape) if isinstance(V, Tensor) else type(V).__name__
            raise InputError(
                f"a product needs a vector ({self.size},) or columns ({self.size}, k) as a tensor; "
                f"got {came}"
            )
        ready = self._products()
        columns = V.to(self.device, self.dtype).reshape(self.size, -1)
        directions = [
            columns[where].T.reshape(-1, *p.shape)  # (k, *shape), whole in memory
            for where, p in zip(self.slices.values(), self.params.values(), strict=True)
        ]
        sums = columns.new_zeros(columns.shape[1], self.size)
        # Kept graphs need nothing of the model any more, and so none of the care it is run with.
        whole = self._graphed == len(self.problem.train)
        with contextlib.nullcontext() if whole else self.problem.measuring():
            for product in self._graphs if whole else self._made(ready):
                for rows, parts in product(directions):
                    check_time()
                    for where, part in zip(self.slices.values(), parts, strict=True):
                        if part is not None:
                            sums[rows, where].view_as(part).add_(part)
        return (total(sums) / self.problem.count()).T.reshape(V.shape)

    def _made(self, ready: "_Products") -> Iterator[BlockProduct]:
        """The products of every batch; as many of the first ones are kept as may be."""
        samples = 0
        for i, batch in enumerate(self.problem.batches("train", ready.chunk)):
            samples += len(batch)
            if i < len(self._graphs):
                yield self._graphs[i]
                continue
            if len(batch) == 1:
                check_alone(self.problem, batch)
            product = ready.of_batch(batch)
            if samples <= round(ready.kept * len(self.problem.train)):
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

    def to_scipy(self) -> "LinearOperator":
        """Return the operator for NumPy arrays, as SciPy's solvers want it."""
        from scipy.sparse.linalg import LinearOperator  # slow to import

        def multiply(V: np.ndarray) -> np.ndarray:
            return (self @ torch.from_numpy(np.ascontiguousarray(V))).cpu().numpy()

        dtype = torch.empty(0, dtype=self.dtype).numpy().dtype
        return LinearOperator(self.shape, matvec=multiply, matmat=multiply, dtype=dtype)


class Hessian(Curvature):
    """``d2L/dw2`` of the mean training loss."""

    kind = "hessian"
    _matrix = block_products.HESSIAN

    def _choose(self) -> tuple[Build, Any, float]:
        """The first way of differentiating twice that differences of gradients confirm."""
        leaves = {name: p.detach().requires_grad_() for name, p in self.params.items()}
        losses = self.problem.batch_losses(self.problem.first(2), leaves)
        self.problem.check_differentiable(losses, self.params)
        chosen, precision = way(self.problem), 0.0
        if chosen is products.FiniteDifference:
            precision = check_differences(self.problem, self.params)
        return lambda batch: self._product(batch, self.params), chosen, precision

    def _product(self, batch: Batch, params: dict[str, Tensor]) -> BatchProduct:
        """Return the product on a batch at these values of the parameters."""
        chosen = way(self.problem)
        if chosen is products.FiniteDifference:
            return chosen(losses_in_double(self.problem, batch), params)
        return chosen(lambda params: self.problem.batch_losses(batch, params).sum(), params)

    @differentiating()
    def product_at(self, v: Tensor, params: dict[str, Tensor]) -> Tensor:
        """Return the product with a vector at other values of the parameters."""
        sums, direction = torch.zeros_like(v), self._shaped(v)
        chunk = self._products().chunk
        with self.problem.measuring():
            for batch in self.problem.batches("train", chunk):
                check_time()
                parts = self._product(batch, params)(direction)
                sums += torch.cat([part.flatten() for part in parts])
        return total(sums) / self.problem.count()


class Remainder(Curvature):
    """Hessian less GGN, ``1/N sum_k sum_c (dl_k/dz_c) d2z_c/dw2``."""

    kind = "remainder"
    _matrix = block_products.REMAINDER

    def _choose(self) -> tuple[Build, Any, float]:
        check_double_backward(self.problem, self.params)
        return partial(products.Remainder, self.problem, self.params), products.Remainder, 0.0


class GGN(Curvature):
    """Generalised Gauss-Newton, ``1/N sum_k J_k^T (d2l_k/dz2) J_k`` (Schraudolph 2002)."""

    kind = "ggn"
    _matrix = block_products.GGN

    def _choose(self) -> tuple[Build, Any, float]:
        return self._gauss_newton(products.output_hessian)

    def _gauss_newton(self, middle: Callable[..., products.Middle]) -> tuple[Build, Any, float]:
        if middle is products.output_hessian:
            check_loss_curvature(self.problem)
        chosen = jacobian_way(self.problem, middle)
        build = partial(chosen, self.problem, self.params, middle=middle)
        differs = chosen is products.OutputDifference
        return build, chosen, check_output_differences(self.problem, build) if differs else 0.0


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

    def _choose(self) -> tuple[Build, Any, float]:
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
        elif isinstance(A, Tensor | np.ndarray):
            A = Dense(torch.as_tensor(A))
        elif not hasattr(type(A), "__matmul__") or not hasattr(A, "size"):
            raise InputError(
                f"{function.__name__} takes a matrix, such as ll.hessian(problem) with problem = "
                "ll.Problem(model, 'cross_entropy', train=(inputs, targets)); got "
                f"{type(A).__name__}"
            )
        return function(A, *args, **kwargs)

    return checked
