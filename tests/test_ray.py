"""Losses along a ray share the products of its first layer, and are those of the model."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from lowland.measures.shared.neighbourhood import Neighbourhood
from lowland.measures.shared.ray import Ray
from lowland.problem import Problem

INPUTS = 40


class TwoViews(nn.Module):
    """One dense layer for both halves of the data, and once more for what it gives."""

    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Linear(INPUTS, INPUTS), nn.Linear(2 * INPUTS, 3)

    def forward(self, x):
        halves = [torch.relu(self.embed(half)) for half in x.chunk(2, dim=1)]
        return self.head(torch.cat([halves[0], self.embed(halves[1])], 1))


class InPlace(nn.Module):
    """Its inputs are not the data any more when they come to the layer."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(INPUTS, 3)

    def forward(self, x):
        x = x.clone()
        self.layer(x)
        return self.layer(x.mul_(2))


class Scaled(nn.Module):
    """Its weight is computed from a parameter, and its bias is one."""

    def __init__(self):
        super().__init__()
        self.direction = nn.Parameter(torch.randn(3, INPUTS))
        self.bias = nn.Parameter(torch.zeros(3))

    def forward(self, x):
        return F.linear(bias=self.bias, weight=F.normalize(self.direction), input=x)


MODELS = {
    "mlp": lambda: nn.Sequential(nn.Linear(INPUTS, 7), nn.Tanh(), nn.Linear(7, 3)),
    "images": lambda: nn.Sequential(nn.Flatten(), nn.Linear(INPUTS, 7, bias=False), nn.ReLU()),
    "two views": TwoViews,
    "in place": InPlace,
    "scaled": Scaled,
}


def neighbourhood(name: str, **options) -> Neighbourhood:
    torch.manual_seed(0)
    shape = {"images": (4, INPUTS // 4), "two views": (2 * INPUTS,)}.get(name, (INPUTS,))
    X, y = torch.randn(30, *shape, dtype=torch.float64), torch.arange(30) % 3
    return Neighbourhood(Problem(MODELS[name]().double(), train=(X, y), **options))


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("batch_size", [None, 13])
def test_losses_along_a_ray_are_those_of_the_model(name, batch_size):
    near = neighbourhood(name, batch_size=batch_size)
    for seed in range(2):
        generator = torch.Generator().manual_seed(seed)
        v = torch.randn(len(near.w), generator=generator, dtype=torch.float64)
        ray = Ray(near, v)
        for t in (0.5, -0.5, 0.0, 2.0):
            assert ray.loss(t) == pytest.approx(near.loss(t * v), rel=1e-12)


def products(near: Neighbourhood, losses: int, rays: int) -> int:
    """How often a matrix of as many rows as there are samples is multiplied with the data."""
    calls = 0

    class Counting(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            nonlocal calls
            calls += func is F.linear and args[0].shape[-1] == INPUTS
            return func(*args, **(kwargs or {}))

    with Counting():
        for _ in range(rays):
            ray = Ray(near, torch.ones_like(near.w))
            for t in range(losses):
                ray.loss(t)
    return calls


def test_the_first_layer_is_multiplied_once_for_all_rays_and_once_for_each():
    assert products(neighbourhood("mlp"), losses=5, rays=3) == 1 + 3


def test_nothing_is_kept_where_memory_is_short():
    near = neighbourhood("mlp")
    near.problem.memory = 2 * 8 * 30 * 7 * 8 - 1  # both products of 30 samples and 7 units
    assert products(near, losses=5, rays=1) == 5 * 2
    assert not near.products
