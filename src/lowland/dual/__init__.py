"""Activity-weight duality: from differences between data to shifts of the weights.

The room is called ``dual`` because ``lowland.duality`` is the function.
"""

from lowland.dual.basis import ALL_DIRECTIONS
from lowland.dual.choice import Choice, choose, expected_duals, far_from_dual, usual
from lowland.dual.decomposition import Rule, duality
from lowland.dual.expansion import obstacle
from lowland.dual.injection import Shifted
from lowland.dual.matching import Matching
from lowland.dual.mean_shift import mean_shift
from lowland.dual.output_shifts import output_shifts
from lowland.dual.pairing import Pairs, pair
from lowland.dual.shifts import (
    AskedDual,
    dual_shifts,
    layer_with_dual,
    layers_with_dual,
    not_one_matrix,
)
from lowland.dual.work import pairing_work, split_work

__all__ = [
    "ALL_DIRECTIONS",
    "AskedDual",
    "Choice",
    "Matching",
    "Pairs",
    "Rule",
    "Shifted",
    "choose",
    "dual_shifts",
    "duality",
    "expected_duals",
    "far_from_dual",
    "layer_with_dual",
    "layers_with_dual",
    "mean_shift",
    "not_one_matrix",
    "obstacle",
    "output_shifts",
    "pair",
    "pairing_work",
    "split_work",
    "usual",
]
