"""What measures of the layers' norms share: the layers that have one, and their spectral norms."""

import torch

from lowland.curvature import (
    Layer,
    matrices,
)
from lowland.errors import InputError
from lowland.measures.sharing import once
from lowland.problem import Problem


@once
def matrix_layers(problem: Problem) -> list[Layer]:
    """The dense and convolutional layers; an error where other weights are more than scales."""
    plain = [at for at in matrices(problem).values() if at.is_plain]
    seen = {at.parameter for at in plain}
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


@once
def spectral(problem: Problem) -> dict[str, float]:
    """Each layer's largest singular value, that of its largest group for a grouped convolution."""
    return {
        at.name: float(
            torch.linalg.matrix_norm(
                at.matrix(problem.params[at.parameter].double().flatten()), ord=2
            ).max()
        )
        for at in matrix_layers(problem)
    }
