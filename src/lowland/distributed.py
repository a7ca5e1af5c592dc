"""Sums over data-parallel ranks; a single process is a sum of one."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def ranks() -> int:
    """How many processes share the data."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def is_first_rank() -> bool:
    """Whether this process is the one that writes for all."""
    return ranks() == 1 or dist.get_rank() == 0


def total(local: Tensor) -> Tensor:
    """The sum of ``local`` over all ranks, on every rank; one all-reduce."""
    if ranks() > 1:
        local = local.contiguous()
        dist.all_reduce(local)
    return local


def most(local: int) -> int:
    """The largest of a number over all ranks, on every rank."""
    value = torch.tensor(local)
    if ranks() > 1:
        dist.all_reduce(value, dist.ReduceOp.MAX)
    return int(value)


def gathered(local: Tensor) -> Tensor:
    """The tensors of all ranks, one after the other along the first dimension, on every rank."""
    if ranks() == 1:
        return local
    parts: list[Any] = [None] * ranks()
    dist.all_gather_object(parts, local.cpu())
    return torch.cat(parts).to(local.device)


def of_first_rank(value: Any) -> Any:
    """The first rank's value, on every rank."""
    if ranks() > 1:
        values = [value]
        dist.broadcast_object_list(values)
        return values[0]
    return value


def before(local: int) -> int:
    """The sum of a count over the ranks before this one: where its own samples begin."""
    if ranks() == 1:
        return 0
    return int(gathered(torch.tensor([local]))[: dist.get_rank()].sum())


def total_count(local: int) -> int:
    """The sum of a sample count over all ranks."""
    return int(total(torch.tensor(local)))
