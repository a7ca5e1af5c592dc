"""What Tsuzuku, Sato & Sugiyama argue by algebra, on trained networks and on random instances."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from lowland.sweep.grid import Grid
from lowland_studies.claims import Test, between, correlated, on
from lowland_studies.evidence import Column, Runs, words_of
from lowland_studies.instances import convex, lambda_factor, on_instances
from lowland_studies.intervals import Region
from lowland_studies.panels import Against, Panel, Scatter
from lowland_studies.study import Claim, Study, recording
from lowland_studies.tsuzuku import FEW, NETWORKS, SHARPNESS, TRACE, realisations

Numbers = Callable[[Runs], np.ndarray]  # one for each run


# --- trained networks, rescaled ------------------------------------------------------------------


def rescaled(measure: str, by: str = "as_trained") -> str:
    """The column with a measure of the network as trained, or after a rescaling.

    Both were recorded with the run, in double precision: see ``rescalings`` of a configuration.
    """
    return f"rescaled.{by}.{measure}"


def ratio(measure: str, by: str) -> Numbers:
    """A measure after a rescaling over what it was before."""

    def column(runs: Runs) -> np.ndarray:
        return runs.column(rescaled(measure, by)) / runs.column(rescaled(measure))

    column.__name__ = f"{words_of(measure)} rescaled by {by} over that as trained"
    return column


# --- invariance ----------------------------------------------------------------------------------

_PLAIN = {"network": "784-128-128-128-10"}
_NORMED = {"network": f"{NETWORKS}:wrn_10_2"}
_MATRIX, _RAO = "matrix_normalized_sharpness", "fisher_rao"
_NORMS = ("frobenius_norms", "spectral_norms")


def _rescalable(seeds: int, noises: Sequence[float], per_class: int) -> Grid:
    """MLPs without biases, which a split leaves whole, and some networks with BatchNorm."""
    measures = {"measures": (TRACE, SHARPNESS, _MATRIX, _RAO, *_NORMS)}
    rescalings = {"rescalings": ("units", "layers", "split", "outputs")}
    plain = {**FEW, **_PLAIN, **measures, **rescalings, "per_class": per_class}
    few = {"per_class": per_class // 10, "test_per_class": 10, "batch_size": 20}
    normed = {**FEW, **_NORMED, "data": "cifar10", **few, "rescalings": "norms"}
    return realisations(seeds, noises, **plain) + realisations(seeds - 2, [0.0], **normed)


def _same(measure: str, by: str) -> Test:
    return on(_PLAIN, between(ratio(measure, by), 0.99, 1.01))


def _changes(measure: str, where: dict[str, Any], by: str, sign: int = 1) -> Test:
    """A rescaling makes the measure larger (sign 1) or smaller (-1): its logarithm changes so."""

    def column(runs: Runs) -> np.ndarray:
        return sign * np.log10(ratio(measure, by)(runs))

    side = "larger" if sign > 0 else "smaller"
    column.__name__ = f"powers of ten by which {words_of(measure)} is {side} rescaled by {by}"
    return on(where, between(column, 0.0, math.inf))


def changed(measure: str, by: str) -> Numbers:
    """By how many powers of ten a rescaling changes a measure, either way."""

    def column(runs: Runs) -> np.ndarray:
        return np.abs(np.log10(ratio(measure, by)(runs)))

    column.__name__ = f"powers of ten by which {words_of(measure)} changes rescaled by {by}"
    return column


def lost_rank(runs: Runs) -> np.ndarray:
    """Powers of ten by which rescaling units makes the product of the stable ranks smaller.

    The stable rank of a matrix is the square of its Frobenius over its spectral norm.
    """
    frobenius, spectral = (np.log10(ratio(name, "units")(runs)) for name in _NORMS)
    return 2 * (spectral - frobenius)


def _before_and_after(measure: str, label: str) -> Panel:
    columns: dict[str, Column] = {
        "as trained": rescaled(measure),
        "units rescaled (Eq. 15, 16)": rescaled(measure, "units"),
        "layers in halves (Eq. 26-30)": rescaled(measure, "split"),
    }
    return Against("label_noise", columns, label, log="y", where=_PLAIN)


RESCALING = Study(
    name="tsuzuku:rescaling",
    title="Sharpness of the same functions with other weights",
    grid=_rescalable(5, [0.0, 0.5, 1.0], 100),
    quick=_rescalable(4, [0.0, 1.0], 20),
    panels=(
        _before_and_after(SHARPNESS, "normalized sharpness"),
        _before_and_after(TRACE, "trace of the Hessian"),
        _before_and_after(_MATRIX, "matrix-normalized sharpness"),
        _before_and_after(_RAO, "Fisher-Rao norm"),
    ),
    claims=(
        Claim(
            "Rescaling hidden units leaves normalized sharpness as it is.",
            "Eq. 15-17: invariant",
            _same(SHARPNESS, "units"),
            kind="check",
        ),
        Claim(
            "Rescaling whole layers leaves normalized sharpness as it is.",
            "Sec. 4 and 5.2: invariant to the transformation of Dinh et al.",
            _same(SHARPNESS, "layers"),
            kind="check",
        ),
        Claim(
            "Scaling the outputs leaves normalized sharpness as it is.",
            "Sec. 5.4: the surrogate loss is made for it",
            _same(SHARPNESS, "outputs"),
            kind="check",
        ),
        Claim(
            "Scaling the outputs changes the trace of the cross entropy's Hessian.",
            "Sec. 5.4: cross entropy does not satisfy the condition",
            on(_PLAIN, between(changed(TRACE, "outputs"), 0.05, math.inf)),
            kind="ours",
        ),
        Claim(
            "Rescaling hidden units makes the product of Frobenius norms larger.",
            "Sec. 5.1: arbitrarily large Frobenius norms",
            _changes("frobenius_norms", _PLAIN, "units"),
            kind="check",
        ),
        Claim(
            "Rescaling hidden units makes the product of spectral norms larger.",
            "Sec. 5.1: arbitrarily large spectral norms",
            _changes("spectral_norms", _PLAIN, "units"),
            kind="check",
        ),
        Claim(
            "Rescaling hidden units makes the stable rank smaller.",
            "Sec. 5.1: arbitrarily close to one",
            on(_PLAIN, between(lost_rank, 0.0, math.inf)),
            kind="check",
        ),
        Claim(
            "The problem of Eq. 17 is convex in the logarithms of its variances.",
            "App. B",
            on_instances(convex, "least excess over the middle of two points", Region(-1e-12)),
            kind="check",
        ),
        Claim(
            "Eq. 17 at another lambda is the same value times 1 / sqrt(2 lambda).",
            "Eq. 12 and footnote 7: a sharper model is sharper at every lambda",
            on_instances(lambda_factor, "over what it should be", Region(1 - 1e-3, 1 + 1e-3)),
            kind="check",
        ),
        Claim(
            "Rescaling hidden units makes the trace of the Hessian larger.",
            "Sec. 5.1: arbitrarily large",
            _changes(TRACE, _PLAIN, "units"),
        ),
        Claim(
            "Rescaling whole layers leaves matrix-normalized sharpness as it is.",
            "Eq. 13: invariant",
            _same(_MATRIX, "layers"),
            kind="check",
        ),
        Claim(
            "Rescaling hidden units makes matrix-normalized sharpness larger.",
            "Sec. 5.1: matrix-wise control is insufficient",
            _changes(_MATRIX, _PLAIN, "units"),
        ),
        Claim(
            "Layers in two equal halves have half the Fisher-Rao norm.",
            "Eq. 26-30: a factor of 2",
            on(_PLAIN, between(ratio(_RAO, "split"), 0.49, 0.51)),
            kind="check",
        ),
        Claim(
            "Layers in two equal halves have the same normalized sharpness.",
            "Eq. 26-30: kept the same",
            _same(SHARPNESS, "split"),
            kind="check",
        ),
        Claim(
            "Layers in two equal halves have the same matrix-normalized sharpness.",
            "Sec. 7.3: invariant as well",
            _same(_MATRIX, "split"),
            kind="check",
        ),
        Claim(
            "Rescaling weights before BatchNorm leaves normalized sharpness as it is.",
            "Sec. 1 and 5.2: free from known scale dependence",
            on(_NORMED, between(ratio(SHARPNESS, "norms"), 0.99, 1.01)),
            kind="check",
        ),
        Claim(
            "Larger weights before BatchNorm make the trace of the Hessian smaller.",
            "Sec. 1: scale dependence appears with normalisation layers",
            _changes(TRACE, _NORMED, "norms", -1),
            kind="check",
        ),
    ),
    differences=(
        "The paper argues by algebra; these are its transformations of trained networks, with "
        "units' factors between 0.1 and 10, and 10 for layers and weights before BatchNorm.",
        "The halves are added before the ReLU, in Eq. 26 after it: function and derivatives are "
        "the same. The paper says that going from two halves to one matrix halves the Fisher-Rao "
        "norm; by its Eq. 25 it doubles it.",
    ),
)


# --- Algorithm 1, Eq. 61 and 62 ------------------------------------------------------------------

_DIRECT = "normalized_sharpness_direct"


def _computed(seeds: int, noises: Sequence[float], per_class: int, network: str) -> Grid:
    own = {"network": network, "per_class": per_class, "details": recording("algorithm_1")}
    return realisations(seeds, noises, **FEW, **own, measures=(SHARPNESS, _DIRECT))


def _by_algorithm(name: str, words: str) -> Numbers:
    """A number of Algorithm 1 over the exact normalized sharpness."""

    def column(runs: Runs) -> np.ndarray:
        return runs.column(f"algorithm_1.{name}") / runs.column("algorithm_1.exact")

    column.__name__ = words
    return column


def direct_over_eq17(runs: Runs) -> np.ndarray:
    """Eq. 62 over what it is for a quadratic loss: Eq. 17 over 2 sqrt(m), m the samples."""
    samples = 10 * runs.column("per_class")
    return runs.column(_DIRECT) * 2 * np.sqrt(samples) / runs.column(SHARPNESS)


ALGORITHM = Study(
    name="tsuzuku:algorithm",
    title="Algorithm 1, and the definition without the second order",
    grid=_computed(5, [0.0, 0.5, 1.0], 100, "784-128-128-128-10"),
    quick=_computed(3, [0.0, 1.0], 10, "784-32-32-10"),
    panels=(
        Scatter(
            *("algorithm_1.exact", "algorithm_1.sharpness", "Eq. 17, exact", "Algorithm 1"),
            by="label_noise",
        ),
        Scatter(SHARPNESS, _DIRECT, "Eq. 17", "Eq. 62", by="label_noise"),
    ),
    claims=(
        Claim(
            "Algorithm 1 with 100 draws of Eq. 61 gives normalized sharpness, within 10 %.",
            "Fig. 2: how normalized sharpness is computed",
            between(_by_algorithm("sharpness", "Algorithm 1 over Eq. 17"), 0.9, 1.1),
            kind="ours",
        ),
        Claim(
            "Eq. 62 is Eq. 17 as for a quadratic loss, within 20 %.",
            "App. D: an alternative definition",
            between(direct_over_eq17, 0.8, 1.2),
            kind="ours",
        ),
        Claim(
            "Eq. 62 and Eq. 17 put networks in the same order.",
            "App. D: an alternative definition",
            correlated(_DIRECT, SHARPNESS),
            kind="ours",
        ),
        Claim(
            "Descent on the variances finds the minimum of Eq. 17, from the exact diagonal.",
            "Sec. 5.3 and App. C: convex, so that gradient descent suffices",
            between(_by_algorithm("descended", "its descent over Eq. 17"), 0.99, 1.01),
            kind="check",
        ),
        Claim(
            "The sum of Eq. 61 deviates from the trace by chance alone.",
            "Eq. 61: approximately Eq. 60; its finite steps cross kinks of ReLU",
            between("algorithm_1.deviation", -3.0, 3.0),
            kind="ours",
        ),
    ),
    differences=(
        "The paper does not say how many draws Eq. 61 takes, nor how long Algorithm 1 descends: "
        "100, and 1,500 steps of Adam. Eq. 62 has lambda = m, the number of samples: with 1/2, "
        "the noise would grow without end, as the loss of Eq. 20 is bounded.",
    ),
)

STUDIES = (RESCALING, ALGORITHM)
