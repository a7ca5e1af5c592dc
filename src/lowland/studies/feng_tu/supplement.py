"""The figures of the supplement: their runs, panels and claims."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from lowland.studies.claims import (
    at_least,
    between,
    correlated,
    falls,
    falls_most,
    larger_part,
    not_monotone,
    on,
    rises,
    smaller_part,
    unchanged,
)
from lowland.studies.evidence import Runs
from lowland.studies.feng_tu.builder import (
    DROPPED_LOSS,
    GROWS_AGAIN,
    NORM,
    OTHER_IMAGES,
    SPARSER,
    SQUARED,
    study_of,
    tuned,
)
from lowland.studies.feng_tu.columns import (
    HIDDEN,
    LAYERS,
    average,
    eq11_over_gap,
    flat_c_over_sharp_c,
    flattest_sharpness,
    log_correlation,
    mean_c,
    mean_over_sigma,
    mean_term,
    smallest_c,
    smallest_c_of_carriers,
    squared_sigma_g,
)
from lowland.studies.feng_tu.grids import (
    DEEP,
    DROPPED,
    FITTED,
    LETTERS,
    ONE_N,
    OTHER_N,
    PLAIN,
    Version,
    only,
    varied,
)
from lowland.studies.feng_tu.main_text import BETA_RATIO, S_RATIO
from lowland.studies.feng_tu.patterns import (
    by_sharpness,
    by_size,
    c_panel,
    claims_on,
    in_every_layer,
    on_flat,
    three_panels,
    with_random_labels,
)
from lowland.studies.panels import Scatter, Spectrum
from lowland.studies.study import Claim

_S1 = study_of(
    "figS1",
    "The means of shifts and gradients",
    Version.vary,
    panels=tuple(
        Spectrum(mean_over_sigma(of), None, f"$|\\mu_{{{of},n}}| / \\sigma_{{{of},n}}$", log="x")
        for of in "wg"
    ),
    claims=(
        *claims_on(
            {},
            *(
                (
                    f"|mu_{of}| is on average below a tenth of sigma_{of}.",
                    f"S1: |mu_{of}| << sigma_{of}",
                    between(
                        average(mean_over_sigma(of), f"|mu_{of}| / sigma_{of}"), -math.inf, 0.1
                    ),
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


def _in_s2(key: str) -> dict[str, Any]:
    return only(key, **ONE_N, **(DROPPED if key == "dropout" else FITTED))


_S2 = study_of(
    "figS2",
    "The correlation coefficient",
    lambda v: tuned(v) + v.vary(**v.dropouts) + v.vary(label_noise=v.noises),
    panels=(*(c_panel(key, _in_s2(key)) for key in PLAIN), c_panel("per_class", OTHER_N)),
    claims=(
        *claims_on(
            {},
            ("0 <= c_n in every direction of every run.", "S2, Eq. 11", at_least(smallest_c, 0.0)),
            (
                "0 <= c_n in the directions that carry 99 % of the gap, in every run.",
                "S2, Eq. 11",
                at_least(smallest_c_of_carriers, 0.0),
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
            for claim in claims_on(
                _in_s2(key),
                (
                    f"c_n does not change with {LETTERS[key]}.",
                    "S2: roughly constant",
                    unchanged(mean_c, key),
                ),
            )
        ),
    ),
    differences=(*OTHER_IMAGES, *SQUARED, *DROPPED_LOSS),
)

_S3 = study_of(
    "figS3",
    "Eq. 11, the gap, and the test error",
    tuned,
    panels=(
        Scatter("eq11", "gap", "$\\Delta L$ (Eq. 11)", "$L_{te} - L_{tr}$", by=varied),
        Scatter("eq11", "test_error", "$\\Delta L$ (Eq. 11)", "test error", by=varied),
    ),
    claims=claims_on(
        {},
        ("Eq. 11 is the gap, within 5 %.", "S3A: exact", between(eq11_over_gap, 0.95, 1.05)),
        ("Eq. 11 and the gap are one line.", "S3A: exact", correlated("eq11", "gap", 0.99)),
        ("Eq. 11 goes with the test error.", "S3B: highly", correlated("eq11", "test_error")),
        ("The training error is 0.", "S3: 0", between("train_error", 0.0, 0.0)),
    ),
    differences=(*OTHER_IMAGES, *SQUARED),
)

_S4 = study_of(
    "figS4",
    "Flatness and sharpness",
    lambda v: v.vary(learning_rate=v.rates, widths=v.widths),
    panels=(
        Scatter(
            *(squared_sigma_g, "duality/flatness", "$\\sigma_{g,n}^2$", "$F_n$"),
            by="learning_rate",
            log="xy",
        ),
    ),
    claims=claims_on(
        {},
        *(
            (
                f"F_n is inversely correlated with sigma_g over {which}.",
                "S4: inversely correlated",
                between(
                    log_correlation(
                        *("duality/sigma_g", "duality/flatness"),
                        *("correlation of log sigma_g and log F", above),
                    ),
                    *(-math.inf, -0.8),
                ),
            )
            for which, above in (
                ("directions", 0.0),
                ("directions with more than a thousandth of the largest sigma_g", 1e-3),
            )
        ),
    ),
    differences=(
        "The paper does not say for which settings; these are the learning rates of Fig. 3. F_n "
        "is measured in 100 of 900 directions, evenly on a logarithmic scale.",
    ),
)

_S5 = study_of(
    "figS5",
    "Weight decay and initial scale: the size in sharp and flat directions",
    Version.norms,
    panels=(BETA_RATIO, S_RATIO),
    claims=(*on_flat("decay", "falls", "S5A"), *on_flat("init_scale", "rises", "S5B")),
    differences=SQUARED,
    reason=GROWS_AGAIN,
)

_S6 = study_of(
    "figS6",
    "Dropout",
    lambda v: v.vary(**v.dropouts),
    panels=three_panels("dropout", {}),
    claims=claims_on(
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
        (
            "The sharp part of the gap falls with d up to 0.1.",
            "S6C: falls at low d",
            on({"dropout": [0.0, 0.05, 0.1]}, falls("sharp", "dropout")),
        ),
        (
            "The flat part of the gap rises with d from 0.1 on.",
            "S6C: rises at high d",
            on({"dropout": [0.1, 0.2, 0.3]}, rises("flat", "dropout")),
        ),
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
    differences=DROPPED_LOSS,
)

_N, _RHO = "per_class", "label_noise"

_S7 = study_of(
    "figS7",
    "More data, and random labels",
    lambda v: v.vary(**v.sizes) + v.vary(label_noise=v.noises),
    panels=tuple(
        panel
        for key, where in ((_N, OTHER_N), (_RHO, ONE_N))
        for spectrum, size, parts in (three_panels(key, where),)
        for panel in (spectrum, size, c_panel(key, where), parts)
    ),
    claims=(
        *claims_on(
            OTHER_N,
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
                "sigma_g falls with N in the flattest half of all directions.",
                "S7A: falls in all directions",
                falls(flattest_sharpness, _N),
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
                falls_most("sharp", "flat", _N, of="eq11"),
            ),
        ),
        *with_random_labels(ONE_N, "S7E", "S7F", "S7H"),
        *claims_on(ONE_N, ("c_n rises with rho.", "S7G: rises", rises(mean_c, _RHO))),
    ),
    differences=(
        *OTHER_IMAGES,
        "A random label is uniform over the ten digits, so that a tenth of them are right.",
    ),
)

_S8 = study_of(
    "figS8",
    "Batch size in a network with four hidden layers",
    lambda v: v.vary(batch_size=v.batches, **DEEP),
    panels=tuple(panel for layer in LAYERS for panel in three_panels("batch_size", {}, layer)),
    claims=in_every_layer(by_sharpness, "batch_size", "rises", "S8"),
    reason=SPARSER,
)

_S9 = study_of(
    "figS9",
    "Weight decay in a network with four hidden layers",
    lambda v: v.decayed("squared", **DEEP),
    panels=tuple(panel for layer in LAYERS for panel in three_panels("decay", {}, layer)),
    claims=in_every_layer(by_size, "decay", "falls", "S9"),
    differences=SQUARED,
    reason=GROWS_AGAIN,
)

_S9_NORM = study_of(
    "figS9-norm",
    "Weight decay in a network with four hidden layers, with the penalty of the authors' demo",
    lambda v: v.decayed("norm", **DEEP),
    panels=_S9.panels,
    claims=in_every_layer(by_size, "decay", "falls", "S9"),
    differences=NORM,
)

_S10 = study_of(
    "figS10",
    "A convolutional network on CIFAR-10",
    lambda v: v.each(v.cnn),
    panels=(
        *three_panels("init_scale", only("init_scale")),
        *three_panels("label_noise", only("label_noise")),
    ),
    claims=(
        *by_size("init_scale", "rises", ["S10A", "S10B", "S10C"]),
        *with_random_labels(only("label_noise"), "S10D", "S10E", "S10F"),
    ),
    images=(
        "The images are of CIFAR-10, from LOWLAND_DATA: 1,000 to train on, for time, and 1,000 to "
        "test on. Realisations differ in initial weights and in the order of the data."
    ),
    differences=(
        "The paper gives no settings for this figure: alpha is 0.1, B 25 and rho as in Fig. S7. s "
        "ends at 1.5, for at this alpha networks from larger weights lose them in the first steps "
        "and hardly train: two of s = 2 were above a loss of 0.001 after 1,000 epochs.",
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
_RATES, _BATCHES = [0.02, 0.05, 0.1], [25, 100, 200]
_EIGHT = _settings(*((a, b) for a in _RATES for b in _BATCHES if (a, b) != (0.05, 100)))
_EQUAL = (((0.05, 100), (0.1, 200)), ((0.005, 25), (0.02, 100)), ((0.05, 200), (0.1, 400)))

_S11 = study_of(
    "figS11",
    "The ratio of learning rate and batch size",
    lambda v: v.each(v.ratios, measures=(_RATIO,)) + v.sgd(measures=(_RATIO,)),
    panels=three_panels(_RATIO, {"learning_rate": _RATES, "batch_size": _BATCHES}),
    claims=(
        *claims_on(
            {},
            ("The gap falls with alpha / B.", "S11C", on(_EIGHT, falls("eq11", _RATIO))),
            ("The sharp part falls with alpha / B.", "S11C", on(_EIGHT, falls("sharp", _RATIO))),
            (
                "The size of the solution, sigma_w, does not change with alpha / B.",
                "S11B",
                on(_EIGHT, unchanged(HIDDEN.size, _RATIO)),
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
        "equal ratios; the panels show those of the nine that converged.",
    ),
    reason=SPARSER,
)


STUDIES = (_S1, _S2, _S3, _S4, _S5, _S6, _S7, _S8, _S9, _S9_NORM, _S10, _S11)
