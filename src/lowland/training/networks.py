"""Networks of the papers, initialised as they say."""

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, nn

from lowland.errors import InputError

Init = Literal["xavier", "torch"]
DropoutLayers = Literal["hidden", "first"]


def mlp(
    sizes: tuple[int, ...] = (784, 30, 30, 10),
    *,
    bias: bool = False,
    scale: float = 1.0,
    dropout: float = 0.0,
    dropout_layers: DropoutLayers = "hidden",
    init: Init = "xavier",
    seed: int = 0,
) -> nn.Sequential:
    """A ReLU network with Xavier-uniform weights times ``scale`` (Feng & Tu, Methods).

    The paper does not mention biases and its authors' demo has none. Layers with a weight are
    called ``"1"``, ``"3"``, ...: ``"0"`` flattens images. ``dropout`` is that of the hidden units,
    or of the ``"first"`` hidden layer only, as in the demo; behind each the names count one more.
    ``init="torch"`` takes the weights that a layer of PyTorch has by default, times ``scale``, as
    the demo does.
    """
    if len(sizes) < 2 or min(sizes) < 1:
        raise InputError(
            f"an MLP needs at least an input and an output size, all >= 1; got {sizes}"
        )
    last = len(sizes) - 2
    modules: list[nn.Module] = [nn.Flatten()]
    for i, (before, after) in enumerate(pairwise(sizes)):
        modules.append(nn.utils.skip_init(nn.Linear, before, after, bias=bias))
        if i < last:
            modules.append(nn.ReLU())
        if dropout and i < last and (i == 0 or dropout_layers == "hidden"):
            modules.append(nn.Dropout(dropout))
    return _initialised(nn.Sequential(*modules), init, scale, seed)


def lenet(
    shape: tuple[int, int, int] = (1, 28, 28),
    classes: int = 10,
    *,
    hidden: tuple[int, ...] = (120, 84),
    padding: int = 2,
    bias: bool = True,
    scale: float = 1.0,
    dropout: float = 0.0,
    dropout_layers: DropoutLayers = "hidden",
    init: Init = "xavier",
    seed: int = 0,
) -> nn.Sequential:
    """LeNet-5 with ReLU and max-pooling: 6 and 16 channels of 5 x 5, then dense layers.

    ``shape`` is that of an image, whose size the first convolution keeps by ``padding``;
    ``dropout`` acts on the ``hidden`` dense layers, or the first of them, and weights begin as in
    :func:`mlp`. Feng & Tu's network for CIFAR-10 has ``hidden=(120, 25)`` and ``padding=0``.
    """
    channels, height, width = shape
    rows, columns = (((side + 2 * padding - 4) // 2 - 4) // 2 for side in (height, width))
    if min(rows, columns) < 1:
        raise InputError(
            f"LeNet needs images of {16 - 2 * padding} x {16 - 2 * padding} pixels or more; got "
            f"{height} x {width}"
        )
    convolutions = [
        nn.utils.skip_init(nn.Conv2d, channels, 6, 5, padding=padding, bias=bias),
        nn.utils.skip_init(nn.Conv2d, 6, 16, 5, bias=bias),
    ]
    modules: list[nn.Module] = []
    for convolution in convolutions:
        modules += [convolution, nn.ReLU(), nn.MaxPool2d(2)]
    dense = mlp(
        (16 * rows * columns, *hidden, classes),
        bias=bias,
        dropout=dropout,
        dropout_layers=dropout_layers,
    )
    return _initialised(nn.Sequential(*modules, *dense), init, scale, seed)


def _initialised(network: nn.Sequential, init: Init, scale: float, seed: int) -> nn.Sequential:
    """The network with initial weights from the seed."""
    generator = torch.Generator().manual_seed(seed)
    ways: dict[str, Callable[[nn.Linear | nn.Conv2d, float, torch.Generator], None]] = {
        "xavier": _xavier,
        "torch": _torch_default,
    }
    for module in network:
        if isinstance(module, nn.Linear | nn.Conv2d):
            ways[init](module, scale, generator)
    return network


def _xavier(layer: nn.Linear | nn.Conv2d, scale: float, generator: torch.Generator) -> None:
    nn.init.xavier_uniform_(layer.weight, gain=scale, generator=generator)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)


def _torch_default(layer: nn.Linear | nn.Conv2d, scale: float, generator: torch.Generator) -> None:
    """Uniform within 1 / sqrt(number of inputs), biases as well, and all of it times ``scale``."""
    bound = scale / math.sqrt(layer.weight[0].numel())
    parameters: list[Tensor] = [layer.weight, *([] if layer.bias is None else [layer.bias])]
    for parameter in parameters:
        nn.init.uniform_(parameter, -bound, bound, generator=generator)
