"""Activity-weight duality: from differences between data to shifts of the weights.

The room is called ``dual`` because ``lowland.duality`` is the function.
"""

from lowland.dual.decomposition import Decomposition, Decompositions, duality
from lowland.dual.pairing import Pairs, pair

__all__ = ["Decomposition", "Decompositions", "Pairs", "duality", "pair"]
