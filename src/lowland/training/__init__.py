"""Making minima: networks, and how they are trained, one or many at a time."""

from lowland.training.loop import train
from lowland.training.many import train_many
from lowland.training.networks import lenet, mlp
from lowland.training.runs import TrainingProgress
from lowland.training.settings import METHODS, Epoch, Training, TrainingSettings

__all__ = [
    "METHODS",
    "Epoch",
    "Training",
    "TrainingProgress",
    "TrainingSettings",
    "lenet",
    "mlp",
    "train",
    "train_many",
]
