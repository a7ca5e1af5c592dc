"""A layer's exact curvature, as the sum of few rank-one terms per sample.

The loss sees a layer's weight W only through ``a_t = W x_t``, so with the second derivative
``S_k = d2l_k/da2 = sum_c s_kc delta_kc delta_kc^T`` of sample k, the layer's block is

    H = 1/N sum_k sum_c s_kc vec(B_kc) vec(B_kc)^T,      B_kc = sum_t delta_kct x_kt^T.

If all that follows the layer is piecewise linear, ``delta_kc`` is the vector ``q_kc`` of
``d2l_k/dz2 = sum_c s_kc q_kc q_kc^T`` sent back through the network: C backward passes. The same
vectors give the generalised Gauss-Newton (GGN) block of any network. Otherwise ``S_k`` is
differentiated twice with respect to ``a``, one pass for each of its rows.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from lowland.curvature.layers import Layer, Tap, tapped
from lowland.curvature.structure import piecewise_linear
from lowland.errors import InputError
from lowland.problem import Problem


@dataclass(frozen=True)
class Factors:
    """The terms of one layer's block for a batch of n samples, in float64 where they are summed."""

    layer: Layer
    x: Tensor  # (n, T, G, in)
    delta: Tensor  # (n, C, T, G, out)
    s: Tensor  # (n, C)
    exact: str  # how S was got

    def dense_sum(self) -> Tensor:
        """The sum over samples of the (M, M) blocks; zero between groups, as it must be."""
        T, G, out = self.delta.shape[2:]
        x, delta, s = self.x.double(), self.delta.double(), self.s.double()
        if T == 1 and G == 1:  # Kronecker form: C times fewer operations
            x, delta = x[:, 0, 0], delta[:, :, 0, 0]
            S = torch.einsum("nc,nco,ncp->nop", s, delta, delta)
            xx = torch.einsum("ni,nj->nij", x, x)
            block = S.flatten(1).T @ xx.flatten(1)  # (out out', in in')
            return (
                block.view(out, out, x.shape[1], x.shape[1])
                .permute(0, 2, 1, 3)
                .flatten(2)
                .flatten(0, 1)
            )
        B = torch.einsum("nctgo,ntgi->ncgoi", delta, x).flatten(0, 1).flatten(1)  # (n C, M)
        return (B * s.reshape(-1, 1)).T @ B

    def diagonal_sum(self) -> Tensor:
        """The sum over samples of the diagonals, (G, out, in)."""
        x, delta, s = self.x.double(), self.delta.double(), self.s.double()
        if x.shape[1] == 1:
            return torch.einsum("nc,ncgo,ngi->goi", s, delta[:, :, 0] ** 2, x[:, 0] ** 2)
        B = torch.einsum("nctgo,ntgi->ncgoi", delta, x)
        return torch.einsum("nc,ncgoi->goi", s, B**2)

    def bias_diagonal_sum(self) -> Tensor:
        """The same for the layer's bias, (G, out): a bias is a weight whose input is always 1."""
        delta = self.delta.double().sum(2)  # (n, C, G, out)
        return torch.einsum("nc,ncgo->go", self.s.double(), delta**2)


def factors(
    problem: Problem, chosen: list[Layer], kind: str = "hessian", split: str = "train"
) -> Iterator[dict[str, Factors]]:
    """Batch by batch, the factors of every chosen layer, from one forward pass each."""
    with problem.measuring():
        for batch in problem.batches(split):
            with tapped(chosen) as taps:
                z = problem.outputs(batch.inputs)
            for at in chosen:
                if at.name not in taps:
                    raise InputError(
                        f"layer {at.name!r} takes no part in the forward pass; choose another layer"
                    )
            yield _of_batch(problem, z, batch.targets, list(taps.values()), kind)


def _of_batch(
    problem: Problem, z: Tensor, targets: Tensor, taps: list[Tap], kind: str
) -> dict[str, Factors]:
    through = [t for t in taps if kind == "ggn" or piecewise_linear(z, t.a)]
    found = {}
    if through:
        q, s = _output_curvature(problem, z, targets)
        q = q.movedim(1, 0).unflatten(-1, z.shape[1:])  # (C, n, *outputs)
        columns = [
            torch.autograd.grad(z, [t.a for t in through], column, retain_graph=True)
            for column in q
        ]
        for i, t in enumerate(through):
            delta = torch.stack([t.layer.outputs(c[i]) for c in columns], dim=1)
            found[t.layer.name] = Factors(
                t.layer, t.layer.inputs(t.x), delta, s, "C backward passes"
            )
    losses = problem.loss(z, targets)
    for t in taps:
        if t.layer.name not in found:
            delta, s = _differentiated_twice(losses, t)
            found[t.layer.name] = Factors(
                t.layer, t.layer.inputs(t.x), delta, s, "double backward of the layer's outputs"
            )
    return found


def _output_curvature(problem: Problem, z: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """``d2l/dz2`` of each sample as vectors, the rows of q (n, C, C), and their sizes s (n, C)."""
    leaf = z.detach().requires_grad_()
    return _eigen(_second_derivative(problem.loss(leaf, targets), leaf))


def _differentiated_twice(losses: Tensor, tap: Tap) -> tuple[Tensor, Tensor]:
    q, s = _eigen(_second_derivative(losses, tap.a))
    shape = tap.a.shape[1:]
    delta = torch.stack([tap.layer.outputs(c.unflatten(-1, shape)) for c in q.unbind(1)], dim=1)
    return delta, s


def _second_derivative(losses: Tensor, at: Tensor) -> Tensor:
    """``d2l/d at2`` for each sample, (n, D, D) with D the size of one sample of ``at``."""
    (gradient,) = torch.autograd.grad(losses.sum(), at, create_graph=True)
    gradient = gradient.flatten(1)  # (n, D)
    if not gradient.requires_grad:  # the loss is linear here
        return gradient.new_zeros(*gradient.shape, gradient.shape[1])
    rows = [
        torch.autograd.grad(gradient[:, d].sum(), at, retain_graph=True, materialize_grads=True)[0]
        for d in range(gradient.shape[1])
    ]
    return torch.stack([r.flatten(1) for r in rows], dim=1)


def _eigen(S: Tensor) -> tuple[Tensor, Tensor]:
    """Vectors as rows, and eigenvalues, of symmetric matrices (n, D, D); in float64 inside."""
    symmetric = S.double()
    symmetric = (symmetric + symmetric.mT) / 2
    values, vectors = torch.linalg.eigh(symmetric)
    return vectors.mT.to(S.dtype), values.to(S.dtype)
