"""Measures of flatness and generalisation, one file each."""

from lowland.measures.convergence import convergence
from lowland.measures.registry import Measure, Measurement, Measurements, measure, registered
from lowland.measures.sharing import sharing
from lowland.measures.stressed import Stress, stress

__all__ = [
    "Measure",
    "Measurement",
    "Measurements",
    "Stress",
    "convergence",
    "measure",
    "registered",
    "sharing",
    "stress",
]
