"""Activity-weight duality: from differences between data to shifts of the weights."""

from lowland.duality.decomposition import Decomposition, duality

__all__ = ["Decomposition", "duality"]
