"""A layer's exact curvature as a product of small factors, one set for each sample.

The loss sees a layer's parameters only through its outputs a. With the Jacobian ``J_k = dz_k/da_k``
of the model's outputs z and ``A_k = d2l_k/dz2``, the layer's block of the Hessian is

    H = 1/N sum_k B_k^T A_k B_k,    row c of B_k: the gradient of z_c with respect to the weight

if all that follows the layer is piecewise linear: C backward passes give every ``J_k``. The same
sum is the generalised Gauss-Newton (GGN) block of any network. Otherwise ``J_k`` is the identity
and ``A_k = d2l_k/da2`` is differentiated twice with respect to a, a pass for each of its rows. The
empirical Fisher block has the same form: ``J_k = dl_k/da_k``, a single row, and ``A_k = 1``.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from lowland.batches import Batch
from lowland.curvature.layers import Layer, MatrixLayer, Tap, tapped
from lowland.curvature.memory import samples_within
from lowland.curvature.precision import rounding
from lowland.curvature.structure import piecewise_linear
from lowland.problem import Problem

Kind = Literal["hessian", "ggn", "fisher"]  # the Fisher block is the empirical one

# Entries of Jacobians that are multiplied at a time: they stay in the processor's cache.
_CACHED = 1 << 19
# Entries of packed outer products in flight: memory that stays in the cache, and is not fetched
# from the system page by page for every chunk, which would take as long as the product.
_PAIRS = 1 << 20
# Rows of Jacobians (outputs x samples) up to which they are computed in one vectorised pass.
_BATCHED = 1 << 16


@dataclass(frozen=True)
class Factors:
    """The factors of one layer's block for n samples."""

    layer: Layer
    x: Tensor  # (n, T, ...), what multiplies the weight
    J: Tensor  # (n, C, T, ...), gradients of C numbers with respect to the layer's outputs
    A: Tensor  # (n, C, C), second derivatives by those numbers
    route: str

    @property
    def is_outer(self) -> bool:
        """Whether a gradient is one outer product: a dense layer that sees one vector."""
        return isinstance(self.layer, MatrixLayer) and self.x.shape[1:3] == (1, 1)

    def dense_sum(self) -> Tensor:
        """The sum over samples of the (M, M) blocks; :func:`unpacked` for an outer product's."""
        if self.is_outer:
            return self._packed_sum()
        B = self.layer.gradients(self.x, self.J)  # (n, C, M)
        return (self.A @ B).flatten(0, 1).T @ B.flatten(0, 1)

    def _packed_sum(self) -> Tensor:
        """``sum_k (J_k^T A_k J_k) kron (x_k x_k^T)``, (pairs of outputs, pairs of inputs).

        Both factors are symmetric, so one product of their upper triangles holds every entry once:
        a quarter of the work of the full sum.
        """
        x, J = self.x[:, 0, 0], self.J[:, :, 0, 0]  # (n, in), (n, C, out)
        out, inputs = J.shape[2], x.shape[1]
        o1, o2 = torch.triu_indices(out, out, device=x.device)
        i1, i2 = torch.triu_indices(inputs, inputs, device=x.device)
        packed = x.new_zeros(len(o1), len(i1))
        size = max(1, _PAIRS // (len(o1) + len(i1)))
        for x_, J_, A_ in zip(x.split(size), J.split(size), self.A.split(size), strict=True):
            S = (J_.mT @ (A_ @ J_)).flatten(1).index_select(1, o1 * out + o2)
            x_ = x_.T.contiguous()  # rows are copied faster than columns
            packed += S.T @ (x_.index_select(0, i1) * x_.index_select(0, i2)).T
        return packed

    def diagonal_sum(self) -> Tensor:
        """The sum over samples of the diagonals of the weight's block, (M,)."""
        if self.is_outer:
            J = self.J[:, :, 0, 0]  # (n, C, out)
            size = max(1, _CACHED // J[0].numel())
            S = torch.cat(  # the diagonals of J^T A J, (n, out)
                [
                    (J_ * (A_ @ J_)).sum(1)
                    for J_, A_ in zip(J.split(size), self.A.split(size), strict=True)
                ]
            )
            return (S.T @ self.x[:, 0, 0].square()).flatten()
        B = self.layer.gradients(self.x, self.J)
        return (B * (self.A @ B)).sum((0, 1))

    def bias_diagonal_sum(self) -> Tensor:
        """The same for the bias, (outputs,): a weight whose input is always 1."""
        J = self.J.sum(2).flatten(2)
        return (J * (self.A @ J)).sum((0, 1))


def unpacked(packed: Tensor, out: int, inputs: int) -> Tensor:
    """The (M, M) block from its entries at pairs of outputs and pairs of inputs."""

    def places(n: int) -> Tensor:
        i, j = torch.triu_indices(n, n, device=packed.device)
        at = torch.empty(n, n, dtype=torch.long, device=packed.device)
        at[i, j] = at[j, i] = torch.arange(len(i), device=packed.device)
        return at.flatten()

    full = packed.index_select(0, places(out)).index_select(1, places(inputs))
    full = full.view(out, out, inputs, inputs).transpose(1, 2)
    return full.reshape(out * inputs, out * inputs)


def factors(
    problem: Problem, chosen: list[Layer], kind: Kind = "hessian", split: str = "train"
) -> Iterator[dict[str, Factors]]:
    """Chunk by chunk, the factors of every chosen layer, from one forward pass each."""
    if not chosen:
        return
    with problem.measuring():
        one = next(problem.batches(split)).map(lambda t: t[:1])
        with tapped(chosen) as taps:
            z = problem.outputs(one.inputs)
        each = _bytes(z, list(taps.values()), kind)
        for batch in problem.batches(split, samples_within(problem, each)):
            yield _of_batch(problem, batch, chosen, kind)


def factor_bytes(problem: Problem, at: Layer, kind: Kind) -> tuple[int, int]:
    """What one sample takes: its factors of a layer, and all that is made on the way."""
    with problem.measuring():
        one = next(problem.batches("train")).map(lambda t: t[:1])
        with tapped([at]) as taps:
            z = problem.outputs(one.inputs)
        (tap,) = taps.values()
        C = _rows(z, tap, kind)
        numbers = at.inputs(tap.x).numel() + C * tap.a.numel() + C * C
        return numbers * problem.dtype.itemsize, _bytes(z, [tap], kind)


def passes(problem: Problem, chosen: list[Layer]) -> dict[str, int]:
    """How many double backward passes each layer's exact Hessian block takes.

    0 where all that follows the layer is piecewise linear: its block is its GGN block.
    """
    with problem.measuring():
        one = next(problem.batches("train")).map(lambda t: t[:1])
        with tapped(chosen) as taps:
            z = problem.outputs(one.inputs)
        return {name: 0 if piecewise_linear(z, t.a) else t.a.numel() for name, t in taps.items()}


def _rows(z: Tensor, tap: Tap, kind: Kind) -> int:
    """C, the number of rows of J for one sample."""
    if kind == "fisher":
        return 1
    return z.numel() if kind == "ggn" or piecewise_linear(z, tap.a) else tap.a.numel()


def _bytes(z: Tensor, taps: list[Tap], kind: Kind) -> int:
    """What the factors of one sample take in float64, with the gradients made of them."""
    numbers = 0
    for t in taps:
        C = _rows(z, t, kind)
        x = t.layer.inputs(t.x)
        outer = isinstance(t.layer, MatrixLayer) and x.shape[1:3] == (1, 1)
        numbers += x.numel() + C * t.a.numel() + C * C
        numbers += 0 if outer else 2 * C * t.layer.weight.numel()
    return 8 * numbers


def _of_batch(
    problem: Problem, batch: Batch, chosen: list[Layer], kind: Kind
) -> dict[str, Factors]:
    with tapped(chosen) as taps:
        z = problem.outputs(batch.inputs)
    losses = problem.loss(z, batch.targets)
    if kind == "fisher":
        return _gradients(losses, taps)
    through = [t for t in taps.values() if kind == "ggn" or piecewise_linear(z, t.a)]
    found = {}
    if through:
        A = output_curvature(problem, z.detach(), batch.targets)
        seen = _seen(A)
        J, A = _jacobians(z, [t.a for t in through], seen), seen @ A @ seen.T
        for t, columns in zip(through, J, strict=True):
            C, n = columns.shape[:2]
            J_t = t.layer.outputs(columns.flatten(0, 1)).unflatten(0, (C, n)).transpose(0, 1)
            x = t.layer.inputs(t.x)
            found[t.layer.name] = Factors(t.layer, x, J_t, A, "C backward passes")
    for name, t in taps.items():
        if name not in found:
            x, eye = t.layer.inputs(t.x), _identity(t)
            A = second_derivative(losses, t.a)
            found[name] = Factors(t.layer, x, eye, A, "double backward of the layer's outputs")
    return found


def _gradients(losses: Tensor, taps: dict[str, Tap]) -> dict[str, Factors]:
    """The factors of the empirical Fisher blocks, from one backward pass."""
    found = torch.autograd.grad(losses.sum(), [t.a for t in taps.values()], materialize_grads=True)
    one = losses.new_ones(len(losses), 1, 1)
    return {
        name: Factors(
            t.layer, t.layer.inputs(t.x), t.layer.outputs(g).unsqueeze(1), one, "one backward pass"
        )
        for (name, t), g in zip(taps.items(), found, strict=True)
    }


def _seen(A: Tensor) -> Tensor:
    """Orthonormal rows (r, C) that span all directions of outputs with curvature.

    Behind a softmax a common shift of all outputs has none: one backward pass less.
    """
    C = A.shape[-1]
    eye = torch.eye(C, dtype=A.dtype, device=A.device)
    if C == 1 or A.sum(-1).abs().amax() > C * rounding(A.dtype) * A.abs().amax():
        return eye
    v = eye[0] - C**-0.5  # the reflection that takes the first unit vector to the common shift
    return (eye - 2 * torch.outer(v, v) / v.square().sum())[1:]


def _jacobians(z: Tensor, points: list[Tensor], rows: Tensor) -> list[Tensor]:
    """For each point a: the gradients of ``rows z`` with respect to a, (r, n, ...)."""
    flat = z.flatten(1)
    n, (r, C) = len(flat), rows.shape
    units = rows.unsqueeze(1).expand(r, n, C)
    if r * n <= _BATCHED:  # all of them in one pass: as many samples, fewer calls
        return list(
            torch.autograd.grad(
                flat,
                points,
                units,
                retain_graph=True,
                is_grads_batched=True,
                materialize_grads=True,
            )
        )
    found = [
        torch.autograd.grad(flat, points, unit, retain_graph=True, materialize_grads=True)
        for unit in units
    ]
    return [torch.stack(column) for column in zip(*found, strict=True)]


def output_curvature(problem: Problem, z: Tensor, targets: Tensor) -> Tensor:
    """``d2l/dz2`` of each sample, (n, C, C): in closed form where the loss has one."""
    soft = problem.loss.classes and targets.is_floating_point()  # shares of classes, not labels
    if problem.loss.second is not None and z.ndim == 2 and not soft:
        return problem.loss.second(z, targets)
    leaf = z.requires_grad_()
    return second_derivative(problem.loss(leaf, targets), leaf)


def _identity(tap: Tap) -> Tensor:
    """dz/da where z is a itself, (n, D, T, ...)."""
    n, *shape = tap.a.shape
    D = tap.a[0].numel()
    eye = torch.eye(D, dtype=tap.a.dtype, device=tap.a.device).view(D, *shape)
    return tap.layer.outputs(eye).expand(n, D, *tap.layer.outputs(eye).shape[1:])


def second_derivative(losses: Tensor, at: Tensor) -> Tensor:
    """``d2l/d at2`` for each sample, (n, D, D) with D the size of one sample of ``at``."""
    (gradient,) = torch.autograd.grad(losses.sum(), at, create_graph=True, materialize_grads=True)
    gradient = gradient.flatten(1)  # (n, D)
    if not gradient.requires_grad:  # the loss is linear here
        return gradient.new_zeros(*gradient.shape, gradient.shape[1])
    rows = [
        torch.autograd.grad(gradient[:, d].sum(), at, retain_graph=True, materialize_grads=True)[0]
        for d in range(gradient.shape[1])
    ]
    S = torch.stack([r.detach().flatten(1) for r in rows], dim=1)
    return (S + S.mT) / 2
