"""Activity-weight duality: from differences between data to shifts of the weights.

The room is called ``dual`` because ``lowland.duality`` is the function.
"""

from lowland.dual.basis import ALL_DIRECTIONS
from lowland.dual.choice import Choice, choose, far_from_dual, usual
from lowland.dual.decomposition import Rule, duality
from lowland.dual.pairing import Pairs, pair
from lowland.dual.shifts import layer_with_dual, layers_with_dual
from lowland.dual.work import pairing_work, split_work

__all__ = [
    "ALL_DIRECTIONS",
    "Choice",
    "Pairs",
    "Rule",
    "choose",
    "duality",
    "far_from_dual",
    "layer_with_dual",
    "layers_with_dual",
    "pair",
    "pairing_work",
    "split_work",
    "usual",
]
