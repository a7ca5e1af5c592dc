"""Activity-weight duality: from differences between data to shifts of the weights.

The room is called ``dual`` because ``lowland.duality`` is the function.
"""

from lowland.dual.choice import Choice, choose
from lowland.dual.decomposition import duality
from lowland.dual.pairing import Pairs, pair
from lowland.dual.shifts import layers_with_dual

__all__ = ["Choice", "Pairs", "choose", "duality", "layers_with_dual", "pair"]
