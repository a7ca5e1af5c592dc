"""Small networks of the field's studies: towers of dense layers, and LeNet with few units.

A configuration names those without arguments as ``lowland_studies.tower:NAME``.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from lowland.training import lenet, mlp

_NORMS: dict[str, Callable[[int], nn.Module]] = {
    "none": lambda width: nn.Identity(),
    "batch": nn.BatchNorm1d,
    "layer": nn.LayerNorm,
}


class Tower(nn.Module):
    """A dense layer, ``depth`` more of one width, and the outputs; ReLU behind every hidden layer.

    With ``skip`` each of the ``depth`` layers is a residual branch beside an identity. ``norm`` is
    what stands between such a layer and its ReLU: none, batch or layer. Weights are drawn normally
    with variance 2 / inputs (He et al. 2015), and biases are 0.
    """

    def __init__(
        self,
        inputs: int,
        width: int,
        depth: int,
        *,
        skip: bool = False,
        norm: str = "none",
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.skip = skip
        self.stem = nn.Linear(inputs, width)
        self.layers = nn.ModuleList(
            nn.Sequential(
                nn.Linear(width, width), _NORMS[norm](width), nn.ReLU(), nn.Dropout(dropout)
            )
            for _ in range(depth)
        )
        self.head = nn.Linear(width, 10)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
                nn.init.zeros_(module.bias)

    def forward(self, x: Tensor) -> Tensor:  # noqa: D102
        x = self.stem(x.flatten(1)).relu()
        for layer in self.layers:
            x = x + layer(x) if self.skip else layer(x)
        return self.head(x)


def residual_mnist() -> Tower:
    """Two residual layers of 30 units for images of MNIST; the first is "layers.0.0"."""
    return Tower(784, 30, 2, skip=True)


def residual_digits() -> Tower:
    """The same for the digits of 8 x 8 pixels."""
    return Tower(64, 30, 2, skip=True)


class Halved(nn.Module):
    """Images at half their size, with pixels from -0.5 to 0.5.

    With CIFAR-10's 3,072 bright pixels as they are, dense networks die at a learning rate of 0.1.
    """

    def forward(self, x: Tensor) -> Tensor:  # noqa: D102
        return nn.functional.avg_pool2d(x, 2) - 0.5


def residual_cifar() -> nn.Sequential:
    """The same for images of CIFAR-10; the first of its layers is "1.layers.0.0"."""
    return nn.Sequential(Halved(), Tower(768, 30, 2, skip=True))


def mlp_cifar() -> nn.Sequential:
    """Two hidden layers of 30 units for images of CIFAR-10; the second is "4"."""
    return nn.Sequential(Halved(), *mlp((768, 30, 30, 10), seed=torch.initial_seed()))


def lenet_mnist() -> nn.Sequential:
    """LeNet for MNIST with two hidden layers of 30 units; the second is "9"."""
    return lenet((1, 28, 28), hidden=(30, 30), padding=0, bias=False, seed=torch.initial_seed())


def lenet_digits() -> nn.Sequential:
    """The same for the digits of 8 x 8 pixels, whose edges are padded to what LeNet takes."""
    return lenet((1, 8, 8), hidden=(30, 30), padding=4, bias=False, seed=torch.initial_seed())


def lenet_cifar() -> nn.Sequential:
    """The same for images of CIFAR-10."""
    return lenet((3, 32, 32), hidden=(30, 30), padding=0, bias=False, seed=torch.initial_seed())
