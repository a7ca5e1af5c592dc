"""A small Transformer that a configuration names as ``lowland_studies.transformer:NAME``."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Block(nn.Module):
    """Attention and two dense layers, each after LayerNorm and beside a shortcut."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value, self.project = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:  # noqa: D102
        seen = self.norm1(x)
        q, k, v = (
            layer(seen).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        # Written out: torch's own attention cannot be trained for several networks at once.
        attention = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1)  # (n, heads, tokens, tokens)
        x = x + self.project((attention @ v).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Rows(nn.Module):
    """A Transformer whose tokens are the rows of an image, all colours of a row together."""

    def __init__(self, size: int, features: int, width: int, blocks: int, heads: int) -> None:
        super().__init__()
        self.embed = nn.Linear(features, width)
        self.place = nn.Parameter(0.02 * torch.randn(size, width))
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(blocks))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, images: Tensor) -> Tensor:  # noqa: D102
        rows = images.transpose(1, 2).flatten(2)  # (n, rows, colours x columns)
        x = self.embed(rows) + self.place
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x.mean(1)))


def mnist_rows() -> Rows:
    """Two blocks of width 24 on the 28 rows of MNIST."""
    return Rows(28, 28, width=24, blocks=2, heads=2)


def cifar_rows() -> Rows:
    """The same on the 32 rows of CIFAR-10."""
    return Rows(32, 3 * 32, width=24, blocks=2, heads=2)
