"""How far errors reach in products with a matrix."""

import torch

from lowland.curvature.operator import Operator


def rounding(dtype: torch.dtype) -> float:
    """Residuals below this share of the norm of A are rounding errors of the products."""
    return 10 * torch.finfo(dtype).eps


def precision(A: Operator) -> float:
    """The same of an operator, whose products may be differences and not exact to rounding."""
    return max(rounding(A.dtype), getattr(A, "precision", 0.0))


def exactness(A: Operator) -> str:
    """What may be said of numbers that a whole basis of products gives: exact, or how not."""
    if precision(A) <= rounding(A.dtype):
        return "exact"
    return f"a whole basis, {getattr(A, 'strategy', 'products that are not exact')}"
