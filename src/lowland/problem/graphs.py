"""What autograd saves for the graph of a sample."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from lowland.batches import Batch

if TYPE_CHECKING:
    from lowland.problem.evaluation import Evaluation


def graph_bytes(problem: "Evaluation", build: Callable[[Batch], Any]) -> int:
    """The bytes per sample that autograd saves for the graph that ``build`` makes of a batch."""
    bytes_of_one, bytes_of_two = (_saved(problem, build, problem.first(count)) for count in (1, 2))
    return (
        max(bytes_of_two - bytes_of_one, 1) if len(problem.first(2)) > 1 else max(bytes_of_one, 1)
    )  # the difference leaves out parameters


def _saved(problem: "Evaluation", build: Callable[[Batch], Any], batch: Batch) -> int:
    sizes: dict[int, int] = {}
    stored = problem.stored

    def note(t: Tensor) -> Any:
        packed = t if stored is None else stored.pack(t)
        if packed is t:
            sizes[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
        return packed

    def unpack(packed: Any) -> Tensor:
        return packed if stored is None else stored.unpack(packed)

    with torch.autograd.graph.saved_tensors_hooks(note, unpack):
        graph = build(batch)  # kept alive until its tensors are counted
    del graph
    return sum(sizes.values())
