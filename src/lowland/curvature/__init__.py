"""Curvature of the training loss: exact by structure where possible, products everywhere."""

from lowland.curvature.block import LayerBlock, layer_operator
from lowland.curvature.exact import diagonal, layer_hessian
from lowland.curvature.lanczos import Dense, Eigenpairs, eigsh
from lowland.curvature.operators import GGN, Fisher, Hessian, fisher, ggn, hessian

__all__ = [
    "GGN",
    "Dense",
    "Eigenpairs",
    "Fisher",
    "Hessian",
    "LayerBlock",
    "diagonal",
    "eigsh",
    "fisher",
    "ggn",
    "hessian",
    "layer_hessian",
    "layer_operator",
]
