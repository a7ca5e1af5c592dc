"""Curvature of the training loss: exact by structure where possible, products everywhere."""

from lowland.curvature.density import Density, spectral_density
from lowland.curvature.diagonals import Diagonal, diagonal, remainder_work, seen_through, trace
from lowland.curvature.estimate import Estimate
from lowland.curvature.factored_block import LayerBlock, layer_operator, layer_operators
from lowland.curvature.forward import ForwardPass, gradients
from lowland.curvature.graph import Graph
from lowland.curvature.lanczos import Eigenpairs, eigsh
from lowland.curvature.layer_blocks import exact_diagonal, layer_hessian, layer_hessians
from lowland.curvature.layer_search import (
    Layer,
    layer,
    layers,
    matrices,
    opaque,
    outputs_of_a_sample,
    parameters,
)
from lowland.curvature.memory import give_back, samples_within
from lowland.curvature.operator import Dense, Operator, columns_within
from lowland.curvature.operators import (
    GGN,
    Curvature,
    Fisher,
    Hessian,
    Remainder,
    fisher,
    ggn,
    hessian,
)
from lowland.curvature.precision import rounding
from lowland.curvature.sample_factors import Kind, factor_bytes, factors, passes, sample_gradients
from lowland.curvature.shared_jacobians import few_outputs, fisher_moments, joint_diagonals
from lowland.curvature.spectral_numbers import (
    condition_number,
    effective_dimension,
    frobenius_norm,
    negative_eigenvalues,
)
from lowland.curvature.spectrum import ALL_EIGENVALUES, Spectrum

__all__ = [
    "ALL_EIGENVALUES",
    "GGN",
    "Curvature",
    "Dense",
    "Density",
    "Diagonal",
    "Eigenpairs",
    "Estimate",
    "Fisher",
    "ForwardPass",
    "Graph",
    "Hessian",
    "Kind",
    "Layer",
    "LayerBlock",
    "Operator",
    "Remainder",
    "Spectrum",
    "columns_within",
    "condition_number",
    "diagonal",
    "effective_dimension",
    "eigsh",
    "exact_diagonal",
    "factor_bytes",
    "factors",
    "few_outputs",
    "fisher",
    "fisher_moments",
    "frobenius_norm",
    "ggn",
    "give_back",
    "gradients",
    "hessian",
    "joint_diagonals",
    "layer",
    "layer_hessian",
    "layer_hessians",
    "layer_operator",
    "layer_operators",
    "layers",
    "matrices",
    "negative_eigenvalues",
    "opaque",
    "outputs_of_a_sample",
    "parameters",
    "passes",
    "remainder_work",
    "rounding",
    "sample_gradients",
    "samples_within",
    "seen_through",
    "spectral_density",
    "trace",
]
