"""A curve of low loss between two minima (Garipov et al., 2018)."""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from lowland.budget import Stage
from lowland.errors import InputError
from lowland.landscape.evaluation import Evaluator
from lowland.landscape.picture import Progress
from lowland.landscape.points import Frame
from lowland.problem import Problem

_BATCH = 128
_RATE = 0.02  # of Adam, as a share of the root mean square of the weights
_LOOKS = 10  # at the barrier, along the training


def bezier_coefficients(t: np.ndarray) -> np.ndarray:
    """Of the middle point's and the end's differences from the beginning, (points, 2).

    ``(1 - t)^2 a + 2 t (1 - t) m + t^2 b = a + 2 t (1 - t) (m - a) + t^2 (b - a)``
    """
    return np.stack([2 * t * (1 - t), t**2], 1)


def barrier(t: np.ndarray, losses: np.ndarray) -> float:
    """The largest height of the loss over the chord between its ends; 0 if it is never above.

    A way that leads through a hole has an infinite one.
    """
    if not np.isfinite(losses).all():
        return float("inf")
    chord = (1 - t) * losses[0] + t * losses[-1]
    return float(max(0.0, (losses - chord).max()))


def low_curve(
    problem: Problem,
    a: Mapping[str, Tensor],
    b: Mapping[str, Tensor],
    t: np.ndarray,
    *,
    iterations: int,
    seed: int,
    progress: Progress,
) -> dict[str, Tensor]:
    """The middle point of a quadratic Bezier curve from a to b along which the loss is low.

    It starts half way, where the curve is the straight line, and is trained by Adam on the loss at
    random points of the curve. The middle point of the lowest barrier that was seen is kept, so
    that the curve's is never above the line's. Buffers go straight from a to b.
    """
    if iterations < 1:
        raise InputError(f"iterations must be at least 1; got {iterations}")
    middle = {name: (a[name] + b[name]) / 2 for name in a}
    names = list(problem.params)
    leaves = [middle[name].clone().requires_grad_() for name in names]
    size = sum(w.numel() for w in leaves)
    scale = float(sum(a[n].double().square().sum() for n in names) / size) ** 0.5
    optimizer = torch.optim.Adam(leaves, lr=_RATE * max(scale, 1e-8))
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, iterations)
    generator = torch.Generator().manual_seed(seed)
    best, lowest = dict(middle), _barrier(problem, a, b, middle, t)
    places = torch.arange(0)
    for step in range(iterations):
        if len(places) < min(_BATCH, len(problem.train)):
            places = torch.randperm(len(problem.train), generator=generator)
        chosen, places = places[:_BATCH], places[_BATCH:]
        s = float(torch.rand((), generator=generator))
        with problem.measuring(), torch.enable_grad():
            batch = problem.place(problem.train.take(chosen))
            point = {n: (1 - s) ** 2 * a[n] + s**2 * b[n] + 2 * s * (1 - s) * middle[n] for n in a}
            point |= {
                n: (1 - s) ** 2 * a[n] + s**2 * b[n] + 2 * s * (1 - s) * leaf
                for n, leaf in zip(names, leaves, strict=True)
            }
            loss = problem.batch_losses(batch, point).mean()
            slopes = torch.autograd.grad(loss, leaves, materialize_grads=True)
        if all(bool(g.isfinite().all()) for g in slopes):
            for leaf, slope in zip(leaves, slopes, strict=True):
                leaf.grad = slope
            optimizer.step()
        schedule.step()
        if (step + 1) % max(1, iterations // _LOOKS) == 0 or step + 1 == iterations:
            progress(Stage("curve of low loss", (step + 1) / iterations, None))
            now = {**middle, **{n: w.detach().clone() for n, w in zip(names, leaves, strict=True)}}
            height = _barrier(problem, a, b, now, t)
            if height < lowest:
                best, lowest = now, height
    return best


def curve_frame(
    a: Mapping[str, Tensor], middle: Mapping[str, Tensor], b: Mapping[str, Tensor]
) -> Frame:
    """The plane of the curve, for :func:`bezier_coefficients`."""
    return Frame(a, ({n: middle[n] - a[n] for n in a}, {n: b[n] - a[n] for n in a}))


def _barrier(
    problem: Problem,
    a: Mapping[str, Tensor],
    b: Mapping[str, Tensor],
    middle: Mapping[str, Tensor],
    t: np.ndarray,
) -> float:
    frame = curve_frame(a, middle, b)
    values = Evaluator(problem, frame, test=False).values(bezier_coefficients(t))
    return barrier(t, values.train)
