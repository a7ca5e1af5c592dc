"""Optimisers that look for flat minima, around any torch optimiser.

Schedules are PyTorch's own: ``torch.optim.lr_scheduler`` works with all of these.
"""

from lowland.optim.average import WeightAverage
from lowland.optim.entropy import EntropySGD
from lowland.optim.ivon import IVON
from lowland.optim.kin import FriendlySAM, FunctionalSAM, LookSAM
from lowland.optim.replicated import ReplicatedSGD
from lowland.optim.sam import ASAM, SAM, norms_only

__all__ = [
    "ASAM",
    "IVON",
    "SAM",
    "EntropySGD",
    "FriendlySAM",
    "FunctionalSAM",
    "LookSAM",
    "ReplicatedSGD",
    "WeightAverage",
    "norms_only",
]
