"""Measures of flatness and generalisation, one file each."""

from lowland.measures.registry import Measure, Measurement, Measurements, measure, registered
from lowland.measures.stressed import Stress, stress

__all__ = [
    "Measure",
    "Measurement",
    "Measurements",
    "Stress",
    "measure",
    "registered",
    "stress",
]
