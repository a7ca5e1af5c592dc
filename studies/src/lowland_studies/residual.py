"""Networks of the studies that a configuration names as ``lowland_studies.residual:NAME``."""

import torch
from torch import Tensor, nn


class Block(nn.Module):
    """Two 3 x 3 convolutions, each after BatchNorm and ReLU, beside a shortcut unless not asked."""

    def __init__(self, before: int, after: int, stride: int, *, skip: bool = True) -> None:
        super().__init__()
        self.skip = skip
        self.norm1 = nn.BatchNorm2d(before)
        self.conv1 = nn.Conv2d(before, after, 3, stride, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(after)
        self.conv2 = nn.Conv2d(after, after, 3, padding=1, bias=False)
        changes = skip and (before != after or stride != 1)
        self.shortcut = nn.Conv2d(before, after, 1, stride, bias=False) if changes else None

    def forward(self, x: Tensor) -> Tensor:  # noqa: D102
        active = self.norm1(x).relu()
        inner = self.conv2(self.norm2(self.conv1(active)).relu())
        if not self.skip:
            return inner
        return inner + (x if self.shortcut is None else self.shortcut(active))


def wide_resnet(depth: int, width: int) -> nn.Sequential:
    """A wide residual network for CIFAR-10 (Zagoruyko & Komodakis 2016, Table 1).

    Three groups of ``(depth - 4) / 6`` blocks with 16, 32 and 64 times ``width`` channels, without
    dropout. Weights are drawn as there, normally with variance ``2 / fan_out`` (He et al. 2015).
    """
    blocks, rest = divmod(depth - 4, 6)
    if rest or blocks < 1 or width < 1:
        raise ValueError(
            f"a wide residual network has a depth of 10, 16, 22, ... and a width of 1 or more; got "
            f"{depth} and {width}"
        )
    stem = nn.Conv2d(3, 16, 3, padding=1, bias=False)
    return _network([stem], 16, [16 * width * 2**i for i in range(3)], blocks, pooled=8)


def resnet(depth: int, *, skip: bool = True) -> nn.Sequential:
    """The residual network of 20, 56, 110, ... layers for CIFAR-10, or the same without shortcuts.

    Sizes are those of He et al. (2016): three groups of ``(depth - 2) / 6`` blocks with 16, 32 and
    64 channels. BatchNorm and ReLU come before a convolution.
    """
    blocks, rest = divmod(depth - 2, 6)
    if rest or blocks < 1:
        raise ValueError(f"a residual network has a depth of 8, 14, 20, ...; got {depth}")
    stem = nn.Conv2d(3, 16, 3, padding=1, bias=False)
    return _network([stem], 16, [16, 32, 64], blocks, pooled=8, skip=skip)


def vgg9() -> nn.Sequential:
    """Six convolutions and three dense layers for CIFAR-10, without normalisation."""
    modules: list[nn.Module] = []
    before = 3
    for channels, convolutions in ((64, 1), (128, 1), (256, 2), (512, 2)):
        for _ in range(convolutions):
            modules += [nn.Conv2d(before, channels, 3, padding=1), nn.ReLU()]
            before = channels
        modules.append(nn.MaxPool2d(2))
    modules += [nn.Flatten(), nn.Linear(4 * before, before), nn.ReLU()]
    modules += [nn.Linear(before, before), nn.ReLU(), nn.Linear(before, 10)]
    return _drawn(nn.Sequential(*modules))


def _network(
    stem: list[nn.Module],
    before: int,
    channels: list[int],
    blocks: int,
    pooled: int,
    *,
    skip: bool = True,
) -> nn.Sequential:
    """Groups of residual blocks behind a stem, each but the first at half the size before."""
    modules = list(stem)
    for group, after in enumerate(channels):
        for block in range(blocks):
            stride = 2 if group and not block else 1
            modules.append(Block(before, after, stride, skip=skip))
            before = after
    modules += [nn.BatchNorm2d(before), nn.ReLU(), nn.AvgPool2d(pooled), nn.Flatten()]
    modules.append(nn.Linear(before, 10))
    return _drawn(nn.Sequential(*modules))


def _drawn(network: nn.Sequential) -> nn.Sequential:
    """The network with convolutions drawn anew: normally with variance ``2 / fan_out``."""
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return network.to(memory_format=torch.channels_last)  # type: ignore[call-overload] # faster


def wrn_16_4() -> nn.Sequential:
    """The network of Tsuzuku et al., for CIFAR-10."""
    return wide_resnet(16, 4)


def wrn_10_1() -> nn.Sequential:
    """The smallest of the family, for CIFAR-10 on a few cores."""
    return wide_resnet(10, 1)


def wrn_10_2() -> nn.Sequential:
    """As short, but without an identity beside the first BatchNorm."""
    return wide_resnet(10, 2)


def half_resnet() -> nn.Sequential:
    """Half of the smallest: 8, 16 and 32 channels on CIFAR-10 at 16 x 16 pixels.

    Its stem is "1", its blocks "2", "3" and "4".
    """
    stem: list[nn.Module] = [nn.AvgPool2d(2), nn.Conv2d(3, 8, 3, padding=1, bias=False)]
    return _network(stem, 8, [8, 16, 32], blocks=1, pooled=4)
