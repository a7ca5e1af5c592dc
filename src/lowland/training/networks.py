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
    seed: int = 0,
) -> nn.Sequential:
    """A ReLU network with Xavier-uniform weights times ``scale`` (Feng & Tu, Methods).

    The paper does not mention biases and its authors' demo has none. Layers with a weight are
    called ``"1"``, ``"3"``, ...: ``"0"`` flattens images.
    """
    if len(sizes) < 2 or min(sizes) < 1:
        raise InputError(
            f"an MLP needs at least an input and an output size, all >= 1; got {sizes}"
        )
    generator = torch.Generator().manual_seed(seed)
    modules: list[nn.Module] = [nn.Flatten()]
    for before, after in pairwise(sizes):
        linear = nn.utils.skip_init(nn.Linear, before, after, bias=bias)
        nn.init.xavier_uniform_(linear.weight, gain=scale, generator=generator)
        if bias:
            nn.init.zeros_(linear.bias)
        modules += [linear, nn.ReLU()]
    return nn.Sequential(*modules[:-1])
