"""The Gaussian PAC-Bayes bound, term by term."""

import math

from torch import Tensor

from lowland.budget import Work
from lowland.distributed import gathered, ranks
from lowland.measures.registry import Value, register
from lowland.measures.shared.noisy_weights import (
    averages,
    draws,
    kl_inverse,
    prior_mean,
    squared_distance,
)
from lowland.problem import Problem

# Standard deviations of the noise that may be chosen after seeing the data.
_SIGMAS = tuple(2.0**-k for k in range(1, 13))
# delta = 0.05 in all: for the bound itself, and for the error of Q known only from draws.
_DELTA, _DELTA_DRAWS = 0.04, 0.01
_FEW, _MANY = 2, 50  # draws to choose sigma by, and fresh ones to certify with
# Parts of the samples that draws go through in turn, and the samples of each at least: with 100 of
# them, 50 draws leave 0.007 of an error open at most, and certifying adds ten times that or more.
_PARTS, _SAMPLES = (1, 2, 5, 10), 100


def _parts(problem: Problem) -> int:
    """How many parts the samples are divided into; they divide the draws evenly."""
    if ranks() > 1 or problem.sharded:
        return 1
    return max(n for n in _PARTS if n == 1 or n * _SAMPLES <= problem.count())


def _excess(problem: Problem, distance: float, sigma: float) -> tuple[float, float]:
    """What the bound adds to L_S(Q), and the lambda that makes it least."""
    m, kl = problem.count(), distance / (2 * sigma**2)
    lambdas = [2.0**j for j in range(math.ceil(math.log2(2 * m)) + 1)]
    choices = math.log(len(_SIGMAS) * len(lambdas) / _DELTA)
    return min(((kl + choices) / each + each / (2 * m), each) for each in lambdas)


def bound_work(problem: Problem) -> Work:
    """Passes to certify with, and to choose sigma: no error is above 1, so that some are out."""
    distance = squared_distance(problem.params, prior_mean(problem))
    added = [_excess(problem, distance, sigma)[0] for sigma in _SIGMAS]
    tried = sum(each < 1 + added[0] for each in added)
    return Work(forwards=1 + (_FEW * tried + _MANY) / _parts(problem))


@register(
    title="PAC-Bayes bound",
    family="bounds",
    formula="min_(sigma,lambda) L_S(Q) + (|w - w_0|^2/(2 sigma^2) + ln(choices/delta))/lambda "
    "+ lambda/(2m)",
    definition="A bound on the error of weights drawn from Q = N(w, sigma^2 I), true with "
    "probability 0.95 (delta = 0.05), for the prior N(w_0, sigma^2 I) around the initial weights, "
    "or 0 where they are not given; above 1 it says nothing about the error.",
    citation="Tsuzuku, Sato & Sugiyama, ICML 2020, Eq. 1-4; Germain et al., NeurIPS 2016",
    sharper="higher",
    cost=bound_work,
)
def pac_bayes(problem: Problem) -> Value:
    """Sigma from powers of 2, and lambda too: Eq. 1 holds for all of them by a union bound."""
    train_error = float(gathered(problem.wrong()).mean())
    m = problem.count()
    distance = squared_distance(problem.params, prior_mean(problem))

    def excess(sigma: float) -> tuple[float, float]:
        return _excess(problem, distance, sigma)

    parts = _parts(problem)

    def errors(sigma: float, count: int, seed: int) -> Tensor:
        drawn = draws(problem.params, dict.fromkeys(problem.params, sigma), count, seed)
        return averages(problem, drawn, problem.batch_wrong, parts)

    best, sigma = math.inf, _SIGMAS[0]
    for each in _SIGMAS:  # from the cheapest prior on
        if excess(each)[0] >= best:
            break
        bound = float(errors(each, _FEW, 0).mean()) + excess(each)[0]
        if bound < best:
            best, sigma = bound, each

    noisy_errors = errors(sigma, _MANY, 1)
    error, stderr = float(noisy_errors.mean()), float(noisy_errors.std()) / _MANY**0.5
    confidence = math.log(1 / _DELTA_DRAWS) / _MANY
    most = parts * -(-m // parts) / m  # the largest number that a draw can have

    def at_most(error: float) -> float:
        """The bound on the mean over all draws; Chernoff's also holds for draws of many kinds."""
        return most * kl_inverse(min(error / most, 1.0), confidence)

    certified = at_most(error)
    added, best_lambda = excess(sigma)
    kl_term = distance / (2 * sigma**2) / best_lambda
    terms = {
        "train_error": train_error,
        "C_rise": error - train_error,
        "B_kl": kl_term,
        "confidence": added - kl_term + certified - error,
        "sigma": sigma,
        "lambda": best_lambda,
    }
    some = f", each with {-(-m // parts):,} of the samples" if parts > 1 else ""
    return Value(
        certified + added,
        f"{_MANY} draws{some}, their mean certified by Chernoff's bound",
        at_most(error + stderr) - certified,
        terms,
    )
