"""Critical points of a small network's loss, and the eigenvalues of the Hessian there."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lowland.data import load

_GOAL = 1e-7  # norm of the gradient, at which a point counts as critical
_STEPS = 200  # of Newton's method at most
_REACH, _FLOOR = 0.5, 1e-3  # of a step's length, and of the eigenvalues in it
_DECAY = 3e-3  # without a penalty most critical points lie at infinity, or are not isolated
_ZERO = 1e-5  # of the largest eigenvalue: what is nearer to zero has no sign
_RATE = 0.5  # of gradient descent, by which starts are found
_NOISE = 0.1  # that is added to the starts
_QUANTILES = 60

Loss = Callable[[Tensor], Tensor]  # of all weights in one vector


def small_loss(
    hidden: int, per_class: int | None, seed: int, name: str = "digits", pixels: int = 4
) -> tuple[Loss, int]:
    """The squared error of a tanh network on images of few pixels with decay, and its size."""
    data = load(name, per_class=per_class, seed=seed)
    images = data.train[0].double()
    X = torch.nn.functional.adaptive_avg_pool2d(images, pixels).flatten(1)  # (N, inputs)
    X = X - X.mean(0)
    Y = torch.nn.functional.one_hot(data.train[1], 10).double()
    inputs = X.shape[1]

    def loss(w: Tensor) -> Tensor:
        first, second = w[: inputs * hidden], w[inputs * hidden :]
        outputs = torch.tanh(X @ first.view(inputs, hidden)) @ second.view(hidden, 10)
        return (outputs - Y).square().sum(1).mean() + _DECAY * w.square().sum()

    return loss, hidden * (inputs + 10)


def critical_point(loss: Loss, w: Tensor) -> Tensor:
    """Where Newton's method for a zero of the gradient ends, from w: at a saddle as well.

    Steps have at most a length of a half, and eigenvalues count as no less than a thousandth of the
    largest.
    """
    slope, curvature = torch.func.grad(loss), torch.func.hessian(loss)
    for _ in range(_STEPS):
        g = slope(w)
        if g.norm() < _GOAL:
            break
        values, vectors = torch.linalg.eigh(curvature(w))
        sizes = values.abs().clamp_min(_FLOOR * values.abs().max())
        step = vectors @ (vectors.T @ g / torch.where(values < 0, -sizes, sizes))
        w = w - step * min(1.0, float(_REACH / step.norm()))
    return w


def semicircle_below(x: float) -> float:
    """The share of Wigner's semicircle of mean 0 and variance 1 that lies below x."""
    x = min(max(x, -2.0), 2.0)
    return 0.5 + x * math.sqrt(4 - x * x) / (4 * math.pi) + math.asin(x / 2) / math.pi


def trial(settings: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """Search a critical point from the weights after ``epochs`` of gradient descent, with noise."""
    images = settings.get("data", "digits"), settings.get("pixels", 4)
    loss, size = small_loss(settings["hidden"], settings["per_class"], seed, *images)
    generator = torch.Generator().manual_seed(1000 * seed + settings["epochs"])
    own = torch.Generator().manual_seed(seed)  # all starts lie along one descent
    w = 0.3 * torch.randn(size, generator=own, dtype=torch.float64)
    for _ in range(settings["epochs"]):
        w = w - _RATE * torch.func.grad(loss)(w)
    w = critical_point(loss, w + _NOISE * torch.randn(size, generator=generator).double())
    slope = float(torch.func.grad(loss)(w).norm())
    values = torch.linalg.eigvalsh(torch.func.hessian(loss)(w)).numpy()
    return {"converged": slope < _GOAL, "gradient": slope, "loss": float(loss(w)), **_of(values)}


def _of(values: np.ndarray) -> dict[str, Any]:
    """What a spectrum says: the share of negative eigenvalues, and how like a semicircle it is."""
    mean, spread = values.mean(), values.std()
    standard = (values - mean) / spread
    levels = (np.arange(_QUANTILES) + 0.5) / _QUANTILES
    grid = np.linspace(-2, 2, 2001)
    shares = [semicircle_below(x) for x in grid]
    index = float((values < -_ZERO * values.max()).mean())
    return {
        "index": index,
        "minimum": index == 0,
        "semicircle_index": semicircle_below(float(-mean / spread)),
        "smallest": float(values[0]),
        "near_zero": float((np.abs(values) < 0.01 * values.max()).mean()),
        "fourth_moment": float((standard**4).mean()),  # 2 for a semicircle
        "spectrum/eigenvalues": np.quantile(standard, levels),
        "spectrum/semicircle": np.interp(levels, shares, grid),
    }
