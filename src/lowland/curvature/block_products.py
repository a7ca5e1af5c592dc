"""Products of one batch's matrix with several columns: all together where that is confirmed.

Tapes (see ``tape``) are used if every operation of the model has a rule for its tangents, and if on
the first samples they give, parameter by parameter, what single products by autograd give. These in
turn are confirmed by differences of gradients. Otherwise products are done column by column.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from lowland.batches import Batch
from lowland.curvature.memory import samples_within
from lowland.curvature.products import BatchProduct, Direction
from lowland.curvature.sample_factors import output_curvature
from lowland.curvature.tangents import NoRule
from lowland.curvature.tape import Tape
from lowland.problem import Problem

Part = tuple[slice, list[Tensor | None]]  # some of the columns, and the products with them


class BlockProduct(Protocol):
    """A function that multiplies the matrix with k directions, (k, *shape) for each parameter."""

    def __call__(self, V: list[Tensor]) -> Iterator[Part]:
        """The products, some columns at a time."""


@dataclass(frozen=True)
class ColumnByColumn:
    """Products with many columns for a batch that can only multiply with one at a time."""

    product: BatchProduct

    @staticmethod
    def of(build: Callable[[Batch], BatchProduct]) -> Callable[[Batch], BlockProduct]:
        """A function from a batch to its products; ``build`` makes the product with one column."""
        return lambda batch: ColumnByColumn(build(batch))

    def __call__(self, V: list[Tensor]) -> Iterator[Part]:
        """The products, one at a time."""
        for j in range(len(V[0])):
            parts = self.product([v[j] for v in V])
            yield slice(j, j + 1), [part.unsqueeze(0) for part in parts]


@dataclass(frozen=True)
class Matrix:
    """What a matrix is made of: ``sum_k J_k^T A_k J_k``, and the remainder if it is ``curved``."""

    middle: Callable[[Problem, Tensor, Tensor], Tensor] | None  # A, (n, C, C), from z and targets
    curved: bool


def outer_gradients(problem: Problem, z: Tensor, targets: Tensor) -> Tensor:
    """``r r^T`` with ``r = dl/dz``, of the empirical Fisher matrix."""
    r = _slope(problem, z, targets).flatten(1)
    return r.unsqueeze(2) * r.unsqueeze(1)


def drawn_gradients(problem: Problem, z: Tensor, targets: Tensor) -> Tensor:
    """The mean of ``r r^T`` over targets that the model would draw, of the true Fisher matrix."""
    return problem.loss.fisher(z)


HESSIAN, REMAINDER = Matrix(output_curvature, True), Matrix(None, True)
GGN, FISHER = Matrix(output_curvature, False), Matrix(outer_gradients, False)
TRUE_FISHER = Matrix(drawn_gradients, False)

# Outputs of a sample up to which its second derivatives by them are held.
_MOST_OUTPUTS = 256
# Bytes of tangents in flight, and the columns that these are meant to be of: more bytes leave the
# caches, fewer samples make small matrix products.
_IN_FLIGHT, _WIDTH = 1 << 26, 8
_LEAST = 32
# Samples and columns on which tapes are compared with single products.
_SAMPLES, _COLUMNS = 4, 2


@dataclass(frozen=True)
class Tapes:
    """Tapes of batches. A sample takes ``sample_bytes`` of one, a column ``tangent_bytes`` more."""

    problem: Problem
    params: dict[str, Tensor]
    matrix: Matrix
    otherwise: Callable[[Batch], BatchProduct]
    sample_bytes: int = 1
    tangent_bytes: int = 1

    def __call__(self, batch: Batch) -> BlockProduct:
        """The tape of a batch; single products, if it runs an operation that has no rule."""
        try:
            tape = self.record(batch)
        except NoRule:
            return ColumnByColumn(self.otherwise(batch))
        fits = min(_IN_FLIGHT, self.problem.memory) // (len(batch) * self.tangent_bytes)
        return TapeProduct(tape, max(1, fits))

    def samples(self) -> int:
        """How many samples to take at once, in pieces of equal size."""
        each = self.sample_bytes + self.tangent_bytes
        most = max(_LEAST, _IN_FLIGHT // (_WIDTH * self.tangent_bytes))
        pieces = math.ceil(len(self.problem.train) / min(most, samples_within(self.problem, each)))
        return math.ceil(len(self.problem.train) / pieces)

    def record(self, batch: Batch) -> Tape:
        """A tape of all operations that compute the batch's gradient."""
        problem, targets = self.problem, batch.targets

        def outputs(weights: list[Tensor]) -> Tensor:
            return problem.outputs(batch.inputs, dict(zip(self.params, weights, strict=True)))

        def middle(z: Tensor) -> tuple[Tensor, Tensor | None]:
            if len(z) != len(batch) or z[0].numel() > _MOST_OUTPUTS:
                raise NoRule("outputs that are too many, or not one for each sample")
            make = self.matrix.middle
            r = _slope(problem, z, targets) if self.matrix.curved else torch.zeros_like(z)
            return r, None if make is None else make(problem, z.detach(), targets)

        return Tape(outputs, middle, list(self.params.values()), curved=self.matrix.curved)


@dataclass(frozen=True)
class TapeProduct:
    """Products from a tape, ``width`` columns at a time."""

    tape: Tape
    width: int

    def __call__(self, V: list[Tensor]) -> Iterator[Part]:
        """The products, some columns at a time."""
        for start in range(0, len(V[0]), self.width):
            rows = slice(start, start + self.width)
            yield rows, self.tape([v[rows] for v in V])


def _slope(problem: Problem, z: Tensor, targets: Tensor) -> Tensor:
    """``dl/dz`` of every sample."""
    leaf = z.detach().requires_grad_()
    loss = problem.loss(leaf, targets).sum()
    return torch.autograd.grad(loss, leaf, materialize_grads=True)[0]


def confirmed(
    problem: Problem,
    params: dict[str, Tensor],
    matrix: Matrix,
    single: Callable[[Batch], BatchProduct],
) -> Tapes | None:
    """Tapes for these parameters, if single products on the first samples confirm them."""
    tapes = Tapes(problem, params, matrix, single)

    def look() -> tuple[int, int] | None:
        try:
            return _compared(tapes)
        except Exception:  # whatever it is, single products work or say what is the matter
            return None

    sizes = problem.whole.found((confirmed, matrix, *params), look)
    return sizes and replace(tapes, sample_bytes=sizes[0], tangent_bytes=sizes[1])


def _compared(tapes: Tapes) -> tuple[int, int] | None:
    """The bytes of a tape and of a column per sample; None if single products differ from it."""
    first, few = tapes.problem.first(1), tapes.problem.first(_SAMPLES)
    generator = torch.Generator(device=tapes.problem.device).manual_seed(0)
    V = [
        torch.randn(_COLUMNS, *p.shape, generator=generator, dtype=p.dtype, device=p.device)
        for p in tapes.params.values()
    ]
    small, tape, product = tapes.record(first), tapes.record(few), tapes.otherwise(few)
    blocks = tape(V)
    for j in range(_COLUMNS):
        if not _agree([b if b is None else b[j] for b in blocks], product([v[j] for v in V])):
            return None
    less, held = (t.held([v[:1] for v in V]) for t in (small, tape))
    more = max(1, len(few) - 1)
    tangents = max(a - b for a, b in zip(held, less, strict=True))
    return max(1, (tape.nbytes - small.nbytes) // more), max(1, tangents // more)


def _agree(block: list[Tensor | None], single: Direction) -> bool:
    """Whether two products are equal, up to rounding, in the part of every parameter."""
    whole = float(torch.stack([s.norm() for s in single]).norm())
    for b, s in zip(block, single, strict=True):
        eps = torch.finfo(s.dtype).eps
        apart = s if b is None else b - s
        if not float(apart.norm()) <= eps**0.5 * float(s.norm()) + 64 * eps * whole:
            return False
    return True
