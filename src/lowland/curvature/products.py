"""Products with a curvature matrix on one batch of samples, by several ways of differentiating.

Each way is built for a batch and then maps a direction in parameter space, one tensor for each
chosen parameter, to the sum over the batch of the matrix times that direction. Never reverse over
forward (``grad(jvp(...))``): PyTorch gets it silently wrong for some normalisation layers.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from lowland.batches import Batch
from lowland.errors import InputError
from lowland.problem import Problem

Direction = Sequence[Tensor]


class BatchProduct(Protocol):
    """A direction to the matrix times it, summed over one batch."""

    def __call__(self, v: Direction) -> Direction:
        """The matrix times v."""


class DoubleBackward:
    """Hessian: backward through the gradient's own graph, which is kept for further products.

    A product costs about as much as a gradient, and the first one about a gradient more.
    """

    name = "double backward"

    def __init__(self, problem: Problem, leaves: dict[str, Tensor], batch: Batch) -> None:
        losses = problem.batch_losses(batch, leaves)
        self.weights = list(leaves.values())
        self.gradient = torch.autograd.grad(
            losses.sum(), self.weights, create_graph=True, materialize_grads=True
        )

    def __call__(self, v: Direction) -> Direction:
        """The matrix times v."""
        reached = [(g, d) for g, d in zip(self.gradient, v, strict=True) if g.requires_grad]
        if not reached:  # the loss is linear in these parameters
            return [torch.zeros_like(w) for w in self.weights]
        gradients, directions = zip(*reached, strict=True)
        return torch.autograd.grad(
            gradients, self.weights, directions, retain_graph=True, materialize_grads=True
        )


class Remainder(DoubleBackward):
    """Hessian less GGN: the Hessian of ``sum_k r_k . z_k`` with ``r_k = dl_k/dz_k`` held fixed.

    It is what the model's own curvature adds, and small where the loss is small.
    """

    name = "double backward of the linearised loss"

    def __init__(self, problem: Problem, leaves: dict[str, Tensor], batch: Batch) -> None:
        z = problem.outputs(batch.inputs, leaves)
        leaf = z.detach().requires_grad_()
        (r,) = torch.autograd.grad(problem.loss(leaf, batch.targets).sum(), leaf)
        self.weights = list(leaves.values())
        self.gradient = torch.autograd.grad(
            z, self.weights, r, create_graph=True, materialize_grads=True
        )


class ForwardOverReverse:
    """Hessian: ``jvp(jacrev(...))``, for models that cannot be differentiated backwards twice."""

    name = "forward over reverse"

    def __init__(self, problem: Problem, leaves: dict[str, Tensor], batch: Batch) -> None:
        self.names, self.weights = list(leaves), [w.detach() for w in leaves.values()]

        def loss(*weights: Tensor) -> Tensor:
            params = dict(zip(self.names, weights, strict=True))
            return problem.batch_losses(batch, params).sum()

        self.gradient = torch.func.jacrev(loss, argnums=tuple(range(len(self.weights))))

    def __call__(self, v: Direction) -> Direction:
        """The matrix times v."""
        return torch.func.jvp(self.gradient, tuple(self.weights), tuple(v))[1]


class FiniteDifference:
    """Hessian: central differences of the gradient. The last resort, good to a few digits."""

    name = "finite differences of gradients"

    def __init__(self, problem: Problem, leaves: dict[str, Tensor], batch: Batch) -> None:
        self.problem, self.leaves, self.batch = problem, leaves, batch

    def __call__(self, v: Direction) -> Direction:
        """The matrix times v."""
        norm = torch.stack([d.norm() for d in v]).norm()
        if norm == 0:
            return [torch.zeros_like(d) for d in v]
        weights = torch.stack([w.detach().norm() for w in self.leaves.values()]).norm()
        eps = torch.finfo(norm.dtype).eps
        h = eps ** (1 / 3) * (1 + weights) / norm  # balances truncation and rounding
        plus, minus = self._gradient(v, h), self._gradient(v, -h)
        return [(p - m) / (2 * h) for p, m in zip(plus, minus, strict=True)]

    def _gradient(self, v: Direction, h: Tensor) -> Direction:
        moved = {
            name: (w.detach() + h * d).requires_grad_()
            for (name, w), d in zip(self.leaves.items(), v, strict=True)
        }
        loss = self.problem.batch_losses(self.batch, moved).sum()
        return torch.autograd.grad(loss, list(moved.values()), materialize_grads=True)


Middle = tuple[Tensor, Callable[[Tensor], Tensor]]  # outputs z, and products with A


class GaussNewton:
    """``J^T A J`` with the Jacobian J of some outputs and a small matrix A for each sample.

    ``J v`` needs no forward mode: ``J^T u`` is linear in u, so backward through it by u gives
    ``J v``. Both graphs are kept for further products.
    """

    name = "two backward passes"

    def __init__(
        self,
        problem: Problem,
        leaves: dict[str, Tensor],
        batch: Batch,
        middle: Callable[[Problem, Batch, dict[str, Tensor]], Middle],
    ) -> None:
        self.weights = list(leaves.values())
        self.outputs, self.middle = middle(problem, batch, leaves)
        if not self.outputs.requires_grad:
            raise InputError("the model's outputs do not depend on the chosen parameters")
        self.dummy = torch.zeros_like(self.outputs, requires_grad=True)
        self.back = torch.autograd.grad(
            self.outputs, self.weights, self.dummy, create_graph=True, materialize_grads=True
        )

    def __call__(self, v: Direction) -> Direction:
        """The matrix times v."""
        reached = [(b, d) for b, d in zip(self.back, v, strict=True) if b.requires_grad]
        backs, directions = zip(*reached, strict=True)
        (Jv,) = torch.autograd.grad(backs, self.dummy, directions, retain_graph=True)
        return torch.autograd.grad(
            self.outputs, self.weights, self.middle(Jv), retain_graph=True, materialize_grads=True
        )


def output_hessian(problem: Problem, batch: Batch, leaves: dict[str, Tensor]) -> Middle:
    """GGN: the outputs z, and products with ``d2l/dz2``."""
    z = problem.outputs(batch.inputs, leaves)
    leaf = z.detach().requires_grad_()
    (gradient,) = torch.autograd.grad(
        problem.loss(leaf, batch.targets).sum(), leaf, create_graph=True, materialize_grads=True
    )

    def multiply(u: Tensor) -> Tensor:
        if not gradient.requires_grad:
            return torch.zeros_like(u)
        return torch.autograd.grad(gradient, leaf, u, retain_graph=True, materialize_grads=True)[0]

    return z, multiply


def identity(problem: Problem, batch: Batch, leaves: dict[str, Tensor]) -> Middle:
    """Empirical Fisher, ``sum_k g_k g_k^T``: the losses themselves are the outputs."""
    return problem.batch_losses(batch, leaves), lambda u: u


def drawn_targets(problem: Problem, batch: Batch, leaves: dict[str, Tensor]) -> Middle:
    """True Fisher: the mean of ``g g^T`` over targets that the model itself would draw."""
    z = problem.outputs(batch.inputs, leaves)
    F = problem.loss.fisher(z.detach())  # (n, C, C)

    def multiply(u: Tensor) -> Tensor:
        return torch.einsum("nop,np->no", F, u.reshape(len(u), -1)).view_as(u)

    return z, multiply
