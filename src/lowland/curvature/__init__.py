"""Curvature of the training loss: exact by structure where possible, products everywhere."""

from lowland.curvature.density import Density, spectral_density
from lowland.curvature.diagonals import Diagonal, diagonal, trace
from lowland.curvature.estimate import Estimate
from lowland.curvature.factored_block import LayerBlock, layer_operator
from lowland.curvature.lanczos import Eigenpairs, eigsh
from lowland.curvature.layer_blocks import layer_hessian
from lowland.curvature.operator import Dense
from lowland.curvature.operators import GGN, Fisher, Hessian, fisher, ggn, hessian
from lowland.curvature.spectral_numbers import (
    condition_number,
    effective_dimension,
    frobenius_norm,
    negative_eigenvalues,
)
from lowland.curvature.spectrum import Spectrum

__all__ = [
    "GGN",
    "Dense",
    "Density",
    "Diagonal",
    "Eigenpairs",
    "Estimate",
    "Fisher",
    "Hessian",
    "LayerBlock",
    "Spectrum",
    "condition_number",
    "diagonal",
    "effective_dimension",
    "eigsh",
    "fisher",
    "frobenius_norm",
    "ggn",
    "hessian",
    "layer_hessian",
    "layer_operator",
    "negative_eigenvalues",
    "spectral_density",
    "trace",
]
