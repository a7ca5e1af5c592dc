"""Per-sample losses, and what each of them knows about itself."""

from lowland.losses.loss import Loss, ModelLoss
from lowland.losses.resolving import LossLike, resolve

__all__ = ["Loss", "LossLike", "ModelLoss", "resolve"]
