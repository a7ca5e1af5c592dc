"""Does SGD leave minima whose Frobenius norm is above a bound? Wu et al. (2022), Wu & Su (2023)."""

import dataclasses
import itertools
import math
from typing import Any

import numpy as np

from lowland.sweep.trial import trials
from lowland_studies.claims import at_least, between, on, rises
from lowland_studies.evidence import Column, Runs
from lowland_studies.panels import Against, Panel
from lowland_studies.study import Claim, Study

_ESCAPE = "lowland_studies.field.stability.trial:escape"
_MATRICES = "lowland_studies.field.stability.trial:matrices"
_BELOW, _ABOVE = [0.5, 0.75], [1.5, 2.0]
_BATCHES = [1, 4, 16]
_GOALS = [0.1, 0.01, 0.001]
_LOSSES = ["mse", "cross_entropy"]


def _stays(batch: int) -> Claim:
    return Claim(
        f"Below the bound SGD stays, with batches of {batch}.",
        "Wu et al. 2022: what is stable is below the bound; the converse is asked for here",
        on(
            {"function": _ESCAPE, "factor": _BELOW, "batch_size": batch},
            between("left", -math.inf, 0.05),
        ),
    )


def _with_batches(batch: int, name: str) -> Column:
    """A column of the walks with batches of a size, and no number for others."""

    def column(runs: Runs) -> np.ndarray:
        return np.where(runs.column("batch_size") == batch, runs.column(name), np.nan)

    column.__name__ = f"{name} with batches of {batch}"
    return column


def _walks(name: str, label: str) -> Panel:
    columns = {f"$B$ = {batch}": _with_batches(batch, name) for batch in _BATCHES}
    return Against("factor", columns, label, log="x", where={"function": _ESCAPE})


def _distances(loss: str, title: str) -> Panel:
    return Against(
        "goal",
        {"of outputs": "distance_of_outputs", "of losses": "distance_of_losses"},
        "distance of Fisher matrix",
        log="xy",
        where={"function": _MATRICES, "loss": loss},
        title=title,
    )


def growth_beyond_last_bound(runs: Runs) -> np.ndarray:
    """The growth beyond the bound with the mu that walkers have when they leave."""
    moved = runs.column("alignment_at_end") / runs.column("alignment")
    return runs.column("growth_beyond_bound") - np.log(moved)


def _slow_enough(runs: Runs) -> Runs:
    """The walks at whose rates gradient descent would stay as well."""

    slow = runs.column("rate_of_descent") < 1
    return dataclasses.replace(runs, rows=tuple(itertools.compress(runs.rows, slow)))


_CLOSE = "Wu et al. 2022: at low loss the matrix of outputs is nearly the Hessian"
_LOWEST = {"function": _MATRICES, "goal": _GOALS[-1]}

_LARGE: dict[str, Any] = {  # of the original
    "data": "cifar10",
    "per_class": 100,
    "network": "3072-50-50-50-1",
    "rate": 0.001,
}

STUDY = Study(
    name="stability",
    title="The Frobenius norm of the Hessian, and leaving minima (Wu et al. 2022, Wu and Su 2023)",
    grid=trials(_ESCAPE, factor=[*_BELOW, *_ABOVE], batch_size=_BATCHES, seed=range(5))
    + trials(_MATRICES, loss=_LOSSES, goal=_GOALS, seed=range(5)),
    original=trials(
        _ESCAPE, factor=[*_BELOW, *_ABOVE], batch_size=_BATCHES, seed=range(5), **_LARGE
    )
    + trials(_MATRICES, loss=_LOSSES, goal=_GOALS, seed=range(5)),
    quick=trials(_ESCAPE, factor=[0.5, 2.0], batch_size=_BATCHES, seed=range(3))
    + trials(_MATRICES, loss=_LOSSES, goal=[_GOALS[0], _GOALS[-1]], seed=range(3)),
    panels=(
        _walks("left", "share of walkers that left"),
        _walks("growth", "growth of log loss a step"),
        _walks("rate_of_descent", "rate $\\cdot\\,\\lambda_1 / 2$"),
        _distances("mse", "square loss, one output"),
        _distances("cross_entropy", "cross-entropy"),
    ),
    claims=(
        Claim(
            "Above the bound SGD leaves the minimum.",
            "Wu et al. 2022: it escapes",
            on({"function": _ESCAPE, "factor": _ABOVE}, between("left", 0.95, math.inf)),
        ),
        Claim(
            "It does so where gradient descent at the same rate would stay.",
            "ours: whether it is the noise that it leaves by",
            on(
                {"function": _ESCAPE, "factor": _ABOVE},
                on(_slow_enough, between("left", 0.95, math.inf)),
            ),
            kind="ours",
        ),
        Claim(
            "Above the bound the mean loss grows exponentially.",
            "Wu et al. 2022: E[L] grows as gamma^t with gamma > 1",
            on({"function": _ESCAPE, "factor": _ABOVE}, at_least("growth", 0.0)),
        ),
        Claim(
            "It grows in each step by a factor of rate^2 mu |H|_F^2 / B at least.",
            "Wu et al. 2022: this is gamma, with mu a lower bound along the way",
            on({"function": _ESCAPE, "factor": _ABOVE}, at_least("growth_beyond_bound", 0.0)),
        ),
        Claim(
            "It does with the mu that walkers have when they leave.",
            "ours: whether mu falls on the way",
            on({"function": _ESCAPE, "factor": _ABOVE}, at_least(growth_beyond_last_bound, 0.0)),
            kind="ours",
        ),
        *map(_stays, _BATCHES),
        Claim(
            "Below the bound SGD stays wherever gradient descent at the same rate would.",
            "ours: whether the largest eigenvalue above 2 / rate explains the others",
            on(
                {"function": _ESCAPE, "factor": _BELOW},
                on(_slow_enough, between("left", -math.inf, 0.05)),
            ),
            kind="ours",
        ),
        Claim(
            "The alignment mu of noise and Hessian is of order one.",
            "Wu et al. 2022: bounded from below by a constant, whatever the size",
            on({"function": _ESCAPE}, between("alignment", 1 / 3, 3.0)),
        ),
        Claim(
            "Square loss: the Fisher matrix of outputs is nearer to the Hessian where the loss is "
            "smaller.",
            _CLOSE,
            on(
                {"function": _MATRICES, "loss": "mse"},
                rises("distance_of_outputs", "goal"),
            ),
        ),
        Claim(
            "Square loss: at a loss of 0.001 it is within a tenth of the Hessian.",
            _CLOSE,
            on({**_LOWEST, "loss": "mse"}, between("distance_of_outputs", -math.inf, 0.1)),
        ),
        Claim(
            "Cross-entropy: at a loss of 0.001 the empirical Fisher matrix, of losses, is within a "
            "tenth of the Hessian.",
            "the survey's notes: it holds for low risk; Kunstner et al. 2019 doubt it",
            on({**_LOWEST, "loss": "cross_entropy"}, between("distance_of_losses", -math.inf, 0.1)),
        ),
        Claim(
            "Cross-entropy: at a loss of 0.001 its direction is that of the Hessian, by a cosine "
            "above 0.9.",
            "not in the papers",
            on({**_LOWEST, "loss": "cross_entropy"}, between("cosine_of_losses", 0.9, math.inf)),
            kind="ours",
        ),
    ),
    reason="mu falls from 0.97 to 0.54 on the way out with batches of 1; with the mu at "
    "which walkers leave, the bound on the growth is kept. Below the bound, batches of 16 leave "
    "where the rate is above 2 over the largest eigenvalue, and gradient descent would as well: "
    "the bound is necessary, not sufficient. The empirical Fisher matrix of a cross-entropy has "
    "the Hessian's direction, but a thousandth of its size.",
    differences=(
        "A network 64-20-1 without biases with the square loss on 50 digits, odd against even: the "
        "theory is about one output and the square loss. Minima are where gradient descent with "
        "momentum has a loss of 0.001. The papers take networks with many layers on CIFAR-10. "
        "Original: 3072-50-50-50-1 on 1,000 images of CIFAR-10, sizes of our choice, with the "
        "Gauss-Newton part for its Hessian; Fisher matrices are compared in the small network.",
        "From each, 50 walkers take up to 60 steps of SGD, at 0.5 to 2 times the rate at which "
        "the norm is the bound; one has left when its loss is 100 times that of the minimum. "
        "Samples of a batch are drawn with replacement.",
        "mu is that of the minimum's own gradients.",
    ),
)
