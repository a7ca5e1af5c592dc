"""A use of a parameter: one operation of the forward pass that it enters linearly.

Two products cover what networks do with their parameters. A dense layer, a convolution or an
embedding multiplies matrices, ``a = W x`` at each of its positions; a normalisation, an elementwise
scale or a bias multiplies entry by entry, ``a = w * x`` (a bias has ``x = 1``). Either way the
gradient of anything with respect to the parameter follows from x and from its gradient with respect
to a, sample by sample: that is all that exact curvature and the duality need to know of a layer.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Product:
    """What an operation does with one of its arguments, in terms of rows and positions.

    Rows are the finest parts that an operation treats alike (the rows of a matrix, the images of a
    convolution), R of them with T positions each. Which sample a row belongs to is found later.
    """

    operation: str  # what a user would call it
    x: Tensor  # what multiplies the argument: (R, T, G, in) for matrices, (R, T, m) by entries
    rows: Callable[[Tensor], Tensor]  # (C, *outputs) -> (C, R, T, G, out) or (C, R, T, m)
    entries: Callable[[Tensor], Tensor]  # the argument -> (G, out, in) or (m,)
    constant: bool = False  # whether x depends on nothing, as for what is only added


@dataclass(frozen=True)
class Use:
    """One use of a parameter in one forward pass."""

    operation: str  # dense, convolution, embedding, normalisation, scale, shift
    node: Any  # in the autograd graph
    x: Tensor
    rows: Callable[[Tensor], Tensor]
    places: Tensor  # where the use's own weights lie in the flat parameter: (G, out, in) or (m,)
    in_series: bool  # whether x depends on the parameter itself

    @property
    def output_shape(self) -> torch.Size:
        """The shape of what comes out."""
        return output_shape(self.node)


Recogniser = Callable[[Any, torch.Size], "Product | None"]
_RECOGNISERS: dict[tuple[str, int], Recogniser] = {}


def use_of(node: str, argument: int) -> Callable[[Recogniser], Recogniser]:
    """Declare how an operation uses one of its arguments.

    The function gets the operation in the autograd graph and the shape of that argument. It
    returns a :class:`Product`, or None where the operation is not linear in the argument.

    Args:
        node: the operation's name in the autograd graph, such as ``"AddmmBackward0"``.
        argument: the position of the parameter among the operation's differentiable arguments.
    """

    def add(recogniser: Recogniser) -> Recogniser:
        _RECOGNISERS[node, argument] = recogniser
        return recogniser

    return add


def product(node: Any, argument: int, shape: torch.Size) -> Product | None:
    """What the operation does with its argument; None where that is not known."""
    recogniser = _RECOGNISERS.get((node.name(), argument))
    return recogniser(node, shape) if recogniser is not None else None


def output_shape(node: Any) -> torch.Size:
    """The shape of what the operation returned."""
    return torch.Size(node._input_metadata[0].shape)
