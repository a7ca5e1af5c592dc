"""Networks as users write them: folded, transposed, sorted, routed, tied, functional."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Make = Callable[[], nn.Module]
ZOO: dict[str, tuple[Make, tuple[int, ...]]] = {}  # how to make it, and the shape of one input
TOKENS = (-1,)  # stands for a sequence of five tokens below seven


def network(*shape: int) -> Callable[[Make], Make]:
    def add(make: Make) -> Make:
        ZOO[make.__name__] = make, shape
        return make

    return add


class Written(nn.Module):
    """A forward pass written as a function of the module's own parameters and submodules."""

    def __init__(self, forward: Callable[..., Tensor], **parts: nn.Module | Tensor) -> None:
        super().__init__()
        self.written = forward
        for name, part in parts.items():
            setattr(self, name, nn.Parameter(part) if isinstance(part, Tensor) else part)

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.written(self, *inputs)


@network(5, 4)
def folded() -> nn.Module:
    def forward(m: Written, x: Tensor) -> Tensor:
        n, t, d = x.shape
        return m.head(F.relu(m.layer(x.reshape(n * t, d))).view(n, t, -1).sum(1))

    return Written(forward, layer=nn.Linear(4, 6), head=nn.Linear(6, 3))


@network(5, 4)
def folded_sequence_first() -> nn.Module:
    def forward(m: Written, x: Tensor) -> Tensor:
        n, t, d = x.shape
        x = x.transpose(0, 1).reshape(t * n, d)
        return m.head(F.relu(m.layer(x)).view(t, n, -1).sum(0))

    return Written(forward, layer=nn.Linear(4, 6), head=nn.Linear(6, 3))


@network(3, 2, 4, 4)
def frames_in_the_batch() -> nn.Module:
    def forward(m: Written, x: Tensor) -> Tensor:
        n, t, *image = x.shape
        x = F.relu(m.norm(m.conv(x.reshape(n * t, *image))))
        return m.head(x.flatten(1).view(n, t, -1).mean(1))

    parts = {"conv": nn.Conv2d(2, 3, 3), "norm": nn.BatchNorm2d(3), "head": nn.Linear(12, 3)}
    return Written(forward, **parts)


@network(4)
def sorted_batch() -> nn.Module:
    def forward(m: Written, x: Tensor) -> Tensor:
        order = x[:, 0].argsort(descending=True)
        return m.head(F.relu(m.layer(x[order])))[order.argsort()]

    return Written(forward, layer=nn.Linear(4, 6), head=nn.Linear(6, 3))


@network(4)
def routed() -> nn.Module:
    def forward(m: Written, x: Tensor) -> Tensor:
        first = x[:, 0] > 0
        z = x.new_zeros(len(x), 3)
        z = z.index_put((first.nonzero()[:, 0],), m.one(x[first]))
        return z.index_put(((~first).nonzero()[:, 0],), m.two(x[~first]))

    return Written(forward, one=nn.Linear(4, 3), two=nn.Linear(4, 3))


@network(4)
def tied_in_parallel() -> nn.Module:
    def forward(m: Written, x: Tensor) -> Tensor:
        return m.head(F.relu(m.layer(x)) - F.relu(m.layer(-2 * x)))

    return Written(forward, layer=nn.Linear(4, 6), head=nn.Linear(6, 3))


@network(4)
def tied_in_parallel_smooth() -> nn.Module:
    def forward(m: Written, x: Tensor) -> Tensor:
        return m.head(torch.tanh(m.layer(x)) * torch.sigmoid(m.layer(-2 * x)))

    return Written(forward, layer=nn.Linear(4, 6), head=nn.Linear(6, 3))


@network(4)
def tied_in_series() -> nn.Module:
    def forward(m: Written, x: Tensor) -> Tensor:
        return m.head(F.relu(m.layer(F.relu(m.layer(x)))))

    return Written(forward, layer=nn.Linear(4, 4), head=nn.Linear(4, 3))


@network(4)
def shared_bias() -> nn.Module:
    def forward(m: Written, x: Tensor) -> Tensor:
        return F.linear(F.relu(F.linear(x, m.first, m.bias)), m.second, m.bias)

    return Written(forward, first=torch.randn(3, 4), second=torch.randn(3, 3), bias=torch.randn(3))


@network(4)
def functional() -> nn.Module:
    def forward(m: Written, x: Tensor) -> Tensor:
        h = F.leaky_relu(x @ m.first + m.shift) * m.gain
        return torch.einsum("nh,ch->nc", h, m.second) / m.scale

    return Written(
        forward,
        first=torch.randn(4, 5),
        shift=torch.randn(5),
        gain=torch.randn(5),
        second=torch.randn(3, 5),
        scale=torch.tensor(1.7),
    )


@network(5, 4)
def matrix_from_the_left() -> nn.Module:
    def forward(m: Written, x: Tensor) -> Tensor:
        return F.relu(m.mix @ x @ m.out).sum(1)

    return Written(forward, mix=torch.randn(6, 5), out=torch.randn(4, 3))


@network(4)
def in_place() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 5), nn.ReLU(inplace=True), nn.Dropout(), nn.Linear(5, 3))


@network(3, 4)
def encoder_sequence_first() -> nn.Module:
    layer = nn.TransformerEncoderLayer(4, 2, 3, dropout=0.0)
    return Written(
        lambda m, x: m.head(m.layer(x.transpose(0, 1)).mean(0)), layer=layer, head=nn.Linear(4, 3)
    )


@network(3, 4)
def cross_attention() -> nn.Module:
    attention = nn.MultiheadAttention(4, 2, batch_first=True)
    return Written(
        lambda m, x: m.head(m.layer(x[:, :2], x, x)[0].mean(1)),
        layer=attention,
        head=nn.Linear(4, 3),
    )


@network(*TOKENS)
def vision_style_tokens() -> nn.Module:
    def forward(m: Written, tokens: Tensor) -> Tensor:
        x = m.embed(tokens)
        x = torch.cat([m.cls.expand(len(x), 1, 4), x], 1) + m.place
        x = x + m.gain * torch.tanh(m.norm(x))
        return m.head(x[:, 0] + x.mean(1))

    return Written(
        forward,
        embed=nn.Embedding(7, 4, padding_idx=0),
        cls=torch.randn(1, 1, 4),
        place=torch.randn(6, 4),
        norm=nn.LayerNorm(4),
        gain=torch.randn(4),
        head=nn.Linear(4, 3),
    )


@network(*TOKENS)
def tied_embedding() -> nn.Module:
    def forward(m: Written, tokens: Tensor) -> Tensor:
        return F.linear(torch.tanh(m.embed(tokens).mean(1)), m.embed.weight)[:, :3]

    return Written(forward, embed=nn.Embedding(7, 4))


@network(3, 2)
def gru() -> nn.Module:
    return Written(
        lambda m, x: m.head(m.cell(x)[0][:, -1]),
        cell=nn.GRU(2, 2, batch_first=True),
        head=nn.Linear(2, 3),
    )


@network(2, 5)
def transposed_1d() -> nn.Module:
    return nn.Sequential(
        nn.ConvTranspose1d(2, 4, 3, stride=2, padding=1, output_padding=1, groups=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(40, 3),
    )


@network(2, 3, 4)
def transposed_2d() -> nn.Module:
    return nn.Sequential(
        nn.ConvTranspose2d(2, 3, (2, 3), stride=(2, 1), dilation=(1, 2)),
        nn.GroupNorm(3, 3),
        nn.PReLU(3),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(12, 3),
    )


@network(2, 3, 4, 3)
def volumes() -> nn.Module:
    return nn.Sequential(
        nn.Conv3d(2, 2, 2, padding=(1, 0, 0), stride=(1, 2, 1), groups=2),
        nn.BatchNorm3d(2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32, 3),
    )


@network(4)
def weight_norm() -> nn.Module:
    norm = nn.utils.parametrizations.weight_norm
    return nn.Sequential(norm(nn.Linear(4, 5)), nn.Tanh(), nn.Linear(5, 3))


@network(4)
def spectral_norm() -> nn.Module:
    norm = nn.utils.parametrizations.spectral_norm
    return nn.Sequential(norm(nn.Linear(4, 5)), nn.ReLU(), nn.Linear(5, 3))


@network(4)
def squared_parameter() -> nn.Module:
    return Written(lambda m, x: x @ (m.w * m.w), w=torch.randn(4, 3))


@network(4)
def bilinear() -> nn.Module:
    return Written(
        lambda m, x: m.head(m.pair(x, x.flip(1))), pair=nn.Bilinear(4, 4, 3), head=nn.Linear(3, 3)
    )


@network(4)
def temperature() -> nn.Module:
    return Written(
        lambda m, x: m.head(x) * m.logit_scale.exp(),
        head=nn.Linear(4, 3),
        logit_scale=torch.tensor(0.3),
    )


@network(4)
def unused() -> nn.Module:
    return Written(lambda m, x: m.head(x), head=nn.Linear(4, 3), other=nn.Linear(4, 3))


@network(4)
def checkpointed() -> nn.Module:
    def forward(m: Written, x: Tensor) -> Tensor:
        return m.head(torch.utils.checkpoint.checkpoint(m.body, x, use_reentrant=False))

    body = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 4), nn.Tanh())
    return Written(forward, body=body, head=nn.Linear(4, 3))


def inputs(shape: tuple[int, ...], n: int, generator: torch.Generator) -> Tensor:
    """n inputs of this shape; a third of the first entries of some are exactly zero."""
    if shape == TOKENS:
        return torch.randint(0, 7, (n, 5), generator=generator)
    x = torch.randn(n, *shape, generator=generator, dtype=torch.float64)
    x[: n // 3] = 0  # what starts a data set need not have a gradient
    return x
