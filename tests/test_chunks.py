"""Every number is the same whatever chunks the samples are taken in, single samples included.

Torch's backward pass of BatchNorm in eval mode misreads a single sample whose strides are in
another order than usual. The truth is therefore computed from all samples twice, side by side, by
torch.func alone.
"""

import contextlib
import math
import random

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import lowland as ll

ACTIVATIONS = (nn.SiLU, nn.GELU, nn.Tanh, nn.Softplus, nn.ELU, nn.ReLU, nn.Sigmoid, nn.Mish)
NORMS = ("batch", "batch", "instance", "tracked instance", "group", "layer", "none")
TAILS = ("flat", "mean", "tokens", "pixels", "last")
# Samples and the batch size: one, two, one at a time, and one left over.
CHUNKS = ((1, None), (2, None), (2, 1), (5, 1), (5, 4), (7, 3), (9, 8), (9, 2))


class Random(nn.Module):
    """Blocks of convolution, norm and activation in one to three dimensions, and a tail."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        draw = random.Random(seed)
        self.dimensions, self.tail = draw.choice((1, 2, 2, 3)), draw.choice(TAILS)
        self.size = draw.choice((3, 4))
        channels = [draw.choice((1, 2))]
        blocks: list[nn.Module] = []
        for _ in range(draw.choice((1, 1, 2))):
            channels.append(draw.choice((1, 2, 3)))
            conv = getattr(nn, f"Conv{self.dimensions}d")
            kernel = draw.choice((1, 3))
            blocks.append(conv(*channels[-2:], kernel, padding="same", bias=draw.random() < 0.5))
            blocks.append(self._norm(draw.choice(NORMS), channels[-1]))
            blocks.append(draw.choice(ACTIVATIONS)())
        if draw.random() < 0.3:
            blocks.pop()  # the norm comes last
        self.channels, self.blocks = channels[0], nn.Sequential(*blocks)
        places = self.size**self.dimensions
        width = channels[-1] * places if self.tail == "flat" else channels[-1]
        self.head = nn.Linear(places if self.tail == "last" else width, 3)

    def _norm(self, norm: str, channels: int) -> nn.Module:
        d = self.dimensions
        if norm == "batch":
            return getattr(nn, f"BatchNorm{d}d")(channels)
        if norm.endswith("instance"):
            tracked = norm.startswith("tracked")
            made = getattr(nn, f"InstanceNorm{d}d")
            return made(channels, affine=True, track_running_stats=tracked)
        if norm == "group":
            return nn.GroupNorm(1, channels)
        return nn.LayerNorm([self.size] * d) if norm == "layer" else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(x)
        if self.tail == "flat":
            return self.head(x.flatten(1))
        if self.tail == "mean":
            return self.head(x.flatten(2).mean(2))
        if self.tail == "tokens":
            return self.head(x.flatten(2).transpose(1, 2)).mean(1)
        if self.tail == "pixels":  # no head: every pixel has outputs, in another order of strides
            return x.flatten(2).transpose(1, 2).flatten(1)
        return self.head(x.flatten(2)[:, 0])


def problem(seed: int) -> tuple[ll.Problem, Tensor, Tensor]:
    """A random network on random data, in chunks that leave single samples over."""
    draw = random.Random(seed + 1000)
    torch.manual_seed(seed)
    model = Random(seed).double()
    shape = (model.channels, *[model.size] * model.dimensions)
    model(2 * torch.randn(16, *shape, dtype=torch.float64) + 1)  # statistics that are not trivial
    with torch.no_grad():
        for module in model.modules():
            if getattr(module, "affine", False):
                module.weight.uniform_(0.5, 1.5)
                module.bias.uniform_(-0.5, 0.5)
    n, batch_size = draw.choice(CHUNKS)
    X = torch.randn(n, *shape, dtype=torch.float64)
    with torch.no_grad():
        width = model.eval()(X).shape[1]
    if model.tail == "pixels" or draw.random() < 0.3:
        y: Tensor = torch.randn(n, width, dtype=torch.float64)
    else:
        y = torch.arange(n) % 3
    loss = "cross_entropy" if y.ndim == 1 else "mse"
    return ll.Problem(model, loss, train=(X, y), test=(X + 0.1, y), batch_size=batch_size), X, y


def is_wrong_in_torch(p: ll.Problem) -> bool:
    """Whether torch's own gradient of the first sample is not half that of the sample twice."""
    batch = next(p.train.chunks(p.first(8).targets.shape[0]))
    leaves = list(p.model.parameters())
    if len(batch) > 1:
        return False
    one, two = (
        torch.autograd.grad(p.loss(p.model(x), y).sum(), leaves, materialize_grads=True)
        for x, y in (
            (batch.inputs, batch.targets),
            (torch.cat([batch.inputs] * 2), torch.cat([batch.targets] * 2)),
        )
    )
    return any(bool((2 * a - b).norm() > 1e-6 * b.norm()) for a, b in zip(one, two, strict=True))


def dense(p: ll.Problem, X: Tensor, y: Tensor) -> Tensor:
    """The Hessian of the mean loss from all samples twice, in one batch."""
    shapes = {name: w.shape for name, w in p.params.items()}
    X, y = torch.cat([X, X]), torch.cat([y, y])

    def mean_loss(w: Tensor) -> Tensor:
        parts = w.split([shape.numel() for shape in shapes.values()])
        params = {name: part.view(s) for (name, s), part in zip(shapes.items(), parts, strict=True)}
        z = torch.func.functional_call(p.model, params, (X,))
        return F.cross_entropy(z, y) if y.ndim == 1 else (z - y).square().mean()

    w = torch.cat([w.flatten() for w in p.params.values()]).requires_grad_()
    (g,) = torch.autograd.grad(mean_loss(w), w, create_graph=True)
    rows = [torch.autograd.grad(gi, w, retain_graph=True, materialize_grads=True)[0] for gi in g]
    return torch.stack(rows).detach()


SEEDS = [*range(12), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(12, 200))]


@pytest.mark.parametrize("seed", SEEDS)
def test_blocks_diagonals_and_traces_do_not_depend_on_chunks(seed):
    p, X, y = problem(seed)
    if p.model.tail == "pixels" and is_wrong_in_torch(p):
        with pytest.raises(ll.InputError, match="by itself otherwise than two"):
            ll.trace(ll.hessian(p))
        return
    H, size = dense(p, X, y), sum(w.numel() for w in p.params.values())
    scale = float(H.norm()) + 1e-12
    assert float((ll.hessian(p) @ torch.eye(size, dtype=H.dtype) - H).norm()) < 1e-9 * scale
    found = ll.trace(ll.hessian(p))
    assert abs(found.value - float(H.trace())) <= 5 * found.stderr + 1e-9 * scale
    diagonal = torch.cat([d.flatten() for d in ll.diagonal(p).values()])
    assert float((diagonal - H.diagonal()).norm()) < 1e-9 * scale
    start = 0
    for name, w in p.params.items():
        block = H[start : start + w.numel(), start : start + w.numel()]
        start += w.numel()
        with contextlib.suppress(ll.InputError):  # a bias is no layer
            assert float((ll.layer_hessian(p, name) - block).norm()) < 1e-9 * scale
        with contextlib.suppress(ll.InputError):  # no weight, or out of reach of a dual
            values = torch.as_tensor(ll.duality(p, name, dual="activity").eigenvalue).sort().values
            if len(values) == len(block):
                expected = torch.linalg.eigvalsh(block)
                assert float((values - expected).abs().max()) < 1e-8 * scale


def test_little_memory_leaves_no_single_sample_wrong():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.SiLU(), nn.Flatten(), nn.Linear(100, 3)
    ).double()
    model(2 * torch.randn(8, 2, 5, 5, dtype=torch.float64) + 1)
    X, y = torch.randn(13, 2, 5, 5, dtype=torch.float64), torch.arange(13) % 3
    expected = ll.layer_hessian(ll.Problem(model, train=(X, y)), "0")
    for memory in (3 << 18, 1 << 20, 5 << 18):
        found = ll.layer_hessian(ll.Problem(model, train=(X, y), memory=memory), "0")
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("count", "size"), [(1, 4), (5, 4), (9, 8), (65, 64), (7, 3), (6, 1)])
def test_a_batch_is_split_into_parts_of_about_the_same_size(count, size):
    batch = ll.Problem(nn.Linear(2, 3), train=(torch.randn(count, 2), torch.arange(count) % 3))
    sizes = [len(part) for part in batch.train.chunks(size)]
    assert sum(sizes) == count
    assert max(sizes) <= size
    assert max(sizes) - min(sizes) <= 1
    assert len(sizes) == math.ceil(count / size)


class Broken(torch.autograd.Function):
    """The identity, with a backward pass that is wrong for single samples."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, slope):
        return slope * (3 if len(slope) == 1 else 1)


class Alone(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return Broken.apply(torch.tanh(self.layer(x)))


def test_operations_that_are_wrong_for_single_samples_are_found_where_one_is_taken_alone():
    X, y = torch.randn(9, 4), torch.arange(9) % 3
    p = ll.Problem(Alone(), train=(X, y))
    for samples, batch_size in ((1, None), (9, 1)):
        alone = ll.Problem(Alone(), train=(X[:samples], y[:samples]), batch_size=batch_size)
        for ask in (ll.trace, lambda H: H @ torch.ones(15)):
            with pytest.raises(ll.InputError, match="by itself otherwise than two"):
                ask(ll.hessian(alone))
    plain = nn.Sequential(p.model.layer, nn.Tanh())
    expected = ll.layer_hessian(ll.Problem(plain, train=(X, y)), "0")
    torch.testing.assert_close(ll.layer_hessian(p, "layer"), expected)
