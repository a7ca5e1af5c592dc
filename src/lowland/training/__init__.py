"""Making minima: networks and how they are trained."""

from lowland.training.networks import mlp
from lowland.training.sgd import Training, TrainingSettings, train

__all__ = ["Training", "TrainingSettings", "mlp", "train"]
