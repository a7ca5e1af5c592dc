"""Measures of flatness and generalisation, one file each."""

from lowland.measures.convergence import (
    CONVERGENCE_WORK,
    constant_prediction,
    convergence,
    convergence_by_loss,
)
from lowland.measures.measuring import OUTCOME, Measurement, Measurements, Measuring, measure
from lowland.measures.planning import Copies, Task
from lowland.measures.registry import (
    FAMILIES,
    TRANSFORMATIONS,
    Measure,
    chosen_measures,
    registered,
)
from lowland.measures.schedule import Progress, Schedule, silent
from lowland.measures.shared.decomposed import decomposition
from lowland.measures.shared.spectrum import whole_spectrum
from lowland.measures.sharing import share, sharing
from lowland.measures.stressed import Stress, stress
from lowland.measures.subsets import Subset, stratified

__all__ = [
    "CONVERGENCE_WORK",
    "FAMILIES",
    "OUTCOME",
    "TRANSFORMATIONS",
    "Copies",
    "Measure",
    "Measurement",
    "Measurements",
    "Measuring",
    "Progress",
    "Schedule",
    "Stress",
    "Subset",
    "Task",
    "chosen_measures",
    "constant_prediction",
    "convergence",
    "convergence_by_loss",
    "decomposition",
    "measure",
    "registered",
    "share",
    "sharing",
    "silent",
    "stratified",
    "stress",
    "whole_spectrum",
]
