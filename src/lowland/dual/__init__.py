"""Activity-weight duality: from differences between data to shifts of the weights.

The room is called ``dual`` because ``lowland.duality`` is the function.
"""

from lowland.dual.basis import ALL_DIRECTIONS
from lowland.dual.choice import Choice, choose, expected_duals, far_from_dual, usual
from lowland.dual.decomposition import Rule, duality
from lowland.dual.expansion import obstacle
from lowland.dual.mean_shift import mean_shift
from lowland.dual.pairing import Pairs, pair
from lowland.dual.shifts import AskedDual, layer_with_dual, layers_with_dual, not_one_matrix
from lowland.dual.work import pairing_work, split_work

__all__ = [
    "ALL_DIRECTIONS",
    "AskedDual",
    "Choice",
    "Pairs",
    "Rule",
    "choose",
    "duality",
    "expected_duals",
    "far_from_dual",
    "layer_with_dual",
    "layers_with_dual",
    "mean_shift",
    "not_one_matrix",
    "obstacle",
    "pair",
    "pairing_work",
    "split_work",
    "usual",
]
