"""Measures of flatness and generalisation, one file each."""

from lowland.measures.convergence import convergence
from lowland.measures.registry import (
    Measure,
    Measurement,
    Measurements,
    Measuring,
    chosen_measures,
    measure,
    registered,
)
from lowland.measures.schedule import Progress, Schedule, silent
from lowland.measures.shared.decomposed import decomposition
from lowland.measures.sharing import share, sharing
from lowland.measures.stressed import Stress, stress

__all__ = [
    "Measure",
    "Measurement",
    "Measurements",
    "Measuring",
    "Progress",
    "Schedule",
    "Stress",
    "chosen_measures",
    "convergence",
    "decomposition",
    "measure",
    "registered",
    "share",
    "sharing",
    "silent",
    "stress",
]
