"""Sums over data-parallel ranks; a single process is a sum of one."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def total(local: Tensor) -> Tensor:
    """The sum of ``local`` over all ranks, on every rank; one all-reduce."""
    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        local = local.contiguous()
        dist.all_reduce(local)
    return local


def most(local: int) -> int:
    """The largest of a number over all ranks, on every rank."""
    value = torch.tensor(local)
    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        dist.all_reduce(value, dist.ReduceOp.MAX)
    return int(value)


def of_first_rank(value: Any) -> Any:
    """The first rank's value, on every rank."""
    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        values = [value]
        dist.broadcast_object_list(values)
        return values[0]
    return value


def total_count(local: int) -> int:
    """The sum of a sample count over all ranks."""
    return int(total(torch.tensor(local)))
