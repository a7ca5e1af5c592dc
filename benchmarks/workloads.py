"""The problems that are measured: networks, data and weights that are the same in every run."""

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import lowland as ll


@dataclass(frozen=True, eq=False)
class Workload:
    """A trained model in eval mode and its data, for the mean cross-entropy over all samples."""

    name: str
    model: nn.Module
    X: Tensor
    y: Tensor
    layer: str | None = None  # the one whose weight is measured; None for the whole network
    test: tuple[Tensor, Tensor] | None = None  # unseen samples, where they are needed
    initial: nn.Module | None = None

    @cached_property
    def weights(self) -> dict[str, Tensor]:
        """The parameters that are measured, by name."""
        named = dict(self.model.named_parameters())
        return named if self.layer is None else {self.weight_name: named[self.weight_name]}

    @property
    def weight_name(self) -> str:
        return f"{self.layer}.weight"

    @property
    def size(self) -> int:
        return sum(w.numel() for w in self.weights.values())

    @property
    def data(self) -> list[tuple[Tensor, Tensor]]:
        """All samples as one batch, as the peers take it."""
        return [(self.X, self.y)]

    def problem(self) -> ll.Problem:
        """What a user of Lowland writes: every option is left at its default."""
        facts = {"learning_rate": 0.05, "batch_size": 64}
        return ll.Problem(
            self.model,
            train=(self.X, self.y),
            test=self.test,
            initial=self.initial,
            training=facts,
        )

    def forward(self) -> Tensor:
        with torch.no_grad():
            return self.model(self.X)

    def gradient(self, *, create_graph: bool = False) -> tuple[Tensor, ...]:
        """The plain gradient by the measured weights in one batch: the unit of cost."""
        loss = F.cross_entropy(self.model(self.X), self.y)
        return torch.autograd.grad(loss, list(self.weights.values()), create_graph=create_graph)

    def kept(self) -> Callable[[Tensor], Tensor]:
        """v -> H v by textbook double backward on one kept graph: the oracle, and a baseline."""
        weights = list(self.weights.values())
        sizes = [w.numel() for w in weights]
        gradient = self.gradient(create_graph=True)

        def product(v: Tensor) -> Tensor:
            parts = [p.view_as(w) for p, w in zip(v.split(sizes), weights, strict=True)]
            rows = torch.autograd.grad(gradient, weights, parts, retain_graph=True)
            return torch.cat([row.flatten() for row in rows])

        return product

    def products(self, V: Tensor) -> Tensor:
        product = self.kept()
        return torch.stack([product(v) for v in V.unbind(1)], 1)

    @cached_property
    def double(self) -> "Workload":
        """The same in float64, to check against."""
        model = copy.deepcopy(self.model).double()
        test = (self.test[0].double(), self.test[1]) if self.test else None
        return Workload(self.name, model, self.X.double(), self.y, self.layer, test)


@cache
def small_mlp(samples: int = 4000) -> Workload:
    """The network of Feng & Tu; its middle layer has 900 weights."""
    return _mlp((784, 30, 30, 10), nn.ReLU, samples)


@cache
def middle_mlp() -> Workload:
    return _mlp((784, 256, 256, 10), nn.ReLU, 4000)


def small_mlp_layer() -> Workload:
    return _layer(small_mlp(), "3")


@cache
def paper() -> Workload:
    """The network of Feng & Tu in float64, with the 1,000 test images of its data set."""
    known = small_mlp()
    test = ll.data.load("mnist5k").test
    name = "784-30-30-10 ReLU, 4,000 + 1,000 MNIST images in float64, layer '3'"
    return Workload(name, known.model, known.X, known.y, "3", test).double


@cache
def wide_mlp() -> Workload:
    """784-512-512-10, with all that measures ask for."""
    known = _mlp((784, 512, 512, 10), nn.ReLU, 4000)
    return replace(known, test=ll.data.load("mnist5k").test, initial=_fresh(known.model))


def _fresh(model: nn.Module) -> nn.Module:
    """The weights that the training started from."""
    torch.manual_seed(0)
    fresh = copy.deepcopy(model)
    for module in fresh.modules():
        if isinstance(module, nn.Linear):
            module.reset_parameters()
    return fresh


@cache
def ten_million() -> Workload:
    """784-2048-2048-2048-10: 10 million weights, on 1,000 images."""
    known = _mlp((784, 2048, 2048, 2048, 10), nn.ReLU, 1000)
    X, y = ll.data.load("mnist5k").test
    return replace(known, test=(X[:250], y[:250]))


def million_weight_layer() -> Workload:
    return layer_of_width(1024, 4000)


def layer_of_width(width: int, samples: int) -> Workload:
    """The middle layer, width x width, of a network on MNIST."""
    return _layer(_mlp((784, width, width, 10), nn.ReLU, samples), "3")


@cache
def smooth_mlp() -> Workload:
    return _mlp((784, 512, 512, 10), nn.Tanh, 500)


@cache
def lenet() -> Workload:
    X, y = _mnist(1000)
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 6, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(400, 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
        nn.Linear(84, 10),
    )
    return Workload("LeNet, 1,000 MNIST images", _trained(model, X, y, epochs=5), X, y)


@cache
def resnet(samples: int = 512) -> Workload:
    """ResNet-8 (He et al., CIFAR form with one block a stage), normalisation in eval mode."""
    X, y, source = _cifar(samples)
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        Block(16, 16, stride=1),
        Block(16, 32, stride=2),
        Block(32, 64, stride=2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, 10),
    )
    _trained(model, X[:512], y[:512], epochs=15)
    _normalised_by(model, X)
    return Workload(f"ResNet-8, {samples:,} {source}", model, X, y)


@cache
def resnet_pairs() -> Workload:
    """The same network, with 500 of its images and 500 that it has not seen."""
    trained = resnet()
    X, y, source = _cifar(1012)
    test = X[512:], y[512:]
    name = f"ResNet-8, 500 + 500 {source}"
    return Workload(name, trained.model, trained.X[:500], trained.y[:500], test=test)


class Block(nn.Module):
    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(after)
        self.conv2 = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(after)
        self.skip = nn.Conv2d(before, after, 1, stride, bias=False) if stride > 1 else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        return F.relu(y + self.skip(x))


def _layer(of: Workload, name: str) -> Workload:
    return Workload(f"{of.name}, layer {name!r}", of.model, of.X, of.y, name)


@cache
def _mlp(sizes: tuple[int, ...], activation: type[nn.Module], samples: int) -> Workload:
    X, y = _mnist(samples)
    torch.manual_seed(0)
    modules: list[nn.Module] = [nn.Flatten()]
    for before, after in pairwise(sizes):
        modules += [nn.Linear(before, after, bias=False), activation()]
    model = nn.Sequential(*modules[:-1])
    name = f"{'-'.join(map(str, sizes))} {activation.__name__}, {samples:,} MNIST images"
    # At most 4,000 images: the time that making a minimum takes is not what is measured.
    return Workload(name, _trained(model, X[:4000], y[:4000], epochs=5), X, y)


def _trained(model: nn.Module, X: Tensor, y: Tensor, epochs: int) -> nn.Module:
    """A few epochs of SGD: the curvature of an untrained network is that of no minimum."""
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    for _ in range(epochs):
        for batch in torch.randperm(len(X)).split(64):
            optimizer.zero_grad()
            F.cross_entropy(model(X[batch]), y[batch]).backward()
            optimizer.step()
    return model.eval()


def _normalised_by(model: nn.Module, X: Tensor) -> None:
    """Running statistics that are those of X: after so few steps they lag behind the weights."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.reset_running_stats()
            module.momentum = None  # the average over all batches seen
    with torch.no_grad():
        model.train()(X)
    model.eval()


@cache
def _mnist(samples: int) -> tuple[Tensor, Tensor]:
    """Up to 4,000 images need no files; more come from LOWLAND_DATA, if it is there."""
    if samples <= 4000:
        X, y = ll.data.load("mnist5k").train
    else:
        X, y = ll.data.load("mnist").train
    order = torch.randperm(len(X), generator=torch.Generator().manual_seed(0))[:samples]
    return X[order].contiguous(), y[order]


def _cifar(samples: int) -> tuple[Tensor, Tensor, str]:
    try:
        X, y = ll.data.load("cifar10").train
    except ll.InputError:  # no LOWLAND_DATA: the same shapes and cost
        generator = torch.Generator().manual_seed(0)
        X = torch.rand(samples, 3, 32, 32, generator=generator)
        return X, torch.randint(10, (samples,), generator=generator), "random images"
    return X[:samples].contiguous(), y[:samples], "CIFAR-10 images"
