"""Hessians of the training loss: exact layer blocks by structure, and products with the whole."""

from lowland.curvature.exact import exact_diagonal as diagonal
from lowland.curvature.exact import layer_hessian
from lowland.curvature.lanczos import Eigenpairs, eigsh
from lowland.curvature.operators import Hessian, hessian

__all__ = ["Eigenpairs", "Hessian", "diagonal", "eigsh", "hessian", "layer_hessian"]
