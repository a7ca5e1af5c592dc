"""Dauphin et al., Identifying and attacking the saddle point problem (NeurIPS 2014); Choromanska et
al., The loss surfaces of multilayer networks (AISTATS 2015).

Critical points of high loss have many directions that lead down, as in a random landscape, whose
Hessian's eigenvalues lie on a semicircle.
"""

from typing import Any

import numpy as np

from lowland.sweep import trials
from lowland_studies.claims import between, correlated, larger
from lowland_studies.evidence import Runs
from lowland_studies.panels import Scatter
from lowland_studies.study import Claim, Study

_TRIAL = "lowland_studies.field.saddles.trial:trial"
_SIZE: dict[str, Any] = {"hidden": 3, "per_class": 10}
_ORIGINAL: dict[str, Any] = {
    "data": "mnist",
    "pixels": 10,
    "hidden": 10,
    "per_class": None,
}


def depth(runs: Runs) -> np.ndarray:
    """How far below zero the smallest eigenvalue lies."""
    return -runs.column("smallest")


def index_over_prediction(runs: Runs) -> np.ndarray:
    """The share of negative eigenvalues over that of the semicircle of equal mean and variance."""
    return runs.column("index") / runs.column("semicircle_index")


STUDY = Study(
    name="saddles",
    title="Critical points: their loss, their index, and the spectrum of a random matrix",
    grid=trials(_TRIAL, **_SIZE, epochs=[0, 10, 20, 40, 80, 160, 320], seed=range(6)),
    quick=trials(_TRIAL, **_SIZE, epochs=[0, 80, 320], seed=range(4)),
    original=trials(_TRIAL, **_ORIGINAL, epochs=[0, 10, 20, 40, 80, 160, 320], seed=range(6)),
    panels=(
        Scatter("loss", "index", "loss of a critical point", "index", by="epochs"),
        Scatter(
            *("semicircle_index", "index", "index of a semicircle", "index"),
            by="epochs",
            line=False,
        ),
        Scatter(
            "spectrum/semicircle",
            "spectrum/eigenvalues",
            "quantile of the semicircle",
            "quantile of the eigenvalues",
            by="epochs",
            line=False,
        ),
    ),
    claims=(
        Claim(
            "The index of critical points grows with their loss.",
            "Dauphin et al.: index and error are strongly correlated",
            correlated("loss", "index", at_least=0.8),
        ),
        Claim(
            "With the loss, eigenvalues reach further below zero.",
            "Dauphin et al.: the spectrum moves to the left with the error",
            correlated("loss", depth, at_least=0.0),
        ),
        Claim(
            "Minima have a lower loss than saddles.",
            "Choromanska et al.: critical points of low index lie in the lowest band",
            larger("loss", {"minimum": False}, {"minimum": True}),
        ),
        Claim(
            "Eigenvalues are spread as a semicircle: their fourth moment is 2, within a half.",
            "Dauphin et al.: Wigner's law, moved by the error, in a Gaussian field",
            between("fourth_moment", 1.5, 2.5),
        ),
        Claim(
            "A semicircle of the same mean and variance tells the index to a quarter.",
            "Dauphin et al.: the index follows from how far the semicircle moved",
            between(index_over_prediction, 0.75, 1.25),
        ),
        Claim(
            "A tenth of the eigenvalues or more lies near zero, within 1 % of the largest.",
            "Dauphin et al.: unlike in theory, many eigenvalues are near zero",
            between("near_zero", 0.1, np.inf),
        ),
    ),
    differences=(
        "A network of 16-3-10 with tanh and 78 weights on 100 digits of 4 x 4 pixels; Dauphin et "
        "al. have MNIST and CIFAR-10 at 10 x 10 pixels, and Choromanska et al. up to 500 units. "
        "Original: all images of MNIST at that size, and 10 hidden units, which is our choice.",
        "Squared error with a decay of 0.003, without which critical points are not isolated, and "
        "Newton's method finds few of them.",
        "Points are searched by Newton's method from noisy weights along one descent of each seed.",
    ),
)
