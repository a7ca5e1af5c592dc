"""Dinh, Pascanu, Bengio & Bengio, Sharp minima can generalize for deep nets (ICML 2017).

Multiplying a layer of a ReLU network by a factor and dividing the next one by it leaves the
function as it is. What does that do to measures of flatness?
"""

from typing import Any

import numpy as np

from lowland.sweep import trials
from lowland_studies.claims import Test, at_least, larger, on, smaller, stronger, unchanged
from lowland_studies.evidence import Column, Runs
from lowland_studies.panels import Against, Scatter
from lowland_studies.study import Claim, Study

_TRIAL = "lowland_studies.field.reparametrisation.trial:trial"
_NOISE = 0.3
_CLEAN = {"label_noise": 0.0}


def _ratio(name: str) -> Column:
    """A measure over that of the network as trained."""

    def column(runs: Runs) -> np.ndarray:
        return runs.column(name) / runs.column(f"trained_{name}")

    column.__name__ = f"{name} over that as trained"
    return column


def _powers(name: str) -> Column:
    """By how many powers of ten the measure is larger than as trained."""

    def column(runs: Runs) -> np.ndarray:
        return np.log10(_ratio(name)(runs))  # type: ignore[operator]

    column.__name__ = f"power of ten of {name} over that as trained"
    return column


def log_trace(runs: Runs) -> np.ndarray:
    """The logarithm of the trace, which takes values over ten decades here."""
    return np.log10(runs.column("trace"))


def log_normalized_sharpness(runs: Runs) -> np.ndarray:
    """The same of normalized sharpness."""
    return np.log10(runs.column("normalized_sharpness"))


def moved_apart(runs: Runs) -> np.ndarray:
    """Powers of ten by which T_g and T_w go apart; negative where they move the same way."""
    powers = [runs.column(name) for name in (_powers("given_sigma_g"), _powers("given_sigma_w"))]
    apart = np.minimum(*map(np.abs, powers))
    return np.where(np.sign(powers[0]) == np.sign(powers[1]), -1.0, apart)


def exactness(runs: Runs) -> np.ndarray:
    """Powers of ten by which the outputs are larger than their change; 16 where they are equal."""
    return -np.log10(runs.column("output_change") + 1e-16)


def _rescaled(test: Test) -> Test:
    """On networks of true labels whose layers were multiplied by 100 or 1 / 100."""
    return on({**_CLEAN, "factor": [0.01, 100.0]}, test)


def _same(name: str) -> Test:
    return on(_CLEAN, unchanged(name, "factor", within=0.01))


def labels(row: dict[str, Any]) -> str:
    """What the network was trained on."""
    return "true labels" if not row["label_noise"] else f"{row['label_noise']:.0%} random labels"


STUDY = Study(
    name="reparametrisation",
    title="The same function with other weights, and what is measured of it",
    grid=trials(
        _TRIAL,
        label_noise=[0.0, _NOISE],
        factor=[0.01, 0.1, 1.0, 10.0, 100.0],
        per_class=20,
        seed=range(5),
    ),
    quick=trials(
        _TRIAL, label_noise=[0.0, _NOISE], factor=[0.01, 1.0, 100.0], per_class=10, seed=range(2)
    ),
    panels=(
        Against(
            "factor",
            {
                "largest eigenvalue": _ratio("largest_eigenvalue"),
                "trace": _ratio("trace"),
                "worst case in a ball": _ratio("ball_sharpness"),
                "normalized sharpness": _ratio("normalized_sharpness"),
            },
            "measure / as trained",
            log="xy",
            where=_CLEAN,
        ),
        Against(
            "factor",
            {
                "$T_g$ as given": _ratio("given_sigma_g"),
                "$T_w$ as given": _ratio("given_sigma_w"),
                "$T_g$ balanced": _ratio("balanced_sigma_g"),
                "$T_w$ balanced": _ratio("balanced_sigma_w"),
            },
            "determinant / as trained",
            log="xy",
            where=_CLEAN,
        ),
        Scatter("trace", "gap", "trace", "gap", by=labels, log="x", line=False),
        Scatter(
            *("normalized_sharpness", "gap", "normalized sharpness", "gap"),
            by=labels,
            line=False,
        ),
    ),
    claims=(
        Claim(
            "Layers times 100, or divided by it, raise the largest eigenvalue a hundredfold.",
            "proved: the spectral norm of the Hessian can be made as large as one likes",
            _rescaled(at_least(_powers("largest_eigenvalue"), 2.0)),
        ),
        Claim(
            "The same holds of the trace.",
            "proved: at a minimum it is no less than the spectral norm",
            _rescaled(at_least(_powers("trace"), 2.0)),
        ),
        Claim(
            "The same holds of the worst rise of the loss in a ball.",
            "on epsilon-sharpness: it can be manipulated in the same way",
            _rescaled(at_least(_powers("ball_sharpness"), 2.0)),
        ),
        Claim(
            "The network of the smaller gap can be made the sharper one.",
            "the title: sharp minima can generalise",
            larger(
                "largest_eigenvalue",
                {**_CLEAN, "factor": 100.0},
                {"label_noise": _NOISE, "factor": 1.0},
            ),
        ),
        Claim(
            "As trained, the network of the smaller gap is the flatter one, by the trace.",
            "not in the paper: what such a measure would be for",
            on({"factor": 1.0}, smaller("trace", _CLEAN, {"label_noise": _NOISE})),
            kind="ours",
        ),
        Claim(
            "Over all weights, normalized sharpness goes with the gap more closely than the trace.",
            "not in the paper; Tsuzuku et al. say so of networks as trained",
            stronger(log_normalized_sharpness, log_trace, "gap"),
            kind="ours",
        ),
        Claim(
            "The function is the same: outputs change by less than a millionth.",
            "the two parameters are observationally equivalent",
            at_least(exactness, 6.0),
            kind="check",
        ),
        Claim(
            "Normalized sharpness does not move.",
            "not in the paper; Tsuzuku et al., Sec. 5.2",
            _same("normalized_sharpness"),
            kind="check",
        ),
        Claim(
            "With balanced units, sharpness T_g does not move.",
            "not in the paper: Lowland's balanced gauge",
            _same("balanced_sigma_g"),
            kind="check",
        ),
        Claim(
            "With balanced units, the size T_w does not move.",
            "not in the paper: Lowland's balanced gauge",
            _same("balanced_sigma_w"),
            kind="check",
        ),
        Claim(
            "As given, T_g and T_w are moved by a hundredfold, one up and one down.",
            "not in the paper: why the duality is compared with balanced units",
            _rescaled(at_least(moved_apart, 2.0)),
            kind="ours",
        ),
        Claim(
            "As given or balanced, the sharp part of the gap does not move.",
            "not in the paper: within a layer all directions are stretched alike",
            _same("given_sharp"),
            kind="ours",
        ),
    ),
    differences=(
        "The paper proves its statements, and has no experiments; here they are measured on small "
        "networks (64-12-12-10) on 200 digits, and layers are rescaled by up to 100.",
        "The infinite volume of epsilon-flatness is not judged: it has no number.",
    ),
)
