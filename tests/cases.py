"""Small models of every kind, with data, in float64: what the oracles run on."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lowland.problem import Problem


class Residual(nn.Module):
    """A convolutional residual network with BatchNorm whose statistics are not trivial."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(2, 4, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(4)
        self.conv = nn.Conv2d(4, 4, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(4)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm1(self.stem(x)))
        x = F.relu(x + self.norm2(self.conv(x)))
        return self.head(x.mean((2, 3)))


class Transformer(nn.Module):
    """One block of attention and one of dense layers along a sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 6)
        self.norm1 = nn.LayerNorm(6)
        self.qkv = nn.Linear(6, 18)
        self.project = nn.Linear(6, 6)
        self.norm2 = nn.LayerNorm(6)
        self.up = nn.Linear(6, 8)
        self.down = nn.Linear(8, 6)
        self.head = nn.Linear(6, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        q, k, v = (
            t.unflatten(-1, (2, 3)).transpose(1, 2) for t in self.qkv(self.norm1(x)).chunk(3, -1)
        )
        attended = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        x = x + self.project(attended)
        x = x + self.down(F.gelu(self.up(self.norm2(x))))
        return self.head(x.mean(1))


class Recurrent(nn.Module):
    """An LSTM with a dense head."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(3, 4, batch_first=True)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(x)[0][:, -1])


class Tied(nn.Module):
    """Two dense layers with one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.second(F.relu(self.first(x)))))


def mlp(activation: type[nn.Module]) -> nn.Module:
    return nn.Sequential(
        nn.Linear(4, 5), activation(), nn.Linear(5, 4, bias=False), activation(), nn.Linear(4, 3)
    )


def lenet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(4, 4, 2, groups=2, stride=1, dilation=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(16, 6),
        nn.ReLU(),
        nn.Linear(6, 3),
    )


def conv1d() -> nn.Module:
    return nn.Sequential(
        nn.Conv1d(2, 4, 3, padding="same", padding_mode="circular"),
        nn.Tanh(),
        nn.Conv1d(4, 2, 2, stride=2, dilation=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(4, 3),
    )


@dataclass(frozen=True)
class Case:
    """A model and the shape of one of its inputs."""

    name: str
    build: Callable[[], nn.Module]
    inputs: Callable[[int], Tensor]

    def problem(self, n: int = 7, loss: str = "cross_entropy", **options: object) -> Problem:
        torch.manual_seed(0)
        model = self.build().double()
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.running_mean.uniform_(-0.5, 0.5)
                module.running_var.uniform_(0.5, 2)
        train, test = ((self.inputs(k), self._targets(k, loss)) for k in (n, n - 2))
        return Problem(model, loss, train, test, **{"batch_size": 3, **options})

    def _targets(self, n: int, loss: str) -> Tensor:
        if loss == "mse":
            return torch.randn(n, 3, dtype=torch.float64)
        return torch.arange(n) % 3


def _normal(*shape: int) -> Callable[[int], Tensor]:
    return lambda n: torch.randn(n, *shape, dtype=torch.float64)


CASES = {
    case.name: case
    for case in [
        Case("mlp-relu", lambda: mlp(nn.ReLU), _normal(4)),
        Case("mlp-tanh", lambda: mlp(nn.Tanh), _normal(4)),
        Case("mlp-gelu", lambda: mlp(nn.GELU), _normal(4)),
        Case("lenet", lenet, _normal(2, 6, 6)),
        Case("conv1d", conv1d, _normal(2, 6)),
        Case("resnet", Residual, _normal(2, 5, 5)),
        Case("transformer", Transformer, lambda n: torch.randint(0, 7, (n, 5))),
        Case("lstm", Recurrent, _normal(5, 3)),
        Case("tied", Tied, _normal(4)),
    ]
}


def some_fast(*fast: str) -> list[object]:
    """The names of all cases, with those that are not named left to the slow tests."""
    return [name if name in fast else pytest.param(name, marks=pytest.mark.slow) for name in CASES]


def dense_hessian(problem: Problem, names: list[str] | None = None) -> Tensor:
    """The oracle: the Hessian of the mean training loss by nested autograd, in one batch."""
    names = names or list(problem.params)
    values = [problem.params[n] for n in names]
    whole = problem.place(problem.train.take(slice(None)))

    def loss(flat: Tensor) -> Tensor:
        parts = flat.split([v.numel() for v in values])
        params = {n: p.view_as(v) for n, p, v in zip(names, parts, values, strict=True)}
        return problem.loss(problem.outputs(whole.inputs, params), whole.targets).mean()

    with problem.measuring():
        return torch.autograd.functional.hessian(loss, torch.cat([v.flatten() for v in values]))


def descend(
    model: nn.Module,
    data: tuple[Tensor, Tensor],
    steps: int,
    rate: float,
    loss: Callable[[Tensor, Tensor], Tensor] = F.cross_entropy,
    **options: float,
) -> None:
    """Train a model by so many steps of gradient descent, each on all data."""
    optimizer = torch.optim.SGD(model.parameters(), rate, **options)
    for _ in range(steps):
        optimizer.zero_grad()
        loss(model(data[0]), data[1]).backward()
        optimizer.step()
    optimizer.zero_grad()
