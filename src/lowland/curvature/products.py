"""Products with a curvature matrix on one batch of samples, by several ways of differentiating.

Each way is built for a batch and then maps a direction in parameter space, one tensor for each
chosen parameter, to the sum over the batch of the matrix times that direction. Never reverse over
forward (``grad(jvp(...))``): PyTorch gets it silently wrong for some normalisation layers.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Protocol

import torch
from torch import Tensor

from lowland.batches import Batch
from lowland.errors import InputError
from lowland.problem import Problem, in_precision

Direction = Sequence[Tensor]


class BatchProduct(Protocol):
    """A function that multiplies the matrix of one batch, summed over samples, with a direction."""

    def __call__(self, v: Direction) -> Direction:
        """The matrix times v."""


# A number, such as the sum of a batch's losses, as a function of the parameters by name.
Scalar = Callable[[dict[str, Tensor]], Tensor]


class DoubleBackward:
    """Hessian: backward through the gradient's own graph, which is kept for further products.

    A product costs about as much as a gradient, and the first one about a gradient more.
    """

    name = "double backward"
    keeps_graph = True

    def __init__(self, scalar: Scalar, params: dict[str, Tensor]) -> None:
        leaves = {name: p.detach().requires_grad_() for name, p in params.items()}
        self._differentiate(scalar(leaves), list(leaves.values()))

    def _differentiate(
        self, y: Tensor, weights: list[Tensor], weighting: Tensor | None = None
    ) -> None:
        self.weights = weights
        self.gradient = torch.autograd.grad(
            y, weights, weighting, create_graph=True, materialize_grads=True
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

    def __init__(self, problem: Problem, params: dict[str, Tensor], batch: Batch) -> None:
        leaves = {name: p.detach().requires_grad_() for name, p in params.items()}
        z = problem.outputs(batch.inputs, leaves)
        leaf = z.detach().requires_grad_()
        (r,) = torch.autograd.grad(problem.loss(leaf, batch.targets).sum(), leaf)
        self._differentiate(z, list(leaves.values()), r)


class ForwardOverReverse:
    """Hessian: ``jvp(jacrev(...))``, for models that cannot be differentiated backwards twice."""

    name = "forward over reverse"
    keeps_graph = False

    def __init__(self, scalar: Scalar, params: dict[str, Tensor]) -> None:
        names, self.weights = list(params), tuple(p.detach() for p in params.values())

        def of_weights(*weights: Tensor) -> Tensor:
            return scalar(dict(zip(names, weights, strict=True)))

        self.gradient = torch.func.jacrev(of_weights, argnums=tuple(range(len(names))))

    def __call__(self, v: Direction) -> Direction:
        """The matrix times v."""
        return torch.func.jvp(self.gradient, self.weights, tuple(v))[1]


class FiniteDifference:
    """Hessian: central differences of the gradient over a short step, in float64."""

    name = "finite differences of gradients"
    keeps_graph = False

    def __init__(self, scalar: Scalar, params: dict[str, Tensor], step: float = 1e-7) -> None:
        self.scalar, self.step = scalar, step
        self.params = {name: p.detach().double() for name, p in params.items()}

    def __call__(self, v: Direction) -> Direction:
        """The matrix times v."""
        h = self._length(v)
        if h == 0:
            return [torch.zeros_like(d) for d in v]
        plus, minus = self._gradient(v, h), self._gradient(v, -h)
        return [((p - m) / (2 * h)).to(d) for p, m, d in zip(plus, minus, v, strict=True)]

    def rounding(self, v: Direction) -> float:
        """The largest error of a product that the rounding of the gradients alone can make."""
        gradient = torch.stack([g.norm() for g in self._gradient(v, 0.0)]).norm()
        weights = _size(list(self.params.values()))
        return 1e-14 * (float(gradient) + weights) / self._length(v)

    def _length(self, v: Direction) -> float:
        """The factor h of the step ``h v``."""
        size = _size(v)
        return self.step * (1 + _size(list(self.params.values()))) / size if size else 0.0

    def _gradient(self, v: Direction, h: float) -> Direction:
        moved = {
            name: (w + h * d).requires_grad_()
            for (name, w), d in zip(self.params.items(), v, strict=True)
        }
        y = self.scalar(moved)
        return torch.autograd.grad(y, list(moved.values()), materialize_grads=True)


Middle = tuple[Tensor, Callable[[Tensor], Tensor]]  # outputs z, and products with A


class JacobianProduct(ABC):
    """``J^T A J`` with the Jacobian J of some outputs and a small matrix A for each sample."""

    def __init__(self, weights: list[Tensor], middle: Middle) -> None:
        self.weights = weights
        self.outputs, self.middle = middle
        if not self.outputs.requires_grad:
            raise InputError("the model's outputs do not depend on the chosen parameters")

    def __call__(self, v: Direction) -> Direction:
        """The matrix times v."""
        parts = self.back_from(self.middle(self.along(v)))
        return [part.to(d) for part, d in zip(parts, v, strict=True)]

    @abstractmethod
    def along(self, v: Direction) -> Tensor:
        """J v, how the outputs change along v."""

    def back_from(self, u: Tensor) -> Direction:
        """``J^T u``."""
        return torch.autograd.grad(
            self.outputs, self.weights, u, retain_graph=True, materialize_grads=True
        )


class GaussNewton(JacobianProduct):
    """``J v`` without forward mode: ``J^T u`` is linear in u, so backward through it by u gives it.

    Both graphs are kept for further products.
    """

    name = "two backward passes"
    keeps_graph = True

    def __init__(
        self,
        problem: Problem,
        params: dict[str, Tensor],
        batch: Batch,
        middle: Callable[[Problem, Batch, dict[str, Tensor]], Middle],
    ) -> None:
        leaves = {name: p.detach().requires_grad_() for name, p in params.items()}
        super().__init__(list(leaves.values()), middle(problem, batch, leaves))
        self.dummy = torch.zeros_like(self.outputs, requires_grad=True)
        self.back = torch.autograd.grad(
            self.outputs, self.weights, self.dummy, create_graph=True, materialize_grads=True
        )

    def along(self, v: Direction) -> Tensor:
        """J v, how the outputs change along v."""
        reached = [(b, d) for b, d in zip(self.back, v, strict=True) if b.requires_grad]
        if not reached:
            return torch.zeros_like(self.outputs)
        backs, directions = zip(*reached, strict=True)
        return torch.autograd.grad(backs, self.dummy, directions, retain_graph=True)[0]


class OutputDifference(JacobianProduct):
    """The same where torch lacks a second derivative: J v by central differences, in float64."""

    name = "differences of outputs"
    keeps_graph = False

    def __init__(
        self,
        problem: Problem,
        params: dict[str, Tensor],
        batch: Batch,
        middle: Callable[[Problem, Batch, dict[str, Tensor]], Middle],
        step: float = 1e-7,
    ) -> None:
        weights = [p.detach().double().requires_grad_() for p in params.values()]
        self.step, double, constants = step, batch.map(in_double), constants_in_double(problem)

        def outputs(weights: Direction) -> Middle:
            moved = dict(zip(params, weights, strict=True))
            return middle(problem, double, {**constants, **moved})

        self._middle = outputs
        super().__init__(weights, outputs(weights))

    def along(self, v: Direction) -> Tensor:
        """J v, how the outputs change along v."""
        size = _size(v)
        if not size:
            return torch.zeros_like(self.outputs)
        h = self.step * (1 + _size(self.weights)) / size
        ends = [
            self._middle([w.detach() + s * h * d for w, d in zip(self.weights, v, strict=True)])[0]
            for s in (1, -1)
        ]
        return ((ends[0] - ends[1]) / (2 * h)).detach()


# Real and complex numbers in the digits of float64; whole ones as they are.
in_double = partial(in_precision, dtype=torch.float64)


def constants_in_double(problem: Problem) -> dict[str, Tensor]:
    """The model's parameters and buffers in float64, by name; none where reading widens them."""
    if problem.stored is not None:
        return {}
    model = problem.model
    tensors = [*model.named_parameters(), *model.named_buffers()]
    return {name: in_double(t.detach()) for name, t in tensors}


def _size(tensors: Direction) -> float:
    return float(torch.stack([t.detach().double().norm() for t in tensors]).norm())


def output_hessian(problem: Problem, batch: Batch, leaves: dict[str, Tensor]) -> Middle:
    """GGN: the outputs z, and products with ``d2l/dz2``."""
    z = problem.outputs(batch.inputs, leaves)
    leaf = z.detach().requires_grad_()

    @cache
    def slope() -> Tensor:
        losses = problem.loss(leaf, batch.targets)
        return torch.autograd.grad(losses.sum(), leaf, create_graph=True, materialize_grads=True)[0]

    def multiply(u: Tensor) -> Tensor:
        gradient = slope()
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

    @cache
    def drawn() -> Tensor:
        return problem.loss.fisher(z.detach())  # (n, C, C)

    def multiply(u: Tensor) -> Tensor:
        return torch.einsum("nop,np->no", drawn(), u.reshape(len(u), -1)).view_as(u)

    return z, multiply
