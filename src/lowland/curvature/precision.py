"""How far rounding reaches in products with a matrix."""

import torch


def rounding(dtype: torch.dtype) -> float:
    """Residuals below this share of the norm of A are rounding errors of the products."""
    return 10 * torch.finfo(dtype).eps
