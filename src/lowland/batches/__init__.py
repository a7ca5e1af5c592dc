"""Train or test data, read in one fixed order whatever it came as."""

from lowland.batches.batch import OWN_LOSS, Batch, Both, Form, Inputs, arguments
from lowland.batches.data import HELD_BYTES, Batches

__all__ = ["HELD_BYTES", "OWN_LOSS", "Batch", "Batches", "Both", "Form", "Inputs", "arguments"]
