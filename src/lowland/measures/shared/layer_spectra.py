"""What measures of the layers' norms share: the layers, their matrices and spectral norms.

The scale of a normalisation can be multiplied, and the layer after it divided, without a change of
the function (Conv-BatchNorm-ReLU-Conv). A product over dense and convolutional layers alone would
then be any number. Such a scale is counted with the layer that follows: the product is that of the
same function with scales of 1 or -1.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from lowland.budget import Work
from lowland.curvature import Layer, layers, matrices
from lowland.errors import InputError
from lowland.measures.sharing import once
from lowland.problem import Problem
from lowland.rescaling import TRIED, Joint, joints


@once()
def matrix_layers(problem: Problem) -> list[Layer]:
    """The dense and convolutional layers; an error if there are matrices of other layers."""
    plain = [layer for layer in matrices(problem).values() if layer.is_plain]
    seen = {layer.parameter for layer in plain}
    left = [n for n, p in problem.params.items() if p.ndim > 1 and n not in seen]
    if left:
        raise InputError(
            f"{', '.join(map(repr, left[:3]))}{' and others' if len(left) > 3 else ''}: not the "
            "weight of a dense or convolutional layer that is used once, so a product over layers "
            "would leave it out"
        )
    if not plain:
        raise InputError("the model has no dense or convolutional layer")
    return plain


def _has_scales(problem: Problem) -> bool:
    return any(layer.operation == "normalisation" for layer in layers(problem).values())


def _trials(problem: Problem) -> Work:
    """A pass over some samples for each layer that a scale may be moved into.

    Where the layers are refused nothing is tried, and the error that says so costs nothing.
    """
    trials = 1 + len(matrix_layers(problem))
    if not _has_scales(problem):
        return Work()
    return Work(forwards=trials * min(1.0, TRIED / problem.count()))


@once(_trials)
def scaled(problem: Problem) -> list[Joint]:
    """Normalisations whose scale can be moved into the layer that follows."""
    if not _has_scales(problem):
        return []
    return [joint for joint in joints(problem) if not joint.source.is_matrix]


def layer_matrices(problem: Problem, params: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Each layer's weight as matrices (groups, out, in), with the scale that stands before it."""
    every = matrix_layers(problem)  # refused, if at all, before joints are tried
    weights = {name: p.double() for name, p in params.items()}
    for joint in scaled(problem):
        scale = weights[joint.source.parameter].abs()
        weights = joint.rescaled(weights, 1 / torch.where(scale > 0, scale, 1))
    return {layer.name: layer.matrix(weights[layer.parameter].flatten()) for layer in every}


def _svd_work(problem: Problem) -> Work:
    """A singular value decomposition for each matrix."""
    shapes = [layer.shape for layer in matrix_layers(problem)]
    flops = sum(8 * g * out * i * min(out, i) for g, out, i in shapes)
    return Work(flops=flops, needs=(matrix_layers, scaled))


@once(_svd_work)
def spectral(problem: Problem) -> dict[str, float]:
    """Each layer's largest singular value, that of its largest group for a grouped convolution."""
    return {
        name: float(torch.linalg.matrix_norm(matrix, ord=2).max())
        for name, matrix in layer_matrices(problem, problem.params).items()
    }
