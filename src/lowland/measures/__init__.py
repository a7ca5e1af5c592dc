"""Measures of flatness and generalisation, one file each."""

from lowland.measures.registry import Measure, Measurement, Measurements, measure, registered

__all__ = ["Measure", "Measurement", "Measurements", "measure", "registered"]
