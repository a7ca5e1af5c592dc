"""Small networks of several kinds, trained a little or not, for statements about many of them."""

import itertools
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import lowland as ll
from lowland.problem import Problem

N = 60


@dataclass(frozen=True)
class Kind:
    """What distinguishes one network from another."""

    conv: bool
    activation: type[nn.Module]
    norm: bool  # BatchNorm, measured in eval mode
    loss: str
    epochs: int
    factor: float  # by which the units are rescaled

    def problem(self, seed: int, width: int = 9) -> Problem:
        """The network on data of its own, in float64."""
        X, y = self._data(seed)
        torch.manual_seed(seed)
        model = self._model(width).double()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        loss = F.mse_loss if self.loss == "mse" else F.cross_entropy
        model(X)  # statistics of its own for BatchNorm
        for _ in range(self.epochs):
            optimizer.zero_grad()
            loss(model(X), y).backward()
            optimizer.step()
        problem = Problem(model.eval(), self.loss, train=(X, y))
        return problem if self.factor == 1 else ll.rescale(problem, "units", self.factor)

    def _data(self, seed: int) -> tuple[Tensor, Tensor]:
        g = torch.Generator().manual_seed(seed)
        shape = (1, 5, 5) if self.conv else (8,)
        y = torch.arange(N) % 3
        means = torch.randn(3, *shape, generator=g, dtype=torch.float64)
        X = means[y] + 1.2 * torch.randn(N, *shape, generator=g, dtype=torch.float64)
        return X, F.one_hot(y, 3).double() if self.loss == "mse" else y

    def _model(self, width: int) -> nn.Sequential:
        def block(layer: nn.Module) -> list[nn.Module]:
            channels = layer.weight.shape[0]
            normed = nn.BatchNorm2d(channels) if self.conv else nn.BatchNorm1d(channels)
            return [layer, *([normed] if self.norm else []), self.activation()]

        if self.conv:
            first, second = nn.Conv2d(1, 5, 3), nn.Conv2d(5, width - 3, 2)
            return nn.Sequential(
                *block(first), *block(second), nn.Flatten(), nn.Linear(4 * (width - 3), 3)
            )
        return nn.Sequential(
            *block(nn.Linear(8, width)), *block(nn.Linear(width, width)), nn.Linear(width, 3)
        )


def dense_matrices(problem: Problem) -> tuple[Tensor, Tensor]:
    """Hessian and GGN by torch.func alone, every row at once."""
    batch = problem.train.take(slice(None))
    shapes = {name: p.shape for name, p in problem.params.items()}

    def outputs(w: Tensor) -> Tensor:
        parts = w.split([shape.numel() for shape in shapes.values()])
        params = {name: p.view(s) for (name, s), p in zip(shapes.items(), parts, strict=True)}
        return torch.func.functional_call(problem.model, params, (batch.inputs,))

    def loss(z: Tensor) -> Tensor:
        return problem.loss(z, batch.targets).mean()

    w = torch.cat([p.flatten() for p in problem.params.values()])
    H = torch.func.jacrev(torch.func.jacrev(lambda w: loss(outputs(w))))(w)
    J = torch.func.jacrev(outputs)(w).flatten(0, 1)  # (N C, n)
    A = torch.func.hessian(loss)(outputs(w)).flatten(0, 1).flatten(1)  # (N C, N C)
    return H, J.T @ A @ J


KINDS = [
    Kind(conv, activation, norm, "cross_entropy", epochs, 1.0)
    for conv, activation, norm, epochs in itertools.product(
        (False, True), (nn.ReLU, nn.Tanh), (False, True), (0, 80)
    )
]
KINDS += [
    Kind(False, activation, False, "mse", epochs, 1.0)
    for activation, epochs in itertools.product((nn.ReLU, nn.Tanh), (0, 80))
]
KINDS += [Kind(False, nn.ReLU, False, "cross_entropy", epochs, 10.0) for epochs in (0, 80)]
