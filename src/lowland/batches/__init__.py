"""Train or test data, read in one fixed order whatever it came as."""

from lowland.batches.batch import Batch, Inputs
from lowland.batches.data import HELD_BYTES, Batches

__all__ = ["HELD_BYTES", "Batch", "Batches", "Inputs"]
