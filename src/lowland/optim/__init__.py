"""Optimisers that look for flat minima, around any torch optimiser.

Weight averaging and cyclical schedules are PyTorch's own: ``torch.optim.swa_utils`` and
``torch.optim.lr_scheduler`` work with all of these.
"""

from lowland.optim.entropy import EntropySGD
from lowland.optim.replicated import ReplicatedSGD
from lowland.optim.sam import ASAM, SAM

__all__ = ["ASAM", "SAM", "EntropySGD", "ReplicatedSGD"]
