"""Curvature matrices of the training loss as operators: products without the matrix."""

import math

import torch
from torch import Tensor

from lowland.problem import Problem


class Hessian:
    """``d2 L / dw2`` of the mean training loss with respect to the chosen parameters.

    Vectors run over the parameters in the model's order, each flattened row-major. A product is a
    double backward pass (the derivative of ``g . v``): reverse over forward would be silently
    wrong for some normalisation layers.
    """

    def __init__(self, problem: Problem, params: str | list[str] | None = None) -> None:
        self.problem = problem
        self.params = problem.select(params)
        self.size = sum(p.numel() for p in self.params.values())
        self.shape = (self.size, self.size)
        self.dtype = problem.dtype
        self.device = problem.device

    def __repr__(self) -> str:
        return f"Hessian(size={self.size:,}, parameters={len(self.params)})"

    def __matmul__(self, V: Tensor) -> Tensor:
        columns = V.reshape(self.size, -1)
        total = torch.zeros_like(columns)
        with self.problem.measuring():
            for batch in self.problem.batches("train"):
                leaves = {k: p.clone().requires_grad_() for k, p in self.params.items()}
                z = self.problem.outputs(batch.inputs, leaves)
                loss = self.problem.loss(z, batch.targets).sum()
                weights = list(leaves.values())
                gradient = torch.autograd.grad(
                    loss, weights, create_graph=True, materialize_grads=True
                )
                for j, v in enumerate(columns.unbind(1)):
                    product = torch.autograd.grad(
                        gradient,
                        weights,
                        self._shaped(v),
                        retain_graph=True,
                        materialize_grads=True,
                    )
                    total[:, j] += torch.cat([p.reshape(-1) for p in product])
        return (total / len(self.problem.train)).reshape(V.shape)

    def _shaped(self, v: Tensor) -> list[Tensor]:
        parts = v.split([math.prod(p.shape) for p in self.params.values()])
        return [part.view_as(p) for part, p in zip(parts, self.params.values(), strict=True)]

    def dense(self) -> Tensor:
        """The whole matrix, (size, size)."""
        return self @ torch.eye(self.size, dtype=self.dtype, device=self.device)


def hessian(problem: Problem, params: str | list[str] | None = None) -> Hessian:
    """The Hessian of the mean training loss as an operator.

    ``params`` chooses parameters by name, glob or list of these; all of them by default.
    """
    return Hessian(problem, params)
