"""Networks of the papers, initialised as they say."""

from itertools import pairwise

import torch
from torch import nn

from lowland.errors import InputError


def mlp(
    sizes: tuple[int, ...] = (784, 30, 30, 10),
    *,
    bias: bool = False,
    scale: float = 1.0,
    dropout: float = 0.0,
    seed: int = 0,
) -> nn.Sequential:
    """A ReLU network with Xavier-uniform weights times ``scale`` (Feng & Tu, Methods).

    The paper does not mention biases and its authors' demo has none. Layers with a weight are
    called ``"1"``, ``"3"``, ...: ``"0"`` flattens images. ``dropout`` is that of the hidden units;
    with it the names are ``"1"``, ``"4"``, ...
    """
    if len(sizes) < 2 or min(sizes) < 1:
        raise InputError(
            f"an MLP needs at least an input and an output size, all >= 1; got {sizes}"
        )
    modules: list[nn.Module] = [nn.Flatten()]
    for before, after in pairwise(sizes):
        modules += [nn.utils.skip_init(nn.Linear, before, after, bias=bias), nn.ReLU()]
        if dropout:
            modules.append(nn.Dropout(dropout))
    network = nn.Sequential(*modules[: -2 if dropout else -1])
    return _xavier(network, scale, seed)


def lenet(
    shape: tuple[int, int, int] = (1, 28, 28),
    classes: int = 10,
    *,
    hidden: tuple[int, ...] = (120, 84),
    padding: int = 2,
    bias: bool = True,
    scale: float = 1.0,
    dropout: float = 0.0,
    seed: int = 0,
) -> nn.Sequential:
    """LeNet-5 with ReLU and max-pooling: 6 and 16 channels of 5 x 5, then dense layers.

    ``shape`` is that of an image, whose size the first convolution keeps by ``padding``;
    ``dropout`` acts on the ``hidden`` dense layers. Feng & Tu's network for CIFAR-10 has
    ``hidden=(120, 25)`` and ``padding=0``.
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
    dense = mlp((16 * rows * columns, *hidden, classes), bias=bias, dropout=dropout)
    network = nn.Sequential(*modules, *dense)
    return _xavier(network, scale, seed)


def _xavier(network: nn.Sequential, scale: float, seed: int) -> nn.Sequential:
    generator = torch.Generator().manual_seed(seed)
    for module in network:
        if isinstance(module, nn.Linear | nn.Conv2d):
            nn.init.xavier_uniform_(module.weight, gain=scale, generator=generator)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    return network
