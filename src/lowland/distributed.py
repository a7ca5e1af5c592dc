"""Sums over data-parallel ranks; a single process is a sum of one."""

import torch
import torch.distributed as dist
from torch import Tensor


def alone() -> bool:
    """Whether there are no other ranks."""
    return not (dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1)


def total(local: Tensor) -> Tensor:
    """The sum of ``local`` over all ranks, on every rank; one all-reduce."""
    if not alone():
        local = local.contiguous()
        dist.all_reduce(local)
    return local


def total_count(local: int) -> int:
    """The sum of a sample count over all ranks."""
    return int(total(torch.tensor(local)))
