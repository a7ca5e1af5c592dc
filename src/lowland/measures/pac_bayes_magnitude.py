"""The PAC-Bayes bound for noise in proportion to each weight."""

import functools
import math
from collections.abc import Callable

import torch
from torch import Tensor

from lowland.budget import Work
from lowland.distributed import gathered
from lowland.errors import InputError
from lowland.measures.registry import Value, register
from lowland.measures.shared.neighbourhood import neighbourhood
from lowland.measures.shared.noisy_weights import noises, prior_mean
from lowland.measures.shared.ray import Ray
from lowland.measures.shared.standard_error import standard_error
from lowland.problem import Problem

_EPSILON = 1e-3
_RISE = 0.1
_DELTA = 0.05
_PAIRS = 3
_EVALUATIONS, _MOST_EVALUATIONS = 5, 100  # of sigma: as a rule, and at most
_CLOSE = 1e-5  # relative distance from the rise that counts as none
_ROUNDING = 1e-2  # and where a loss is so large that its rounding is more
_QUADRATIC = 2.0  # the power of sigma that a small rise goes with
_FARTHEST = math.log(2)  # that a step goes on the scale of log sigma
_LONG = 1e-2  # a step there that tells the steepness
_LEAST, _MOST = 1e-6, 1e3  # what counts as a rise; more is cut off, also what overflows
_RANGE = 2.0**-20, 2.0**20


@register(
    title="PAC-Bayes bound, magnitude-aware",
    family="bounds",
    formula="sqrt((1/4 sum_i ln((eps^2 + (sigma^2 + 1) |w - w_0|^2/omega) / (eps^2 + sigma^2 "
    "(w_i - w_{0i})^2)) + ln(m/delta) + 10) / (m - 1))",
    definition="A bound on the generalisation gap of weights with noise of variance sigma^2 (w_i - "
    "w_{0i})^2 + eps^2 (delta = 0.05, eps = 0.001, omega weights), at the sigma that raises the "
    "training loss by 0.1; w_0 are the initial weights, or 0 where they are not given.",
    citation="Jiang et al., ICLR 2020, magnitude-aware perturbation bounds (pacbayes-mag-init)",
    sharper="higher",
    cost=Work(forwards=1 + 2 * _PAIRS * _EVALUATIONS),
)
def pac_bayes_magnitude(problem: Problem) -> Value:
    """Sigma by root finding with the same noise throughout; its error becomes the value's.

    The authors ask for a training error of 0.1 under noise. The rise of the loss is taken here, so
    that every model has a sigma. Their 10 stands for what the theorem leaves as O(1).
    """
    problem.wrong()  # an error in words where there are no classes
    m = problem.count()
    if m < 2:
        raise InputError("the bound divides by m - 1; it needs two training samples or more")
    w, start, near = problem.params, prior_mean(problem), neighbourhood(problem)
    squares = {n: (w[n].double() - start[n].double()).square() for n in w}
    omega = sum(s.numel() for s in squares.values())
    mean_square = sum(float(s.sum()) for s in squares.values()) / omega
    loss = float(gathered(problem.losses()).double().mean())

    @functools.cache
    def rises(log_sigma: float) -> Tensor:
        """How much each pair of opposite noises raises the training loss, (pairs,)."""
        sigma2 = math.exp(2 * log_sigma)
        std = {n: (sigma2 * s + _EPSILON**2).sqrt().to(w[n]) for n, s in squares.items()}
        rays = (Ray(near, near.flat(noise)) for noise in noises(w, std, _PAIRS, seed=0))
        noisy = [(ray.loss(1) + ray.loss(-1)) / 2 for ray in rays]
        return torch.tensor(noisy, dtype=torch.float64) - loss

    def over(log_sigma: float) -> float:
        """How far the mean rise is above 0.1, on a logarithmic scale: nearly linear."""
        rise = float(rises(log_sigma).nan_to_num(nan=_MOST).clamp_max(_MOST).mean())
        return math.log(max(rise, _LEAST) / _RISE)

    def bound(log_sigma: float) -> float:
        sigma2 = math.exp(2 * log_sigma)
        prior = math.log(_EPSILON**2 + (sigma2 + 1) * mean_square)
        logs = sum(
            float((prior - (_EPSILON**2 + sigma2 * s).log()).sum()) for s in squares.values()
        )
        return math.sqrt((logs / 4 + math.log(m / _DELTA) + 10) / (m - 1))

    log_root, steepness = _crossing(over)
    h = 1e-3
    error = standard_error(rises(log_root)) or 0.0
    moved = abs(bound(log_root + h) - bound(log_root - h)) / (2 * h)
    sigma = math.exp(log_root)
    return Value(
        bound(log_root),
        f"sigma by root finding on {_PAIRS} pairs of noises",
        moved * error / (_RISE * steepness),
        {"sigma": sigma, "1/sigma^2": sigma**-2, "rise": _RISE * math.exp(over(log_root))},
    )


def _crossing(over: Callable[[float], float]) -> tuple[float, float]:
    """Where ``over`` becomes positive, and how steep it is there, by secants from sigma = 1.

    A rise that is quadratic in sigma has a steepness of 2. A step goes no farther than a factor of
    two, and never beyond points on either side of the crossing that are known already.
    """
    log_sigma, height, steepness = 0.0, over(0.0), _QUADRATIC
    seen = _QUADRATIC  # the steepness by the last step that is long beside the rounding of losses
    below, above = -math.inf, math.inf
    for _ in range(_MOST_EVALUATIONS):
        # Beside a crossing that is this well known, the height is the rounding of the losses.
        if abs(height) <= _CLOSE or (above - below <= _CLOSE and abs(height) <= _ROUNDING):
            return log_sigma, seen
        below, above = (below, log_sigma) if height > 0 else (log_sigma, above)
        if above < math.log(_RANGE[0]):
            raise InputError(
                f"noise of {_EPSILON} on every weight already raises the training loss by "
                f"{_RISE}; the measure is not defined here"
            )
        if below > math.log(_RANGE[1]):
            raise InputError(
                f"no noise in proportion to the weights raises the training loss by {_RISE}"
            )
        following = log_sigma - max(-_FARTHEST, min(_FARTHEST, height / steepness))
        if not below < following < above:
            following = (below + above) / 2
        if following in (below, above):
            break
        before, last = height, log_sigma
        log_sigma, height = following, over(following)
        steepness = (height - before) / (log_sigma - last)
        if not steepness > _QUADRATIC / 10:  # where it falls or is level, a secant leads astray
            steepness = _QUADRATIC
        elif abs(log_sigma - last) > _LONG:
            seen = steepness
    raise InputError(
        f"the training loss under noise does not tell where it rises by {_RISE}: it jumps there, "
        "or is so large that its rounding does; double precision may help, Problem(dtype=...)"
    )
