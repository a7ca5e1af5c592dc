"""Wen, Li & Ma, Sharpness minimization algorithms do not only minimize sharpness (NeurIPS 2023).

On the parity of two of thirty bits, the flattest networks of two layers without biases generalise.
With biases there are flattest networks that only remember, and SAM ends in such.
"""

from typing import Any

import numpy as np

from lowland.sweep import Grid, trials
from lowland_studies.claims import Test, between, larger, on, smaller
from lowland_studies.evidence import Column
from lowland_studies.panels import Against, Scatter
from lowland_studies.study import Claim, Study

_RADIUS = 0.1
_COMMON: dict[str, Any] = {"bits": 30, "units": 100, "steps": 30_000, "rate": 0.01}
_SAM = {"radius": _RADIUS, "samples": 100}  # the setting that claims are about
_NAMES = {0: "without biases", 1: "with biases"}


def _grid(samples: list[int], **more: Any) -> Grid:
    common = {**_COMMON, **more, "bias": [0, 1]}
    by_sam = trials(
        "lowland_studies.field.xor.trial:trial", **common, samples=samples, radius=_RADIUS
    )
    by_sgd = trials("lowland_studies.field.xor.trial:trial", **common, samples=100, radius=0.0)
    return by_sam + by_sgd


def _both(name: str) -> dict[str, Column]:
    """The column of networks without and of those with biases, by what these are called."""

    def of(bias: int) -> Column:
        return lambda runs: np.where(runs.column("bias") == bias, runs.column(name), np.nan)

    return {label: of(bias) for bias, label in _NAMES.items()}


def architecture(row: dict[str, Any]) -> str:
    """What a network is called, by its biases."""
    return _NAMES[row["bias"]]


def _at(bias: int, test: Test) -> Test:
    return on({**_SAM, "bias": bias}, test)


STUDY = Study(
    name="xor",
    title="Sharpness minimisation on parities, with and without biases",
    grid=_grid([100, 200], seed=range(5)),
    quick=_grid([100, 200], steps=15_000, seed=range(3)),
    panels=(
        Against(
            "samples",
            _both("test_error"),
            "test error of SAM",
            where={"radius": _RADIUS},
        ),
        Against(
            "samples",
            _both("sharpness"),
            "trace of SAM / least possible",
            where={"radius": _RADIUS},
        ),
        Scatter(
            "course/sharpness",
            "course/test_error",
            "trace / least possible",
            "test error, in the course of SAM",
            by=architecture,
            log="x",
            line=False,
            where=_SAM,
        ),
    ),
    claims=(
        Claim(
            "Without biases, SAM generalises: at most 5 % of fresh points are wrong.",
            "abstract, scenario (1): flatness provably implies generalisation",
            _at(0, between("test_error", -np.inf, 0.05)),
        ),
        Claim(
            "With biases, SAM does not: more than 5 % of fresh points are wrong.",
            "abstract, scenario (2): sharpness minimisation fails to generalise",
            _at(1, between("test_error", 0.05, np.inf)),
        ),
        Claim(
            "The biases make the test error of SAM larger.",
            "abstract, scenarios (1) and (2), which differ in the biases",
            on(_SAM, larger("test_error", {"bias": 1}, {"bias": 0})),
        ),
        Claim(
            "SAM lowers the trace of the Hessian below that of SGD, without biases.",
            "what is meant by sharpness minimisation: SAM on single samples, and the trace",
            on({"samples": 100, "bias": 0}, smaller("sharpness", {"radius": 0.1}, {"radius": 0.0})),
        ),
        Claim(
            "SAM lowers the trace of the Hessian below that of SGD, with biases.",
            "what is meant by sharpness minimisation: SAM on single samples, and the trace",
            on({"samples": 100, "bias": 1}, smaller("sharpness", {"radius": 0.1}, {"radius": 0.0})),
        ),
        Claim(
            "With biases, SAM ends within 10 % of the least trace possible.",
            "abstract, scenario (2): there are flattest networks that do not generalise",
            _at(1, between("sharpness", -np.inf, 1.1)),
        ),
        Claim(
            "A network with biases that only remembers its samples is as flat as any.",
            "abstract, scenario (2): there are such flattest networks",
            on({"bias": 1}, between("memorised_sharpness", 0.999, 1.001)),
            kind="check",
        ),
        Claim(
            "That network is no better than chance on fresh points.",
            "abstract, scenario (2): they do not generalise",
            on({"bias": 1}, between("memorised_test_error", 0.49, 0.51)),
            kind="check",
        ),
        Claim(
            "A network without biases that computes the parity is as flat as any.",
            "abstract, scenario (1): flattest networks generalise",
            on({"bias": 0}, between("solving_sharpness", 0.999, 1.001)),
            kind="check",
        ),
        Claim(
            "With twice as many samples, SAM generalises with biases as well.",
            "not in the paper",
            on(
                {"radius": _RADIUS, "bias": 1, "samples": 200},
                between("test_error", -np.inf, 0.05),
            ),
            kind="ours",
        ),
    ),
    differences=(
        "30 bits, 100 hidden units and 30,000 steps of SAM on single samples, sizes of our choice: "
        "the theorems are about wide networks, and the paper's own settings were not at hand.",
        "The paper also has networks with normalised layers (Scenario III), which are not judged.",
        "SAM ends at a squared error of 0.002 to 0.008, and not at 0: the least trace possible is "
        "that of networks that fit exactly, and with 200 samples and biases SAM ends 1 % below it.",
    ),
)
