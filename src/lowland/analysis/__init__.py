"""Everything at once: measure a problem, explain its gap, save it, show it."""

from lowland.analysis.run import analyze

__all__ = ["analyze"]
