"""A surface of the loss: ours, the other libraries', and a loop that does the least for a point.

All of them evaluate the same points ``w + a d1 + b d2``, a and b from -1 to 1. Landscaper scales
the directions that it is given tensor by tensor, so the common directions are those that it makes
of Gaussian ones.
"""

import contextlib
import copy
import io
from collections.abc import Callable
from functools import cache

import numpy as np
import torch
import torch.nn.functional as F
from peers import Contestant
from torch import Tensor, nn
from workloads import Workload

import lowland as ll

DISTANCE = 0.5  # of the weights' norm, from the centre to an edge
IMAGES = 64  # at once, where they are convolved: the fastest for the loop
_CHECKED = 9  # points that are compared with float64


@cache
def directions(w: Workload) -> tuple[list[Tensor], list[Tensor]]:
    """Two directions as Landscaper normalises them, from the centre to the edges."""
    from landscaper.compute import get_model_norm, normalize_direction

    generator = torch.Generator().manual_seed(0)
    weights = [p.detach() for p in w.model.parameters()]
    made = []
    for _ in range(2):
        drawn = [torch.randn(p.shape, generator=generator) for p in weights]
        d = normalize_direction(drawn, weights)
        scale = float(get_model_norm(weights) * DISTANCE / get_model_norm(d))
        made.append([scale * t for t in d])
    return made[0], made[1]


def _named(w: Workload) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    names = [name for name, _ in w.model.named_parameters()]
    first, second = directions(w)
    return dict(zip(names, first, strict=True)), dict(zip(names, second, strict=True))


def ours(steps: int) -> Contestant:
    """Loss and error; without the quadratic, which the others do not have."""

    def prepare(w: Workload) -> Callable[[], np.ndarray]:
        p, chosen = w.problem(), _named(w)
        return lambda: ll.surface(p, chosen, 1.0, steps, second_order=False).train.T

    return prepare


def loop(steps: int) -> Contestant:
    """Weights in place, images in parts that fit the cache, no gradients, the mean loss alone."""

    def prepare(w: Workload) -> Callable[[], np.ndarray]:
        model, (d1, d2) = copy.deepcopy(w.model), directions(w)
        centre = [p.detach().clone() for p in model.parameters()]
        convolves = any(isinstance(m, nn.Conv2d) for m in model.modules())
        size = IMAGES if convolves else len(w.X)
        parts = list(zip(w.X.split(size), w.y.split(size), strict=True))
        line = np.linspace(-1, 1, steps)

        def run() -> np.ndarray:
            found = np.empty((steps, steps))
            with torch.inference_mode():
                weights = [p.data for p in model.parameters()]
                for i, a in enumerate(line):
                    column = torch._foreach_add(centre, d1, alpha=float(a))
                    for j, b in enumerate(line):
                        torch._foreach_copy_(
                            weights, torch._foreach_add(column, d2, alpha=float(b))
                        )
                        sums = [F.cross_entropy(model(x), y, reduction="sum") for x, y in parts]
                        found[i, j] = float(sum(sums)) / len(w.X)
            return found

        return run

    return prepare


def landscaper(steps: int) -> Contestant:
    def prepare(w: Workload) -> Callable[[], np.ndarray]:
        from landscaper.compute import compute_loss_landscape

        def loss(model: nn.Module, data: tuple[Tensor, Tensor]) -> float:
            return F.cross_entropy(model(data[0]), data[1]).item()

        def run() -> np.ndarray:
            # It takes steps / 2 steps to the edge where there are (steps - 1) / 2.
            distance = DISTANCE * steps / (steps - 1)
            silence = io.StringIO()
            with contextlib.redirect_stdout(silence), contextlib.redirect_stderr(silence):
                return compute_loss_landscape(
                    copy.deepcopy(w.model), (w.X, w.y), list(directions(w)), loss,
                    steps=steps, distance=distance, dim=2, device="cpu",
                )[0]  # fmt: skip

        return run

    return prepare


def loss_landscapes(steps: int) -> Contestant:
    """Every other column comes out one step off: it is moved to where it was evaluated."""

    def prepare(w: Workload) -> Callable[[], np.ndarray]:
        from loss_landscapes import planar_interpolation
        from loss_landscapes.metrics import Loss

        d1, d2 = directions(w)
        size = 2 / (steps - 1)

        def at(a: float, b: float) -> nn.Module:
            model = copy.deepcopy(w.model)
            with torch.no_grad():
                for p, x, y in zip(model.parameters(), d1, d2, strict=True):
                    p.add_(a * x + b * y)
            return model

        corner = -1.0, -1.0
        # Directions from the corner to the ends are divided by the number of steps.
        ends = at(-1 + steps * size, -1), at(-1, -1 + steps * size)
        metric = Loss(F.cross_entropy, w.X, w.y)

        def run() -> np.ndarray:
            found = planar_interpolation(at(*corner), *ends, metric, steps, deepcopy_model=True)
            placed = np.full_like(found, np.nan)
            placed[1::2] = found[1::2]
            placed[::2, 1:] = found[::2, :-1]
            return placed

        return run

    return prepare


def error(w: Workload, result: np.ndarray, _: object) -> float:
    """The largest relative difference from float64, at some points that all have."""
    exact = _exact(w, len(result))
    return max(abs(float(result[i, j]) - value) / value for (i, j), value in exact.items())


@cache
def _exact(w: Workload, steps: int) -> dict[tuple[int, int], float]:
    generator = np.random.default_rng(0)
    d1, d2 = directions(w)
    line, double = np.linspace(-1, 1, steps), w.double
    found = {}
    for i, j in generator.integers(1, steps, (_CHECKED, 2)).tolist():
        model = copy.deepcopy(double.model)
        with torch.no_grad():
            for p, q, x, y in zip(model.parameters(), w.model.parameters(), d1, d2, strict=True):
                p.copy_(q.double() + line[i] * x.double() + line[j] * y.double())
            found[i, j] = F.cross_entropy(model(double.X), double.y).item()
    return found
