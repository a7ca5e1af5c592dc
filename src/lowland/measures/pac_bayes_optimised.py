"""The PAC-Bayes bound of a posterior that is trained to make it small."""

import functools
import math
from collections.abc import Mapping

import torch
from torch import Tensor

from lowland.batches import Batch
from lowland.budget import Work
from lowland.errors import InputError
from lowland.losses import resolve
from lowland.measures.registry import Value, register
from lowland.measures.shared.noisy_weights import averages, draws, kl_inverse
from lowland.problem import Problem

_B, _C = 100, 0.1  # prior variances are c exp(-j/b), j = 1, 2, ...
_DELTA, _DELTA_DRAWS = 0.025, 0.01
_STEPS, _BATCH = 1000, 128
_LR_MEAN, _LR_LOG_S = 1e-3, 1e-2
_SIGMAS = tuple(2.0**-k for k in range(1, 13))  # to start from
_FEW, _MANY = 4, 1000  # draws to choose the start by, and to certify with


def optimised_work(problem: Problem) -> Work:
    """Steps on mini-batches, and draws of weights for all samples."""
    batch = min(1.0, _BATCH / problem.count())
    return Work(gradients=_STEPS * batch, forwards=_FEW * len(_SIGMAS) + _MANY + 2)


@register(
    title="PAC-Bayes bound, optimised",
    family="bounds",
    formula="kl^-1(error of Q | (KL(Q||P) + 2 ln j + ln(pi^2 m/(6 delta))) / (m - 1)), "
    "Q = N(w', diag s), P = N(w_0, c e^(-j/b) I)",
    definition="A bound on the error of weights drawn from a Gaussian Q, true with probability "
    "0.965 (delta = 0.025, and 0.01 for the draws), after 1,000 steps of training Q's mean and "
    "variances from w on; 1 says nothing.",
    citation="Dziugaite & Roy, UAI 2017",
    sharper="higher",
    cost=optimised_work,
    needs_initial=True,
    trains=True,
)
def pac_bayes_optimised(problem: Problem) -> Value:
    """Train Q on surrogate loss + sqrt(bound / 2), then certify its error by fresh draws.

    The part ``relaxed`` bounds by Pinsker's inequality instead: looser, but it still tells apart
    models where the bound itself is 1.
    """
    if not problem.loss.classes:
        raise InputError(f"Q is trained on class labels; the loss is {problem.loss.name!r}")
    problem.wrong()  # an error in words where the targets are shares of classes
    m = len(problem.train)
    if m < 2:
        raise InputError("the bound divides by m - 1; it needs two training samples or more")
    w0 = _flat(problem.initial)
    mean, s = _trained(problem, w0, m)
    free = _best_index(mean, s, w0)
    cost, j = min((float(_cost(mean, s, w0, j, m)), j) for j in (math.floor(free), math.ceil(free)))
    centre, std = _shaped(mean, problem.params), _shaped(s.sqrt(), problem.params)
    drawn_errors = averages(problem, draws(centre, std, _MANY, seed=2), problem.batch_wrong)

    certainty = math.log(2 / _DELTA_DRAWS) / _MANY

    def certified(error: float) -> float:
        return kl_inverse(kl_inverse(error, certainty), cost)

    error, stderr = float(drawn_errors.mean()), float(drawn_errors.std()) / _MANY**0.5
    return Value(
        certified(error),
        f"{_STEPS} steps of Adam, {_MANY} draws",
        certified(min(error + stderr, 1.0)) - certified(error),
        {
            "train_error_of_Q": error,
            "kl": float(_kl(mean, s, w0, _variance(j))),
            "lambda": _variance(j),
            "relaxed": kl_inverse(error, certainty) + (cost / 2) ** 0.5,
        },
    )


def _trained(problem: Problem, w0: Tensor, m: int) -> tuple[Tensor, Tensor]:
    """The mean and variances of Q, (d,) each, by Adam."""
    with problem.measuring():
        mean = _flat(problem.params)
        log_s = torch.full_like(mean, 2 * math.log(_start(problem, mean, w0, m)))
        mean.requires_grad_()
        log_s.requires_grad_()
        optimiser = torch.optim.Adam(
            [{"params": [mean], "lr": _LR_MEAN}, {"params": [log_s], "lr": _LR_LOG_S}]
        )
        # Mini-batches are drawn from the samples sorted by loss: their order must not matter.
        order = problem.losses().argsort().cpu()
        batches = torch.Generator().manual_seed(0)
        noises = torch.Generator(device=problem.device).manual_seed(1)
        for _ in range(_STEPS):
            chosen = order[torch.randperm(m, generator=batches)[:_BATCH]]
            noise = torch.randn(mean.shape, generator=noises, device=mean.device, dtype=mean.dtype)
            w = mean + (log_s / 2).exp() * noise
            slope = _gradient(problem, w.detach(), chosen)
            cost = _cost(mean, log_s.exp(), w0, _best_index(mean, log_s.exp(), w0), m)
            optimiser.zero_grad()
            (slope @ w + (cost / 2).sqrt()).backward()  # slope @ w has the loss's gradient
            optimiser.step()
    return mean.detach(), log_s.detach().exp()


def _start(problem: Problem, mean: Tensor, w0: Tensor, m: int) -> float:
    """The one standard deviation for all weights that makes the objective least."""

    def objective(sigma: float) -> float:
        noisy = draws(problem.params, dict.fromkeys(problem.params, sigma), _FEW, seed=0)
        s = torch.full_like(mean, sigma**2)
        cost = _cost(mean, s, w0, _best_index(mean, s, w0), m)
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
    """The gradient of the surrogate loss on some samples, (d,)."""
    leaves = {n: t.requires_grad_() for n, t in _shaped(w, problem.params).items()}
    total = torch.zeros_like(w)
    whole = problem.place(problem.train.take(chosen))
    for batch in whole.split(problem.train.batch_size):  # what the user lets through at once
        loss = _surrogate(problem, batch, leaves).sum()
        parts = torch.autograd.grad(loss, list(leaves.values()), materialize_grads=True)
        total += _flat(dict(zip(leaves, parts, strict=True)))
    return total / len(whole)


def _variance(j: float) -> float:
    return _C * math.exp(-j / _B)


def _best_index(mean: Tensor, s: Tensor, w0: Tensor) -> float:
    """The j >= 1, not rounded, whose prior has the least KL: its variance is Q's second moment."""
    moment = float((s + (mean - w0).square()).mean().detach())
    return max(1.0, -_B * math.log(moment / _C))


def _kl(mean: Tensor, s: Tensor, w0: Tensor, variance: float) -> Tensor:
    ratio = s / variance
    return ((mean - w0).square() / variance + ratio - 1 - ratio.log()).sum() / 2


def _cost(mean: Tensor, s: Tensor, w0: Tensor, j: float, m: int) -> Tensor:
    """What kl(error on the sample || error) is at most, by a union bound over all j."""
    union = 2 * math.log(j) + math.log(math.pi**2 * m / (6 * _DELTA))
    return (_kl(mean, s, w0, _variance(j)) + union) / (m - 1)


def _flat(params: Mapping[str, Tensor]) -> Tensor:
    return torch.cat([p.detach().double().flatten() for p in params.values()])


def _shaped(flat: Tensor, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    parts = flat.split([p.numel() for p in like.values()])
    return {n: t.view_as(p).to(p) for (n, p), t in zip(like.items(), parts, strict=True)}
