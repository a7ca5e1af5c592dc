"""The PAC-Bayes bound of a posterior that is trained to make it small."""

import functools
import math
from collections.abc import Mapping
from statistics import fmean

import torch
from torch import Tensor

from lowland.batches import Batch
from lowland.budget import Work
from lowland.distributed import before, gathered, total
from lowland.errors import InputError
from lowland.losses import resolve
from lowland.measures.registry import Value, register
from lowland.measures.shared.noisy_weights import averages, draws, kl_inverse
from lowland.measures.shared.standard_error import standard_error
from lowland.problem import Problem

_B, _C = 100, 0.1  # prior variances are c exp(-j/b), j = 1, 2, ...
_DELTA, _DELTA_DRAWS = 0.025, 0.01
_STEPS, _BATCH = 1000, 128
_LR_MEAN, _LR_LOG_S = 1e-3, 1e-2
_SIGMAS = tuple(2.0**-k for k in range(1, 13))  # to start from
_FEW, _MANY = 4, 1000  # draws to choose a start by, and to certify with
_FITS = 4  # trainings by other mini-batches and noise, which move the bound more than the draws do


def optimised_work(problem: Problem) -> Work:
    """Steps on mini-batches, and draws of weights for all samples."""
    batch = min(1.0, _BATCH / problem.count())
    forwards = _FITS * (_FEW * len(_SIGMAS) + 1) + _MANY + 1
    return Work(gradients=_FITS * _STEPS * batch, forwards=forwards)


@register(
    title="PAC-Bayes bound, optimised",
    family="bounds",
    formula="kl^-1(error of Q | (KL(Q||P) + 2 ln j + ln(pi^2 m/(6 delta))) / (m - 1)), "
    "Q = mean of 4 N(w', diag s), P = N(w_0, c e^(-j/b) I)",
    definition="A bound on the error of weights drawn from one of four Gaussians, true with "
    "probability 0.965 (delta = 0.025, and 0.01 for the draws), after 1,000 steps of training the "
    "mean and variances of each from w on; 1 says nothing.",
    citation="Dziugaite & Roy, UAI 2017",
    sharper="higher",
    cost=optimised_work,
    needs_initial=True,
    trains=True,
)
def pac_bayes_optimised(problem: Problem) -> Value:
    """Train on surrogate loss + sqrt(bound / 2), then certify the error by fresh draws.

    KL(Q||P) of a mixture Q is at most the mean KL of its parts, so the mean of four trainings has a
    bound as well, and their spread is its standard error. The part ``relaxed`` bounds by Pinsker's
    inequality instead: looser, but it still tells apart models where the bound itself is 1.
    """
    if not problem.loss.classes:
        raise InputError(f"Q is trained on class labels; the loss is {problem.loss.name!r}")
    problem.wrong()  # an error in words where the targets are shares of classes
    m = problem.count()
    if m < 2:
        raise InputError("the bound divides by m - 1; it needs two training samples or more")
    w0 = _flat(problem.initial)
    fits = [_trained(problem, w0, m, seed) for seed in range(_FITS)]
    free = _best_index(*fits, w0=w0)
    costs, j = min(
        ((_costs(fits, w0, j, m), j) for j in (math.floor(free), math.ceil(free))),
        key=lambda pair: float(pair[0].mean()),
    )
    errors = torch.stack([_drawn_errors(problem, *fit, seed) for seed, fit in enumerate(fits)])
    certainty = math.log(2 / _DELTA_DRAWS) / _MANY

    def certified(error: Tensor, cost: Tensor) -> float:
        return kl_inverse(kl_inverse(float(error), certainty), float(cost))

    error, cost = errors.mean(), costs.mean()
    each = torch.tensor([certified(*pair) for pair in zip(errors.mean(1), costs, strict=True)])
    return Value(
        certified(error, cost),
        f"{_FITS} trainings of {_STEPS} steps of Adam, {_MANY} draws",
        standard_error(each),
        {
            "train_error_of_Q": float(error),
            "kl": fmean(float(_kl(mean, s, w0, _variance(j))) for mean, s in fits),
            "lambda": _variance(j),
            "relaxed": kl_inverse(float(error), certainty) + float(cost / 2) ** 0.5,
        },
    )


def _drawn_errors(problem: Problem, mean: Tensor, s: Tensor, seed: int) -> Tensor:
    """The training errors of weights drawn from one fit, its share of all draws."""
    centre, std = _shaped(mean, problem.params), _shaped(s.sqrt(), problem.params)
    drawn = draws(centre, std, _MANY // _FITS, seed=3 * _FITS + seed)
    return averages(problem, drawn, problem.batch_wrong)


def _trained(problem: Problem, w0: Tensor, m: int, seed: int) -> tuple[Tensor, Tensor]:
    """The mean and variances of one fit, (d,) each, by Adam."""
    with problem.measuring():
        mean = _flat(problem.params)
        log_s = torch.full_like(mean, 2 * math.log(_start(problem, mean, w0, m, seed)))
        mean.requires_grad_()
        log_s.requires_grad_()
        optimiser = torch.optim.Adam(
            [{"params": [mean], "lr": _LR_MEAN}, {"params": [log_s], "lr": _LR_LOG_S}]
        )
        # Mini-batches are drawn from the samples sorted by loss: their order must not matter.
        order = gathered(problem.losses()).argsort().cpu()
        start = before(len(problem.train))
        batches = torch.Generator().manual_seed(_FITS + seed)
        noises = torch.Generator(device=problem.device).manual_seed(2 * _FITS + seed)
        for _ in range(_STEPS):
            chosen = order[torch.randperm(m, generator=batches)[:_BATCH]]
            noise = torch.randn(mean.shape, generator=noises, device=mean.device, dtype=mean.dtype)
            w = mean + (log_s / 2).exp() * noise
            slope = _gradient(problem, w.detach(), chosen - start)
            cost = _cost(mean, log_s.exp(), w0, _best_index((mean, log_s.exp()), w0=w0), m)
            optimiser.zero_grad()
            (slope @ w + (cost / 2).sqrt()).backward()  # slope @ w has the loss's gradient
            optimiser.step()
    return mean.detach(), log_s.detach().exp()


def _start(problem: Problem, mean: Tensor, w0: Tensor, m: int, seed: int) -> float:
    """The one standard deviation for all weights that makes the objective least."""

    def objective(sigma: float) -> float:
        noisy = draws(problem.params, dict.fromkeys(problem.params, sigma), _FEW, seed)
        s = torch.full_like(mean, sigma**2)
        cost = _cost(mean, s, w0, _best_index((mean, s), w0=w0), m)
        return (
            float(averages(problem, noisy, functools.partial(_surrogate, problem)).mean())
            + float(cost / 2) ** 0.5
        )

    return min(_SIGMAS, key=objective)


def _surrogate(problem: Problem, batch: Batch, params: Mapping[str, Tensor]) -> Tensor:
    """Cross-entropy in bits: at least 1 where the sample is misclassified."""
    outputs = problem.outputs(batch.inputs, params)
    return resolve("cross_entropy")(outputs, batch.targets) / math.log(2)


def _gradient(problem: Problem, w: Tensor, chosen: Tensor) -> Tensor:
    """The gradient of the surrogate loss on some samples, (d,), of which each rank has its own."""
    leaves = {n: t.requires_grad_() for n, t in _shaped(w, problem.params).items()}
    slope = torch.zeros_like(w)
    own = chosen[(chosen >= 0) & (chosen < len(problem.train))]
    whole = problem.place(problem.train.take(own))
    for batch in whole.split(problem.train.batch_size):  # what the user lets through at once
        if len(batch):
            loss = _surrogate(problem, batch, leaves).sum()
            parts = torch.autograd.grad(loss, list(leaves.values()), materialize_grads=True)
            slope += _flat(dict(zip(leaves, parts, strict=True)))
    return total(slope) / len(chosen)


def _variance(j: float) -> float:
    return _C * math.exp(-j / _B)


def _best_index(*fits: tuple[Tensor, Tensor], w0: Tensor) -> float:
    """The j >= 1, not rounded, whose prior has the least KL: its variance is Q's second moment."""
    moment = fmean(float((s + (mean - w0).square()).mean().detach()) for mean, s in fits)
    return max(1.0, -_B * math.log(moment / _C))


def _kl(mean: Tensor, s: Tensor, w0: Tensor, variance: float) -> Tensor:
    ratio = s / variance
    return ((mean - w0).square() / variance + ratio - 1 - ratio.log()).sum() / 2


def _cost(mean: Tensor, s: Tensor, w0: Tensor, j: float, m: int) -> Tensor:
    """What kl(error on the sample || error) is at most, by a union bound over all j."""
    union = 2 * math.log(j) + math.log(math.pi**2 * m / (6 * _DELTA))
    return (_kl(mean, s, w0, _variance(j)) + union) / (m - 1)


def _costs(fits: list[tuple[Tensor, Tensor]], w0: Tensor, j: float, m: int) -> Tensor:
    return torch.stack([_cost(mean, s, w0, j, m) for mean, s in fits])


def _flat(params: Mapping[str, Tensor]) -> Tensor:
    return torch.cat([p.detach().double().flatten() for p in params.values()])


def _shaped(flat: Tensor, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    parts = flat.split([p.numel() for p in like.values()])
    return {n: t.view_as(p).to(p) for (n, p), t in zip(like.items(), parts, strict=True)}
