"""The data of runs that train together, of which each sees rows of its own."""

from collections.abc import Sequence

import torch
from torch import Tensor

from lowland.training.loop import Data


class SharedData:
    """The data of some runs; tensors that several of them share are held and read once."""

    def __init__(self, pairs: Sequence[Data]) -> None:
        self.inputs, self.inputs_of = distinct([X for X, _ in pairs])
        self.targets, self.targets_of = distinct([y for _, y in pairs])

    def rows(self, rows: Tensor) -> Data:
        """Inputs and targets of each run, for rows of its own (runs, batch)."""
        return _taken(self.inputs, self.inputs_of, rows), _taken(
            self.targets, self.targets_of, rows
        )

    def slices(self, rows: Tensor) -> Data:
        """Inputs and targets of the same rows for all; inputs that all share as (1, batch, ...)."""
        same = rows.expand(len(self.inputs_of), -1)
        x = self.inputs[0][rows].unsqueeze(0) if len(self.inputs) == 1 else None
        return (
            _taken(self.inputs, self.inputs_of, same) if x is None else x,
            _taken(self.targets, self.targets_of, same),
        )


def distinct(tensors: Sequence[Tensor]) -> tuple[list[Tensor], list[int]]:
    """The different tensors, and which of them each run has."""
    places: dict[int, int] = {}
    kept: list[Tensor] = []
    for t in tensors:
        if id(t) not in places:
            places[id(t)] = len(kept)
            kept.append(t)
    return kept, [places[id(t)] for t in tensors]


def _taken(tensors: list[Tensor], of: list[int], rows: Tensor) -> Tensor:
    rows = rows.to(tensors[0].device)
    if len(tensors) == 1:
        return tensors[0].index_select(0, rows.flatten()).unflatten(0, rows.shape)
    return torch.stack([tensors[i][own] for i, own in zip(of, rows, strict=True)])
