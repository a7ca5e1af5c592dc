"""SGD started at a minimum: whether it leaves, and how fast; Fisher matrices against the Hessian.

A network of 8 x 8 digits is small enough for whole matrices, in double precision.
"""

import functools
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from lowland.curvature import fisher, ggn, hessian
from lowland.data import load
from lowland.problem import Problem
from lowland.training import TrainingSettings, mlp, train

HIDDEN = 20
PER_CLASS = 5
WALKERS = 50  # that start at each minimum
STEPS = 60
LEFT = 100.0  # times the loss of the minimum: a walker above that has left
_GOAL = 1e-3  # the loss of minima that walkers start at
_RATE, _MOMENTUM = 0.1, 0.9  # of the gradient descent that finds the minima


@dataclass(frozen=True)
class Minimum:
    """A network with its data and the Hessian of its training loss."""

    model: nn.Module
    inputs: Tensor
    targets: Tensor
    problem: Problem
    hessian: Tensor


@functools.lru_cache(maxsize=8)  # the trials of a seed share their minimum
def descended(loss: str, goal: float, seed: int) -> Minimum:
    """Where gradient descent, with all data in a batch, first has a loss below the goal."""
    inputs, labels = load("digits", per_class=PER_CLASS, seed=seed).train
    inputs = inputs.double()
    # The theory is about the square loss of one output: here 1 for odd digits, and -1 for even.
    targets = 2.0 * (labels[:, None] % 2).double() - 1 if loss == "mse" else labels
    model = mlp((64, HIDDEN, 1 if loss == "mse" else 10), seed=seed).double()
    settings = TrainingSettings(
        learning_rate=_RATE,
        momentum=_MOMENTUM,
        batch_size=len(inputs),
        stop_loss=goal,
        max_epochs=50_000,
        seed=seed,
    )
    train(model, (inputs, targets), settings, loss=loss)
    problem = Problem(model, loss, train=(inputs, targets))
    return Minimum(model, inputs, targets, problem, _whole(hessian(problem)))


def _whole(operator: Any) -> Tensor:
    return operator @ torch.eye(operator.size, dtype=torch.float64)


# --- walkers, and the bound ----------------------------------------------------------------------


class Walk:
    """SGD on the squared error of a network, many walkers at a time: each is a row of weights."""

    def __init__(self, minimum: Minimum) -> None:
        self.model, self.data = minimum.model, (minimum.inputs, minimum.targets)
        self.shapes = {name: p.shape for name, p in self.model.named_parameters()}
        self.start = torch.cat([p.detach().flatten() for p in self.model.parameters()])

    def loss(self, weights: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
        """The mean loss of samples at one point."""
        parts = weights.split([shape.numel() for shape in self.shapes.values()])
        named = {n: p.view(s) for (n, s), p in zip(self.shapes.items(), parts, strict=True)}
        return (functional_call(self.model, named, (inputs,)) - targets).square().mean()

    def losses(self, walkers: Tensor) -> Tensor:
        """The loss of all data at every walker."""
        return vmap(self.loss, (0, None, None))(walkers, *self.data)

    def sample_gradients(self, walkers: Tensor) -> Tensor:
        """The gradient of each sample's loss at every walker, (walkers, samples, weights)."""
        slope = grad(lambda w, x, y: self.loss(w, x[None], y[None]))
        return vmap(vmap(slope, (None, 0, 0)), (0, None, None))(walkers, *self.data)

    def steps(self, rate: float, batch: int, seed: int) -> tuple[Tensor, Tensor, int]:
        """The losses of walkers, (steps + 1, walkers), until all have left or time is over.

        With them, where walkers were in the step in which their mean loss was that of one that has
        left, or the last one; and its number.
        """
        inputs, targets = self.data
        generator = torch.Generator().manual_seed(seed)
        walkers = within = self.start.expand(WALKERS, -1)
        slope = vmap(grad(self.loss))
        history, end = [self.losses(walkers)], 0
        limit = LEFT * history[0][0]
        while len(history) <= STEPS and (history[-1] < limit).any():
            rows = torch.randint(len(inputs), (WALKERS, batch), generator=generator)
            walkers = walkers - rate * slope(walkers, inputs[rows], targets[rows])
            if history[end].mean() < limit:
                within, end = walkers, len(history)
            history.append(self.losses(walkers).nan_to_num(math.inf))
        return torch.stack(history), within, end


def alignment(gradients: Tensor, hessian: Tensor, losses: Tensor) -> float:
    """Wu et al.'s mu, ``tr(Sigma H) / (2 L |H|_F^2)``, with numerator and L as means over walkers.

    Sigma is the covariance of samples' gradients, which are (walkers, samples, weights).
    """
    mean = gradients.mean(1)
    each = ((gradients @ hessian) * gradients).sum(2).mean(1) - ((mean @ hessian) * mean).sum(1)
    return float(each.mean() / (2 * losses.mean() * hessian.square().sum()))


def escape(settings: dict[str, Any], seed: int) -> dict[str, Any]:
    """SGD from a minimum at ``factor`` times the rate at which the bound is reached.

    The bound on the Frobenius norm of the Hessian is ``sqrt(B / mu) / rate``: beyond, the mean loss
    grows by a factor of at least ``rate^2 mu |H|_F^2 / B = factor^2`` a step.
    """
    minimum = descended("mse", _GOAL, seed)
    walk, H = Walk(minimum), minimum.hessian
    batch, factor = settings["batch_size"], settings["factor"]

    def mu(walkers: Tensor) -> float:
        return alignment(walk.sample_gradients(walkers), H, walk.losses(walkers))

    start = mu(walk.start[None])
    rate = factor * math.sqrt(batch / start) / float(H.norm())
    history, walkers, end = walk.steps(rate, batch, seed)
    growth = float((history[end].mean() / history[0].mean()).log()) / end
    return {
        "left": float((history.amax(0) > LEFT * history[0]).double().mean()),
        "growth": growth,
        "growth_beyond_bound": growth - 2 * math.log(factor),
        "alignment": start,
        "alignment_at_end": mu(walkers),
        "frobenius_norm": float(H.norm()),
        # Above 1 gradient descent leaves as well, at this rate.
        "rate_of_descent": rate * float(torch.linalg.eigvalsh(H)[-1]) / 2,
    }


# --- matrices ------------------------------------------------------------------------------------


def matrices(settings: dict[str, Any], seed: int) -> dict[str, Any]:
    """How far Fisher matrices are from the Hessian, as a share of it, at a small loss.

    That of outputs is Wu et al.'s: ``2/N sum_k df_k df_k^T`` for the square loss. That of losses is
    the empirical Fisher matrix, ``1/N sum_k dl_k dl_k^T``.
    """
    minimum = descended(settings["loss"], settings["goal"], seed)
    H = minimum.hessian
    numbers: dict[str, Any] = {}
    for name, operator in (("outputs", ggn), ("losses", fisher)):
        F = _whole(operator(minimum.problem))
        numbers[f"distance_of_{name}"] = float((F - H).norm() / H.norm())
        numbers[f"cosine_of_{name}"] = float((F * H).sum() / F.norm() / H.norm())
    return numbers
