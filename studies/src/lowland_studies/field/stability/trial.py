"""SGD started at a minimum: whether it leaves, and how fast; Fisher matrices against the Hessian.

A network of 8 x 8 digits is small enough for whole matrices, in double precision. Of a larger one
the Hessian is taken for its Gauss-Newton part, from the gradients of its outputs.
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

NETWORK = "64-20-1"
PER_CLASS = 5
WALKERS = 50  # that start at each minimum
STEPS = 60
LEFT = 100.0  # times the loss of the minimum: a walker above that has left
_GOAL = 1e-3  # the loss of minima that walkers start at
_RATE, _MOMENTUM = 0.1, 0.9  # of the gradient descent that finds the minima
_WHOLE = 5_000  # weights of which the whole Hessian is computed
_HELD = 2**27  # numbers of walkers' gradients that are held at once


@dataclass(frozen=True)
class Minimum:
    """A network with its data and the Hessian of its training loss."""

    model: nn.Module
    inputs: Tensor
    targets: Tensor
    problem: Problem
    hessian: "Whole | Factored"


@dataclass(frozen=True)
class Whole:
    """A Hessian as a matrix."""

    matrix: Tensor

    def forms(self, vectors: Tensor) -> Tensor:
        """``v^T H v`` of the last dimension."""
        return ((vectors @ self.matrix) * vectors).sum(-1)

    @property
    def norm(self) -> float:
        """The Frobenius norm."""
        return float(self.matrix.norm())

    @property
    def largest(self) -> float:
        """The largest eigenvalue."""
        return float(torch.linalg.eigvalsh(self.matrix)[-1])


@dataclass(frozen=True)
class Factored:
    """``A^T A`` by its factor, a row for each sample: all of it is in ``A A^T`` as well."""

    factor: Tensor

    def forms(self, vectors: Tensor) -> Tensor:
        """``v^T H v`` of the last dimension."""
        return (vectors @ self.factor.T).square().sum(-1)

    @property
    def norm(self) -> float:
        """The Frobenius norm."""
        return float((self.factor @ self.factor.T).norm())

    @property
    def largest(self) -> float:
        """The largest eigenvalue."""
        return float(torch.linalg.eigvalsh(self.factor @ self.factor.T)[-1])


@functools.lru_cache(maxsize=8)  # the trials of a seed share their minimum
def descended(
    loss: str,
    goal: float,
    seed: int,
    *,
    data: str = "digits",
    per_class: int = PER_CLASS,
    network: str = NETWORK,
    rate: float = _RATE,
) -> Minimum:
    """Where gradient descent, with all data in a batch, first has a loss below the goal."""
    inputs, labels = load(data, per_class=per_class, seed=seed).train
    inputs = inputs.double().flatten(1)
    # The theory is about the square loss of one output: here 1 for odd labels, and -1 for even.
    targets = 2.0 * (labels[:, None] % 2).double() - 1 if loss == "mse" else labels
    *sizes, _ = map(int, network.split("-"))
    model = mlp((*sizes, 1 if loss == "mse" else 10), seed=seed).double()
    settings = TrainingSettings(
        learning_rate=rate,
        momentum=_MOMENTUM,
        batch_size=len(inputs),
        stop_loss=goal,
        max_epochs=50_000,
        seed=seed,
    )
    train(model, (inputs, targets), settings, loss=loss)
    problem = Problem(model, loss, train=(inputs, targets))
    small = sum(p.numel() for p in model.parameters()) <= _WHOLE
    curvature = Whole(_whole(hessian(problem))) if small else _factored(model, inputs)
    return Minimum(model, inputs, targets, problem, curvature)


def _whole(operator: Any) -> Tensor:
    return operator @ torch.eye(operator.size, dtype=torch.float64)


def _factored(model: nn.Module, inputs: Tensor) -> Factored:
    """The Gauss-Newton matrix of one output, by the square loss: ``2/N sum_k df_k df_k^T``."""
    named = {name: p.detach() for name, p in model.named_parameters()}

    def output(weights: dict[str, Tensor], x: Tensor) -> Tensor:
        return functional_call(model, weights, (x[None],)).squeeze()

    slopes = vmap(grad(output), (None, 0))(named, inputs)
    rows = torch.cat([slopes[name].flatten(1) for name in named], dim=1)
    return Factored(rows * math.sqrt(2 / len(inputs)))


# --- walkers, and the bound ----------------------------------------------------------------------


_PLACE = ("data", "per_class", "network", "rate")


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


def noise(gradients: Tensor, hessian: Whole | Factored) -> Tensor:
    """``tr(Sigma H)`` at every walker; Sigma is the covariance of samples' gradients.

    These are (walkers, samples, weights).
    """
    return hessian.forms(gradients).mean(1) - hessian.forms(gradients.mean(1))


def alignment(walk: "Walk", walkers: Tensor, hessian: Whole | Factored) -> float:
    """Wu et al.'s mu, ``tr(Sigma H) / (2 L |H|_F^2)``; numerator and L are means over walkers."""
    many = max(1, _HELD // (len(walk.data[0]) * walkers.shape[1]))
    each = [noise(walk.sample_gradients(some), hessian) for some in walkers.split(many)]
    return float(torch.cat(each).mean() / (2 * walk.losses(walkers).mean() * hessian.norm**2))


def escape(settings: dict[str, Any], seed: int) -> dict[str, Any]:
    """SGD from a minimum at ``factor`` times the rate at which the bound is reached.

    The bound on the Frobenius norm of the Hessian is ``sqrt(B / mu) / rate``: beyond, the mean loss
    grows by a factor of at least ``rate^2 mu |H|_F^2 / B = factor^2`` a step. ``data``,
    ``per_class``, ``network`` and the ``rate`` of descent say which minimum.
    """
    place = {name: settings[name] for name in _PLACE if name in settings}
    minimum = descended("mse", _GOAL, seed, **place)
    walk, H = Walk(minimum), minimum.hessian
    batch, factor = settings["batch_size"], settings["factor"]
    start = alignment(walk, walk.start[None], H)
    rate = factor * math.sqrt(batch / start) / H.norm
    history, walkers, end = walk.steps(rate, batch, seed)
    growth = float((history[end].mean() / history[0].mean()).log()) / end
    return {
        "left": float((history.amax(0) > LEFT * history[0]).double().mean()),
        "growth": growth,
        "growth_beyond_bound": growth - 2 * math.log(factor),
        "alignment": start,
        "alignment_at_end": alignment(walk, walkers, H),
        "frobenius_norm": H.norm,
        # Above 1 gradient descent leaves as well, at this rate.
        "rate_of_descent": rate * H.largest / 2,
    }


# --- matrices ------------------------------------------------------------------------------------


def matrices(settings: dict[str, Any], seed: int) -> dict[str, Any]:
    """How far Fisher matrices are from the Hessian, as a share of it, at a small loss.

    That of outputs is Wu et al.'s: ``2/N sum_k df_k df_k^T`` for the square loss. That of losses is
    the empirical Fisher matrix, ``1/N sum_k dl_k dl_k^T``.
    """
    minimum = descended(settings["loss"], settings["goal"], seed)
    H = _whole(hessian(minimum.problem))
    numbers: dict[str, Any] = {}
    for name, operator in (("outputs", ggn), ("losses", fisher)):
        F = _whole(operator(minimum.problem))
        numbers[f"distance_of_{name}"] = float((F - H).norm() / H.norm())
        numbers[f"cosine_of_{name}"] = float((F * H).sum() / F.norm() / H.norm())
    return numbers
