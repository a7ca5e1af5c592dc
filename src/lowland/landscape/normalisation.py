"""The size of a direction, by that of the weights: filter by filter, or tensor by tensor."""

from typing import Literal

import torch
from torch import Tensor, nn

from lowland.errors import InputError
from lowland.findings import Normalisation
from lowland.landscape.points import Weights
from lowland.problem import Problem

Vectors = Literal["left", "scaled"]
_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
WORDS = {
    "left": "biases, norm parameters and other vectors stay where they are",
    "scaled": "biases, norm parameters and other vectors are scaled to their own length",
    "as they are": "biases, norm parameters and other vectors as the direction has them",
}


def normalised(
    problem: Problem, direction: Weights, how: Normalisation, vectors: Vectors
) -> dict[str, Tensor]:
    """The direction with the lengths that the weights have.

    ``"filter"``: every filter of the direction gets the length of the weights' filter, as in Li et
    al. (2018): a filter is what makes one output, a row of a dense layer or embedding, the kernels
    of one output channel of a convolution. ``"layer"``: every tensor gets the length of the
    weights'. Vectors (biases, parameters of normalisations, single numbers) have no filters: they
    are ``"left"`` where they are, the direction being 0 there, or ``"scaled"`` as a whole. Where
    the weights are 0, so is the direction.
    """
    if how not in ("filter", "layer", "none"):
        raise InputError(f"normalize must be 'filter', 'layer' or 'none'; got {how!r}")
    if vectors not in ("left", "scaled"):
        raise InputError(f"vectors must be 'left' or 'scaled'; got {vectors!r}")
    if how == "none":
        return dict(direction)
    weights, transposed = problem.params, _transposed(problem.model)
    scaled: dict[str, Tensor] = {}
    for name, d in direction.items():
        w = weights[name]
        if w.ndim < 2 and vectors == "left":
            scaled[name] = torch.zeros_like(d)
        elif w.ndim < 2 or how == "layer":
            scaled[name] = d * _ratio(w.norm(), d.norm())
        else:
            lengths = (_filter_lengths(t, transposed.get(name)) for t in (w, d))
            scaled[name] = d * _ratio(*lengths)
    return scaled


def _filter_lengths(t: Tensor, groups: int | None) -> Tensor:
    """The length of each filter, in a shape that multiplies the weights.

    A transposed convolution has its inputs first, group by group, and then a group's outputs:
    (groups * in, out, ...) makes groups * out outputs.
    """
    if groups is None:
        return torch.linalg.vector_norm(t, dim=tuple(range(1, t.ndim)), keepdim=True)
    inner = t.unflatten(0, (groups, -1))  # (groups, in, out, ...)
    others = (1, *range(3, inner.ndim))
    lengths = torch.linalg.vector_norm(inner, dim=others, keepdim=True)
    return lengths.expand(-1, inner.shape[1], *[-1] * (inner.ndim - 2)).flatten(0, 1)


def _ratio(a: Tensor, b: Tensor) -> Tensor:
    return torch.where(b > 0, a / torch.where(b > 0, b, 1), 0)


def _transposed(model: nn.Module) -> dict[str, int]:
    """The weights of transposed convolutions, each with its number of groups."""
    return {
        f"{prefix}.weight".removeprefix("."): module.groups
        for prefix, module in model.named_modules()
        if isinstance(module, _TRANSPOSED)
    }
