"""Standard errors of means and shares of few samples: two of them hold the truth in 95 %."""

import math

import torch
from scipy.special import stdtrit
from torch import Tensor

from lowland.distributed import gathered
from lowland.errors import InputError
from lowland.measures.shared.class_scores import class_scores
from lowland.problem import Problem

_TWO_SIGMA = 0.97725  # of a normal distribution is below two standard deviations
_SOME = 30  # samples


def standard_error(values: Tensor) -> float | None:
    """The standard error of the mean of independent numbers; None for a single one.

    It is widened such that two of them hold what two of a normal distribution do (Student).
    """
    n = len(values)
    if n < 2:
        return None
    return float(values.double().std()) / n**0.5 * float(stdtrit(n - 1, _TWO_SIGMA)) / 2


def share_error(wrong: Tensor) -> float:
    """The standard error of the mean of numbers between 0 and 1; never 0, even if all are equal.

    Wilson's interval of two standard deviations reaches ``half`` to both sides of a centre that is
    ``away`` from the share. From 30 samples on the error is the root of both squares, halved: two
    of it hold shares of three samples and more in 90 to 98.5 % of cases. Of fewer samples it is
    half the way to the farther end, and two of it hold them in 92 % and more.
    """
    half, away = _wilson(wrong)
    return (math.hypot(half, away) if len(wrong) >= _SOME else half + away) / 2


def _wilson(wrong: Tensor) -> tuple[float, float]:
    """Half the width of Wilson's interval, and how far its centre is from the share."""
    n, share = len(wrong), float(wrong.mean())
    centre = (share * n + 2) / (n + 4)
    return 2 * math.sqrt(n * share * (1 - share) + 1) / (n + 4), abs(centre - share)


def loss_error(problem: Problem, losses: Tensor) -> float | None:
    """The standard error of the mean test loss, from the losses of all ranks, (n,).

    A classifier's loss is next to nothing but for few samples, and a test set that happens to miss
    them shows no spread at all: over networks and test sets of 5 to 300 samples two of Student's
    errors held the truth in 39 to 91 %. So the error is at least half the way to the farther end of
    the interval of the share of wrong predictions, times what one costs: the mean over the wrong
    ones, and over one more that costs what the likeliest wrong label would, weighted by the root of
    its probability, less the mean over the right ones. That gave 94 % and more, and of untrained
    networks 94 to 98 %.
    """
    spread = standard_error(losses)
    try:
        scores = list(class_scores(problem, "test"))
    except InputError:  # no labels
        return spread
    z, y = (gathered(torch.cat(parts)) for parts in zip(*scores, strict=True))
    top = z.topk(2, 1).indices
    right = top[:, 0] == y
    if spread is None or bool(((y < 0) | (y >= z.shape[1])).any()):  # padding
        return spread
    with problem.measuring(), torch.no_grad():
        other = problem.loss(z.to(problem.dtype), torch.where(right, top[:, 1], top[:, 0])).double()
    weights = (-(other - other.min()) / 2).exp()
    unseen = float((weights * other).sum() / weights.sum())
    cost = (float(losses[~right].sum()) + unseen) / (int((~right).sum()) + 1)
    if right.any():
        cost -= float(losses[right].mean())
    half, away = _wilson((~right).double())
    return max(spread, (half + away) / 2 * cost)
