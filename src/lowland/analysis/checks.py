"""The identities that a decomposition must satisfy, with what came out."""

import math

import torch

from lowland.dual import Pairs
from lowland.findings import LOST_GAP, SOLVED_LOSSES, TRUSTED, Check, Decomposition
from lowland.problem import Problem

EQ9_LIMIT = 1e-10  # Eq. 9 is an identity: in float64 only rounding may remain
RESIDUAL_LIMIT = 1e-10  # where each sample shows the layer one vector, and the dual is exact
OUTPUTS_LIMIT = 1e-3  # of pairs that count as solved, in single precision
DEFECT_LIMIT = 1e-3  # above it the loss sees the data by another path than the layer


def identities(split: Decomposition) -> tuple[Check, ...]:
    """The identities that the decomposition must satisfy, with what came out."""
    totals = split.totals
    checks = _reproduced(split) if split.fit.solving is None else _solved(split)
    if not split.complete:  # Eq. 9 and 12 hold by definition
        unseen = _check(
            "No direction that was not computed is as sharp",
            totals.unseen_sigma_g / max(float(split.sigma_g[split.n_sharp - 1]), 1e-300),
            1.0,
            "The largest sigma_g that a direction beside those computed can have, over the least "
            "of the sharp ones: above 1 the sharp part may miss some (directions= computes more).",
        )
        return (*checks, unseen)
    assert split.per_pair is not None
    eq9 = _check(
        "Eq. 9 equals the paired gap",
        abs(totals.eq9 - totals.paired_gap) / max(abs(totals.paired_gap), 1e-300),
        EQ9_LIMIT,
        "The sum over directions is the gap again, relative to the gap; only rounding remains.",
    )
    eq12 = _check(
        "Eq. 12 holds both ways",
        abs(totals.total_w - totals.total_w_data) / float(split.per_pair.size.mean()),
        EQ9_LIMIT,
        "The dual variance summed over directions is that of weights and data together, "
        "relative to the mean square of the dual shifts.",
    )
    return (eq9, *checks, eq12)


def _reproduced(split: Decomposition) -> list[Check]:
    """Whether the activity-level dual has the activities and the losses of the test samples."""
    fit = split.fit
    exact = fit.positions == 1
    return [
        _check(
            "The dual weights reproduce the activities",
            fit.duality_residual if exact else fit.mean_residual,
            RESIDUAL_LIMIT if exact else TRUSTED,
            f"The {'largest' if exact else 'mean'} |dW x - W dx| / |W dx| over pairs (Eq. 2).",
        ),
        _check(
            "The dual weights reproduce the losses",
            fit.loss_defect,
            DEFECT_LIMIT if exact else TRUSTED,
            "The mean |l(w + dW, x) - l(w, x')| (Eq. 1), run through the model, relative to the "
            "mean |dl|. A path around the layer, as in a residual network, breaks it.",
        ),
    ]


def _solved(split: Decomposition) -> list[Check]:
    """Whether the output-level dual was found, and for how much of the gap."""
    fit = split.fit
    return [
        _check(
            "The dual weights reproduce the outputs",
            fit.duality_residual,
            OUTPUTS_LIMIT,
            "The largest |f(w + dW, x) - f(w, x')| over pairs that were solved, as a share of what "
            "it is without dW.",
        ),
        _check(
            "The dual weights reproduce the losses",
            fit.loss_defect,
            SOLVED_LOSSES,
            "The mean |l(w + dW, x) - l(w, x')| over all pairs, solved or not, with dW put into "
            "the model, relative to the mean |dl|.",
        ),
        _check(
            "The pairs that were solved hold the gap",
            fit.excluded_share,
            LOST_GAP,
            "The share of the paired gap in pairs whose outputs no change of this layer reaches.",
        ),
    ]


def agreement(problem: Problem, pairs: Pairs) -> Check:
    """Whether the gap of the paired samples is that of all samples.

    Each side's mean loss over the pairs is a weighted mean, sum_i w_i l_i. If the weights had
    nothing to do with the losses, it would differ from the plain mean over n samples by chance:
    with the variance of l times sum_i (w_i - 1/n)^2.
    """
    means, plain, variance = {}, {}, 0.0
    for split, chosen in (("train", pairs.train), ("test", pairs.test)):
        losses = problem.losses(split).double().cpu()
        weights = torch.bincount(chosen, minlength=len(losses)).double() / len(pairs)
        means[split], plain[split] = float(weights @ losses), float(losses.mean())
        apart = float((weights - 1 / len(losses)).square().sum())
        variance += float(losses.var(correction=0)) * apart
    gap, paired = (of["test"] - of["train"] for of in (plain, means))
    return _check(
        "The pairs stand for all samples",
        abs(paired - gap),
        max(TRUSTED * abs(gap), 2 * math.sqrt(variance)),
        f"The gap of all samples is {gap:.3g}, that of the paired ones {paired:.3g}. They should "
        f"differ by less than {TRUSTED:.0%} of the gap, or two standard errors of a choice by "
        "chance: otherwise the partners are not typical of the training data, or many test samples "
        "have none, and the parts are those of another gap.",
    )


def _check(name: str, value: float, limit: float, meaning: str) -> Check:
    return Check(name, value, limit, value <= limit, meaning)
