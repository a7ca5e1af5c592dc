"""How far errors reach in products with a matrix."""

import torch

from lowland.curvature.operator import Operator


def rounding(dtype: torch.dtype) -> float:
    """The share of A's norm below which residuals are rounding errors of the products."""
    return 10 * torch.finfo(dtype).eps


def precision(A: Operator) -> float:
    """The same share for an operator; larger if its products are finite differences."""
    return max(rounding(A.dtype), getattr(A, "precision", 0.0))


def exactness(A: Operator) -> str:
    """ "exact" for numbers from products with a whole basis, or why they are not."""
    if precision(A) <= rounding(A.dtype):
        return "exact"
    return f"a whole basis, {getattr(A, 'strategy', 'products that are not exact')}"
