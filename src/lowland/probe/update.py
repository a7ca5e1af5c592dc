"""The directions along which a training may go: its optimiser's last update, or the gradient."""

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from lowland.errors import InputError
from lowland.problem import Problem


class Along(Mapping[str, Tensor]):
    """Parameters at ``start + size (end - start)``, each made when it is read.

    Of a sharded model every rank holds its shards of both ends, and one parameter at a time is
    whole.
    """

    def __init__(
        self,
        start: Mapping[str, Tensor],
        end: Mapping[str, Tensor],
        size: float,
        dtype: torch.dtype,
    ) -> None:
        self.start, self.end, self.size, self.dtype = start, end, size, dtype

    def __getitem__(self, name: str) -> Tensor:
        start, end = (t[name].to(self.dtype) for t in (self.start, self.end))
        moved = start + self.size * (end - start)
        return moved.full_tensor() if hasattr(moved, "full_tensor") else moved

    def __iter__(self) -> Iterator[str]:
        return iter(self.start)

    def __len__(self) -> int:
        return len(self.start)


def weights(model: nn.Module, problem: Problem) -> dict[str, Tensor]:
    """The model's measured parameters as they are, shards or whole, sharing its memory."""
    own = dict(model.named_parameters())
    return {name: own[name].detach() for name in problem.select()}


class Before:
    """Weights and learning rate before an update, which is known once it has happened."""

    def __init__(self, step: int, weights: Mapping[str, Tensor], learning_rate: float) -> None:
        self.step, self.learning_rate = step, learning_rate
        self.weights = {name: t.clone() for name, t in weights.items()}


def learning_rate(optimizer: torch.optim.Optimizer) -> float:
    """The learning rate of the first group."""
    return float(optimizer.param_groups[0]["lr"])


def check_optimizer(optimizer: object, model: nn.Module) -> None:
    """An error unless it is an optimiser of this model with a learning rate."""
    groups = getattr(optimizer, "param_groups", None)
    if not groups or "lr" not in groups[0]:
        raise InputError(
            "optimizer must be one of torch.optim's kind, with a learning rate in its groups; got "
            f"{type(optimizer).__name__}"
        )
    own = {id(p) for p in model.parameters()}
    if not any(id(p) in own for group in groups for p in group["params"]):
        raise InputError(
            "the optimizer has none of the model's parameters; pass the one that trains this model "
            "(made after the model was sharded or moved)"
        )
