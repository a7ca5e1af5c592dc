"""Baldassi et al., Subdominant dense clusters (PRL 2015); Unreasonable effectiveness (PNAS 2016).

A perceptron with weights of -1 and 1: typical solutions are isolated, but there are regions dense
with others, which searches that look for many solutions at once find, and which generalise better.
"""

import numpy as np

from lowland.sweep import trials
from lowland_studies.claims import Test, between, correlated, larger, on, smaller
from lowland_studies.evidence import Column, Runs
from lowland_studies.panels import Against, Kinds, Scatter
from lowland_studies.study import Claim, Study

_TRIAL = "lowland_studies.field.dense_clusters.trial:trial"
_METHODS = ["teacher", "annealing", "replicated", "focusing"]
_LOAD = 0.4  # samples per weight, where claims are judged
_FOUND = {"load": _LOAD, "method": _METHODS[1:]}


def accuracy(runs: Runs) -> np.ndarray:
    """The share of fresh samples that are told right."""
    return 1 - runs.column("test_error")


def _of(method: str, name: str) -> Column:
    return lambda runs: np.where(runs.column("method") == method, runs.column(name), np.nan)


def _against_annealing(method: str, column: str, sign: int) -> Test:
    way = larger if sign > 0 else smaller
    return on({"load": _LOAD}, way(column, {"method": method}, {"method": "annealing"}))


STUDY = Study(
    name="dense-clusters",
    title="Solutions of a binary perceptron: isolated ones, and dense regions",
    grid=trials(
        _TRIAL, method=_METHODS, load=[0.2, _LOAD], weights=201, sweeps=150, seed=range(10)
    ),
    quick=trials(_TRIAL, method=_METHODS, load=_LOAD, weights=101, sweeps=100, seed=range(4)),
    original=trials(
        _TRIAL, method=_METHODS, load=[0.2, _LOAD, 0.6], weights=2001, sweeps=1500, seed=range(10)
    ),
    panels=(
        Scatter(
            "around/distance",
            "around/solutions",
            "share of weights flipped",
            "share of solutions",
            by="method",
            line=False,
            where={"load": _LOAD},
        ),
        Kinds(
            "method",
            "one_flip",
            "solutions among neighbours",
            where={"load": _LOAD},
        ),
        Against(
            "load",
            {method: _of(method, "test_error") for method in _METHODS[1:]},
            "test error",
        ),
        Scatter("one_flip", "test_error", "share of solutions", "test error", where=_FOUND),
    ),
    claims=(
        Claim(
            "A typical solution is isolated: less than 2 % of its neighbours are solutions.",
            "2015: typical solutions are isolated at every load; here the teacher",
            on({"load": _LOAD, "method": "teacher"}, between("one_flip", -np.inf, 0.02)),
        ),
        Claim(
            "Replicated annealing ends where more neighbours are solutions than annealing does.",
            "2016: replicas that attract each other find dense regions",
            _against_annealing("replicated", "one_flip", 1),
        ),
        Claim(
            "So does focusing belief propagation.",
            "2016: message passing on the local entropy ends in dense regions",
            _against_annealing("focusing", "one_flip", 1),
        ),
        Claim(
            "Focusing ends where solutions are dense farther out, with five weights flipped.",
            "2015: the regions are dense up to a finite distance",
            _against_annealing("focusing", "five_flips", 1),
        ),
        Claim(
            "Solutions of replicated annealing generalise better than those of annealing.",
            "2015: solutions of high local entropy have a smaller generalisation error",
            _against_annealing("replicated", "test_error", -1),
        ),
        Claim(
            "Solutions of focusing generalise better than those of annealing.",
            "2015: solutions of high local entropy have a smaller generalisation error",
            _against_annealing("focusing", "test_error", -1),
        ),
        Claim(
            "The more neighbours are solutions, the more fresh samples are told right.",
            "2015: generalisation goes with the local entropy",
            on(_FOUND, correlated("one_flip", accuracy, at_least=0.0)),
        ),
    ),
    differences=(
        "201 weights, loads of 0.2 and 0.4; the papers take thousands of weights, loads to 0.7. "
        "Original: 2,001 weights, 1,500 sweeps and a load of 0.6 as well.",
        "Annealing has 150 sweeps, replicated annealing 5 replicas with as many each. Of the "
        "entropy-driven searches focusing belief propagation stands for all; the Monte Carlo "
        "search on the local entropy itself is not run.",
        "Solutions at a distance are counted among random ones, and not by their local entropy.",
    ),
)
