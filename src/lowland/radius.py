"""Which radius of SAM is worth trying on a model."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from lowland.curvature import eigsh, hessian
from lowland.errors import InputError
from lowland.measures import constant_prediction
from lowland.measures.shared.neighbourhood import Neighbourhood
from lowland.measures.shared.ray import Ray
from lowland.problem import Problem, of_a_problem

_FACTOR = math.sqrt(10)  # between two radii of the ladder
_TOP = 0.5  # of the high end: the largest radius to try (docs/optimisers.md has the experiment)
_RISE = 0.01  # of the way from the loss to the ceiling: below it, SAM sees what SGD sees
_BATCHES = 8
_BATCH = 32  # samples, if the problem does not say what it was trained with
_HALVINGS = 3  # of a factor: the ends are found to within 16 %
_LARGEST = 1e6
_FORWARD = 1 / 3  # of the cost of a gradient
_ETA = 0.01  # of ASAM


@dataclass(frozen=True, repr=False)
class RhoRange:
    """From which radius on SAM differs from its base, and from which on it cannot learn.

    ``low``: on its way up the gradient of a batch, the batch's loss has risen by a hundredth of the
    way from ``loss`` to ``ceiling``. ``high``: it has reached ``ceiling``, the loss of a network
    that learned nothing. ``edge``: from here on SAM with the learning rate of the problem leaves
    the place where the network is (Long & Bartlett, JMLR 2024); None if no rate is known or the
    search for the eigenvalue did not converge, and 0 if plain gradient descent leaves it already.
    """

    low: float
    high: float
    ladder: tuple[float, ...]  # radii to try, from small to large: half of high is the last
    loss: float  # of the batches, at the weights
    ceiling: float
    edge: float | None
    adaptive: bool  # radii of ASAM
    batch_size: int
    gradients: float  # what it cost, in gradients of one batch

    def __repr__(self) -> str:
        tried = ", ".join(f"{rho:g}" for rho in self.ladder)
        edge = "" if self.edge is None else f", edge {self.edge:.2g}"
        return (
            f"RhoRange({'ASAM' if self.adaptive else 'SAM'}: {self.low:.2g} to {self.high:.2g}, "
            f"try {tried}{edge}; cost {self.gradients:.0f} gradients of {self.batch_size} samples)"
        )

    def describe(self) -> str:
        """What the numbers mean, in sentences."""
        name = "ASAM" if self.adaptive else "SAM"
        text = (
            f"Below a radius of {self.low:.2g}, {name} hardly differs from its base: the loss of a "
            f"batch rises from {self.loss:.3g} by less than {_RISE:.0%} of the way to "
            f"{self.ceiling:.3g}, that of a network that learned nothing. At {self.high:.2g} it is "
            f"there, and {name} trains against a network that knows nothing."
        )
        if self.edge is not None:
            text += (
                f" From {self.edge:.2g} on, SAM with this learning rate cannot stay at these "
                "weights, and looks for flatter ones."
            )
        return text


@of_a_problem
def rho_range(
    problem: Problem, *, adaptive: bool = False, ceiling: float | None = None, seed: int = 0
) -> RhoRange:
    """The radii of SAM between doing nothing and destroying the network, measured on the network.

    Give a network that has learned something, by the base optimiser alone; some epochs are enough.
    Batches have the size that the problem names (``training={"batch_size": ...}``), or 32 samples.
    With ``training={"learning_rate": ...}`` the edge of stability is told as well, which takes the
    largest eigenvalue of the Hessian and costs most of the time.

    Args:
        problem: the trained network, its loss and its data.
        adaptive: radii of ASAM instead, with its ``eta`` of 0.01.
        ceiling: the loss of a network that learned nothing; by default that of the best outputs
            that are the same for all samples.
        seed: of the choice of batches.
    """
    if ceiling is None:
        ceiling, _ = constant_prediction(problem)
    if ceiling is None:
        raise InputError(
            "what a network that learned nothing would lose is not known for this loss; pass "
            "ceiling=..., for instance the loss before training"
        )
    size = min(int(problem.training.get("batch_size", _BATCH)), len(problem.train))
    if size < 1:
        raise InputError(
            f"training['batch_size'] must be at least 1; got {problem.training['batch_size']}"
        )
    order = torch.randperm(len(problem.train), generator=torch.Generator().manual_seed(seed))
    batches = [problem.subset(rows) for rows in order[: size * _BATCHES].split(size)]
    lines = [_ascent(Neighbourhood(batch), adaptive) for batch in batches if len(batch.train)]
    cost = float(len(lines))

    def loss_at(rho: float) -> float:
        nonlocal cost
        cost += _FORWARD * len(lines)
        return sum(line(rho) for line in lines) / len(lines)

    loss = loss_at(0.0)
    if not loss < ceiling:
        raise InputError(
            f"the network has learned nothing yet: its loss is {loss:.3g}, and that of a constant "
            f"prediction {ceiling:.3g}; train it for some epochs, then ask again"
        )
    high = _crossing(loss_at, ceiling)
    low = min(high, _crossing(loss_at, loss + _RISE * (ceiling - loss)))
    edge = None
    if "learning_rate" in problem.training and not adaptive:
        edge, matvecs = _edge(problem, problem.training["learning_rate"])
        cost += (1 + 2 * matvecs) * len(problem.train) / size
    return RhoRange(low, high, _ladder(low, high), loss, ceiling, edge, adaptive, size, cost)


def _ascent(near: Neighbourhood, adaptive: bool) -> Callable[[float], float]:
    """The loss of a batch at a distance along SAM's step."""
    _, slope = near.origin
    metric: Tensor | float = near.w.abs() + _ETA if adaptive else 1.0
    norm = (slope * metric).norm()
    direction = slope * metric**2 / norm if norm > 0 else slope
    return Ray(near, direction).loss


def _crossing(loss_at: Callable[[float], float], level: float) -> float:
    """The distance at which the loss passes a level, by factors and then by halving them."""

    def above(rho: float) -> bool:
        return not loss_at(rho) < level  # a loss that is no number is above all

    rho = 0.1
    if above(rho):
        while above(rho / _FACTOR) and rho > 1 / _LARGEST:
            rho /= _FACTOR
        below = rho / _FACTOR
    else:
        while not above(rho * _FACTOR):
            rho *= _FACTOR
            if rho > _LARGEST:
                raise InputError(
                    f"the loss stays below {level:.3g} up to a distance of {rho:.0g}: the network "
                    "does not depend on the size of its weights; use adaptive=True"
                )
        below = rho
    factor = _FACTOR
    for _ in range(_HALVINGS):
        factor **= 0.5
        if not above(below * factor):
            below *= factor
    return below * factor**0.5  # the middle of what is left


def _edge(problem: Problem, rate: float) -> tuple[float | None, int]:
    """The radius at which SAM's edge of stability is the largest eigenvalue, and its products.

    SAM is stable along an eigenvector while ``rate lambda (1 + rho lambda / |g|) < 2``.
    """
    _, slopes = problem.gradient()
    norm = math.sqrt(sum(float(slope.square().sum()) for slope in slopes.values()))
    pairs = eigsh(hessian(problem), 1, which="largest")
    largest = float(pairs.values[0])
    if not pairs.converged:
        return None, pairs.matvecs
    if not 0 < largest * rate < 2:
        return 0.0, pairs.matvecs
    return norm * (2 / (rate * largest) - 1) / largest, pairs.matvecs


def _ladder(low: float, high: float) -> tuple[float, ...]:
    """Radii from half of the high end down to the low one, in two digits; at least one."""
    top = _TOP * high
    count = 1 + int(math.log(max(1.0, top / low), _FACTOR))
    return tuple(float(f"{top / _FACTOR**i:.2g}") for i in reversed(range(count)))
