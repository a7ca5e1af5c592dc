"""What the figures show and the claims are about, as numbers of runs."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from lowland_studies.evidence import Column, Runs, Series
from lowland_studies.feng_tu.grids import N_SHARP


def _called(words: str, column: Callable[[Runs], np.ndarray]) -> Column:
    column.__name__ = words
    return column


@dataclass(frozen=True)
class LayerColumns:
    """The columns and arrays of one layer; the first that a run decomposes has no name."""

    name: str = ""
    title: str = ""

    def column(self, name: str) -> str:
        """The name of a column with a number of the layer."""
        return f"{self.name}:{name}" if self.name else name

    def array(self, name: str) -> str:
        """The name of an array with a number for each direction of the layer."""
        return f"layers/{self.name}/{name}" if self.name else f"duality/{name}"

    def mean(self, name: str, directions: slice, words: str) -> Column:
        """The mean of an array over some directions, as a column called ``words``."""
        array = self.array(name)
        words = f"{words} of {self.title}" if self.title else words
        return _called(words, lambda runs: runs.array(array)[:, directions].mean(axis=1))

    @property
    def sharpness(self) -> Column:
        """The mean sigma_g of the sharp directions."""
        return self.mean("sigma_g", slice(N_SHARP), "mean sigma_g of sharp directions")

    @property
    def flat_sharpness(self) -> Column:
        """The mean sigma_g of the flat directions."""
        return self.mean("sigma_g", slice(N_SHARP, None), "mean sigma_g of flat directions")

    @property
    def whole_sharpness(self) -> Column:
        """The mean sigma_g of all directions."""
        return self.mean("sigma_g", slice(None), "mean sigma_g")

    @property
    def size(self) -> Column:
        """The mean sigma_w of all directions: the paper's S_w over their number."""
        return self.mean("sigma_w", slice(None), "mean sigma_w")

    @property
    def accumulated(self) -> Series:
        """S_w,n: sigma_w summed up to direction n."""
        return lambda runs: runs.array(self.array("sigma_w")).cumsum(axis=1)


HIDDEN = LayerColumns()
LAYERS = (
    LayerColumns("", "hidden layer 1"),
    LayerColumns("5", "hidden layer 2"),
    LayerColumns("7", "hidden layer 3"),
)


def flat_sigma_g(runs: Runs) -> np.ndarray:
    """The sigma_g of each flat direction, (runs, n)."""
    return runs.array("duality/sigma_g")[:, N_SHARP:]


def trace(runs: Runs) -> np.ndarray:
    """T_h, of the layer's Hessian."""
    return runs.array("duality/eigenvalue").sum(axis=1)


def squared_sigma_g(runs: Runs) -> np.ndarray:
    """The gradient variance in each direction, (runs, n)."""
    return runs.array("duality/sigma_g") ** 2


squared_sigma_g.__name__ = "the variance sigma_g^2"


def mean_c(runs: Runs) -> np.ndarray:
    """The mean of c_n, each direction with the weight that it has in the gap."""
    weights = runs.array("duality/sigma_g") * runs.array("duality/sigma_w")
    return (runs.array("duality/c") * weights).sum(axis=1) / weights.sum(axis=1)


def smallest_c(runs: Runs) -> np.ndarray:
    """The smallest c_n of all directions."""
    return runs.array("duality/c").min(axis=1)


def _carriers(runs: Runs) -> np.ndarray:
    """Which directions, from the sharpest on, carry 99 % of the gap, (runs, n)."""
    contribution = runs.array("duality/contribution")
    before = contribution.cumsum(axis=1) - contribution
    return before < 0.99 * contribution.sum(axis=1, keepdims=True)


def smallest_c_of_carriers(runs: Runs) -> np.ndarray:
    """The smallest c_n of the directions that carry 99 % of the gap."""
    return np.where(_carriers(runs), runs.array("duality/c"), np.inf).min(axis=1)


def flat_c_over_sharp_c(runs: Runs) -> np.ndarray:
    """The mean c of those flat directions that carry the gap, over that of the sharp ones."""
    c, carry = runs.array("duality/c"), _carriers(runs)[:, N_SHARP:]
    flat = (c[:, N_SHARP:] * carry).sum(axis=1) / carry.sum(axis=1)
    return flat / c[:, :N_SHARP].mean(axis=1)


def flat_size_over_sharp_size(runs: Runs) -> np.ndarray:
    """The mean sigma_w of the flat directions over that of the sharp ones."""
    sigma_w = runs.array("duality/sigma_w")
    return sigma_w[:, N_SHARP:].mean(axis=1) / sigma_w[:, :N_SHARP].mean(axis=1)


def flat_size(runs: Runs) -> np.ndarray:
    """The mean sigma_w of the flat directions."""
    return runs.array("duality/sigma_w")[:, N_SHARP:].mean(axis=1)


def _drops(runs: Runs) -> np.ndarray:
    """The ratios of sigma_g in successive directions, up to twice n_s."""
    sigma_g = runs.array("duality/sigma_g")[:, : 2 * N_SHARP + 1]
    return sigma_g[:, :-1] / sigma_g[:, 1:]


def steepest_drop(runs: Runs) -> np.ndarray:
    """The largest ratio of sigma_g in two successive directions, up to twice n_s."""
    return _drops(runs).max(axis=1)


def place_of_steepest_drop(runs: Runs) -> np.ndarray:
    """The direction, counted from 1, behind which sigma_g falls most steeply."""
    return 1.0 + _drops(runs).argmax(axis=1)


def mean_term(runs: Runs) -> np.ndarray:
    """What Eq. 11 leaves out of Eq. 9."""
    return runs.column("paired_gap") - runs.column("eq11")


def eq11_over_gap(runs: Runs) -> np.ndarray:
    """Eq. 11 over the gap: 1 where Eq. 11 is exact."""
    return runs.column("eq11") / runs.column("gap")


def mean_over_sigma(of: str) -> Series:
    """|mu| / sigma of the shifts (w) or of the gradients (g), in each direction."""
    mu, sigma = f"duality/mu_{of}", f"duality/sigma_{of}"
    return lambda runs: np.abs(runs.array(mu)) / runs.array(sigma)


def average(array: Series, words: str) -> Column:
    """The mean of an array over the directions of a run."""
    return _called(words, lambda runs: runs.array(array).mean(axis=1))


def log_correlation(x: Series, y: Series, words: str, above: float = 0.0) -> Column:
    """The correlation of log x and log y over the directions of a run where both are positive.

    Only directions whose x is above that part of the largest one are looked at.
    """

    def of(runs: Runs) -> np.ndarray:
        correlations = []
        for a, b in zip(runs.array(x), runs.array(y), strict=True):
            both = (a > above * a.max()) & (b > 0) & np.isfinite(a) & np.isfinite(b)
            correlations.append(np.corrcoef(np.log(a[both]), np.log(b[both]))[0, 1])
        return np.array(correlations)

    return _called(words, of)


def relative_size(key: str, base: float) -> Series:
    """sigma_w over that of the same seed where the setting has its base value.

    Not defined where the latter is below a twentieth of its largest: the last directions of some
    networks.
    """

    def ratio(runs: Runs) -> np.ndarray:
        sigma_w = runs.array("duality/sigma_w")
        seeds = [row["seed"] for row in runs.rows]
        bases = {
            row["seed"]: np.where(s > 0.05 * s.max(), s, np.nan)
            for row, s in zip(runs.rows, sigma_w, strict=True)
            if row[key] == base
        }
        missing = np.full_like(sigma_w[0], np.nan)
        return sigma_w / np.array([bases.get(seed, missing) for seed in seeds])

    return ratio
