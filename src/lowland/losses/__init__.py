"""Per-sample losses, and what each of them knows about itself."""

from lowland.losses.classes import ClassLoss, class_axis
from lowland.losses.loss import Loss, ModelLoss, OwnLoss
from lowland.losses.resolving import LossLike, resolve

__all__ = ["ClassLoss", "Loss", "LossLike", "ModelLoss", "OwnLoss", "class_axis", "resolve"]
