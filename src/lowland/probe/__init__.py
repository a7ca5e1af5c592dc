"""Curvature inside a training loop, for a few per cent of its time and without a trace."""

from lowland.probe.probe import Probe

__all__ = ["Probe"]
