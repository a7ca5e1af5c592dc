"""Eigenvalues near zero (Chaudhari et al. 2019), and bits (Hochreiter & Schmidhuber 1997).

Minima of one training loss, found with other learning rates, batches, initial scales and shares of
random labels: do those of a small gap have more eigenvalues near zero, and need fewer bits?
"""

from dataclasses import replace
from typing import Any

import numpy as np

from lowland.sweep.grid import Grid
from lowland_studies.claims import correlated, on, smaller
from lowland_studies.evidence import Column, Runs
from lowland_studies.panels import Kinds, Scatter
from lowland_studies.realisations import realisations
from lowland_studies.study import Claim, Study

_COMMON: dict[str, Any] = {
    "data": "digits",
    "layers": ("3",),
    "stop_loss": 0.03,
    "measures": (
        *("near_zero_share", "description_length", "flat_box", "effective_dimension"),
        *("trace", "largest_eigenvalue"),
    ),
}


def _grid(seeds: int, optimised: int, *, large: float = 3.0, **keys: Any) -> Grid:
    common = {**_COMMON, **keys}
    varied = realisations(
        seeds,
        learning_rate=[0.1, 0.5],
        batch_size=[10, 100],
        init_scale=[1.0, large],
        label_noise=[0.0, 0.1],
        **common,
    )
    return varied + realisations(optimised, optimizer=["sgd", "entropy_sgd"], **common)


def few_near_zero(runs: Runs) -> np.ndarray:
    """The share of eigenvalues that are not near zero."""
    return 1 - runs.column("near_zero_share")


def _varied(runs: Runs) -> Runs:
    return runs.where(optimizer="sgd", batch_size=[10, 100])


def _true(runs: Runs) -> Runs:
    return _varied(runs).where(label_noise=0.0)


def _calm(runs: Runs) -> Runs:
    """Without the noisiest trainings, some of which have gaps far beyond those of the others."""
    rows = (r for r in _varied(runs).rows if (r["learning_rate"], r["batch_size"]) != (0.5, 10))
    return replace(runs, rows=tuple(rows))


def _goes_with_the_gap(column: Column, words: str, paper: str) -> tuple[Claim, ...]:
    return (
        Claim(
            f"Minima of small gap {words}, over all settings.",
            paper,
            on(_varied, correlated(column, "gap", at_least=0.0)),
        ),
        Claim(
            f"Minima of small gap {words}, where all labels are true.",
            paper,
            on(_true, correlated(column, "gap", at_least=0.0)),
        ),
    )


_SHARE = "Chaudhari et al.: minima that generalise have many eigenvalues near zero"
_BITS = "Hochreiter & Schmidhuber: a flat minimum is a short description, which generalises"
_ENTROPY: dict[str, Any] = {"optimizer": "entropy_sgd"}
_SGD: dict[str, Any] = {"optimizer": "sgd", "batch_size": 25}


def _noise(row: dict[str, Any]) -> str:
    return f"{row['label_noise']:g}"


_noise.__name__ = "random labels"


def _scatter(column: Column, label: str) -> Scatter:
    where = {"optimizer": "sgd", "batch_size": [10, 100]}
    return Scatter(column, "gap", label, "gap", by=_noise, where=where)


STUDY = Study(
    "description-length",
    "Do minima of small gap have more eigenvalues near zero, and need fewer bits?",
    grid=_grid(8, 8, network="64-12-10", per_class=20, max_epochs=3000),
    quick=_grid(2, 3, network="64-8-10", per_class=10, max_epochs=3000),
    # five layers, so that the outputs grow as those of two layers do by 3.0
    original=_grid(8, 8, large=1.5, data="mnist", network="lenet", max_epochs=3000),
    panels=(
        _scatter(few_near_zero, "share of eigenvalues not near zero"),
        _scatter("description_length", "description length [bits]"),
        _scatter("effective_dimension", "effective dimension"),
        Kinds("optimizer", few_near_zero, "share not near zero", where={"batch_size": 25}),
        Kinds("optimizer", "description_length", "bits", where={"batch_size": 25}),
        Kinds("optimizer", "test_error", "test error", where={"batch_size": 25}),
    ),
    claims=(
        *_goes_with_the_gap(few_near_zero, "have more eigenvalues near zero", _SHARE),
        *_goes_with_the_gap("description_length", "need fewer bits", _BITS),
        Claim(
            "Entropy-SGD ends with more eigenvalues near zero than SGD.",
            "Chaudhari et al.: it looks for wide valleys",
            smaller(few_near_zero, _ENTROPY, _SGD),
        ),
        Claim(
            "Entropy-SGD ends with fewer bits than SGD.",
            "not in the paper",
            smaller("description_length", _ENTROPY, _SGD),
            kind="ours",
        ),
        Claim(
            "Entropy-SGD has a smaller test error than SGD.",
            "Chaudhari et al.: comparable or better",
            smaller("test_error", _ENTROPY, _SGD),
        ),
        Claim(
            "Minima of small gap have more eigenvalues near zero, without rates of 0.5 in batches "
            "of 10.",
            "ours: whether the networks of the largest gaps decide that over all settings",
            on(_calm, correlated(few_near_zero, "gap", at_least=0.0)),
            kind="ours",
        ),
        *(
            Claim(
                f"The {words} goes with the gap, where all labels are true.",
                "not in the paper",
                on(_true, correlated(name, "gap", at_least=0.0)),
                kind="ours",
            )
            for name, words in (
                ("effective_dimension", "effective dimension"),
                ("trace", "trace"),
                ("largest_eigenvalue", "largest eigenvalue"),
            )
        ),
    ),
    differences=(
        "64-12-10 on 200 digits of 8 x 8 pixels, so that all 888 eigenvalues are computed; "
        "Chaudhari et al. have LeNet and a small network on MNIST, and All-CNN on CIFAR-10. "
        "Original: LeNet on all of MNIST, of whose eigenvalues the share is estimated; its large "
        "initial weights are 1.5 times the others, not 3 times, from which its five layers do not "
        "train.",
        "An eigenvalue is near zero if it is below a hundredth of the largest one. Bits are those "
        "of weights written as precisely as a box of small loss demands, by the Gauss-Newton "
        "diagonal; "
        "Hochreiter & Schmidhuber minimise such a number, on small tasks of their own.",
    ),
)
