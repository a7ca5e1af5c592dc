"""The figures of the main text: their runs, panels and claims."""

import math
from typing import Any

from lowland_studies.claims import (
    between,
    correlated,
    falls,
    larger_part,
    rises,
    unchanged,
)
from lowland_studies.directions import proportional
from lowland_studies.feng_tu.builder import (
    GROWS_AGAIN,
    OTHER_IMAGES,
    SPARSER,
    SQUARED,
    study_of,
    tuned,
)
from lowland_studies.feng_tu.columns import (
    log_correlation,
    relative_size,
    squared_sigma_g,
    trace,
)
from lowland_studies.feng_tu.equations import grows_again, sparser
from lowland_studies.feng_tu.grids import (
    LETTERS,
    N_SHARP,
    ONE_N,
    OTHER_N,
    SCALES,
    Version,
    only,
    varied,
)
from lowland_studies.feng_tu.patterns import (
    by_sharpness,
    by_size,
    claims_on,
    from_the_plain_scale,
    three_panels,
)
from lowland_studies.panels import Scatter, Spectrum

BETA_RATIO = Spectrum(
    *(relative_size("decay", 0.0), "decay", "$\\sigma_{w,n}(\\beta) / \\sigma_{w,n}(0)$"),
    log="x",
    where=only("decay"),
)
S_RATIO = Spectrum(
    *(relative_size("init_scale", 2.0), "init_scale", "$\\sigma_{w,n}(s) / \\sigma_{w,n}(2)$"),
    log="x",
    where=only("init_scale"),
)

_VARIED = ("learning_rate", "batch_size", "decay", "init_scale", "per_class")


def _alone(key: str) -> dict[str, Any]:
    """The runs in which one setting varies."""
    return OTHER_N if key == "per_class" else only(key, **ONE_N)


_FIG2 = study_of(
    "fig2",
    "Sharpness and curvature, size and norm of the weights",
    tuned,
    panels=(
        Scatter(
            *(squared_sigma_g, "duality/eigenvalue", "$\\sigma_{g,n}^2$", "$H_n$"),
            by=varied,
            log="xy",
            line=False,
        ),
        Scatter("total_w_data", "layer_norm", "$T_w$", "$\\|w\\|_2$", by=varied),
        Scatter("total_g", trace, "$T_g$", "$T_h$", by=varied, title="inset of A"),
    ),
    claims=(
        *claims_on(
            {},
            (
                "sigma_g^2 and the Hessian's eigenvalue are highly correlated over directions.",
                "2A: highly correlated",
                between(
                    log_correlation(
                        *(squared_sigma_g, "duality/eigenvalue"),
                        "correlation of log sigma_g^2 and log H",
                    ),
                    *(0.8, math.inf),
                ),
            ),
            (
                f"Over the {N_SHARP} sharpest directions H_n is proportional to sigma_g^2.",
                "2A: linear at large sigma_g^2",
                proportional(squared_sigma_g, "duality/eigenvalue", largest=N_SHARP),
            ),
            (
                "The trace of the Hessian goes with the total gradient variance.",
                "2A, inset: highly correlated",
                correlated("total_g", trace),
            ),
        ),
        # A pooled correlation may be that of the settings' means: each setting for itself, too.
        *(
            claim
            for key in _VARIED
            for claim in claims_on(
                _alone(key),
                (
                    f"The trace goes with T_g where {LETTERS[key]} alone varies.",
                    "2A, inset: highly correlated",
                    correlated("total_g", trace),
                ),
                kind="restated",
            )
        ),
        *claims_on(
            only("decay", "init_scale", **ONE_N),
            (
                "T_w grows with the norm of the weights where beta and s vary.",
                "2B: T_w increases with |w|",
                correlated("layer_norm", "total_w_data"),
            ),
        ),
        *(
            claim
            for key in ("decay", "init_scale")
            for claim in claims_on(
                _alone(key),
                (
                    f"T_w grows with the norm of the weights where {LETTERS[key]} alone varies.",
                    "2B: T_w increases with |w|",
                    correlated("layer_norm", "total_w_data"),
                ),
                kind="restated",
            )
        ),
        *claims_on(
            only("decay", **ONE_N),
            ("|w| falls with beta.", "2B: changes significantly", falls("layer_norm", "decay")),
        ),
        *claims_on(
            SCALES | ONE_N,
            ("|w| rises with s.", "2B: changes significantly", rises("layer_norm", "init_scale")),
        ),
        *(
            claim
            for key in ("learning_rate", "batch_size")
            for name, column, kind in (
                ("|w|", "layer_norm", "claim"),
                ("T_w", "total_w_data", "restated"),  # by sigma_w in Fig. 3
            )
            for claim in claims_on(
                only(key, **ONE_N),
                (
                    f"{name} does not change with {LETTERS[key]}.",
                    "2B: roughly constant",
                    unchanged(column, key),
                ),
                kind=kind,  # type: ignore[arg-type]
            )
        ),
    ),
    differences=(*OTHER_IMAGES, *SQUARED),
    reason=SPARSER,
)

_FIG3 = study_of(
    "fig3",
    "Learning rate and batch size",
    Version.sgd,
    panels=(
        *three_panels("learning_rate", only("learning_rate")),
        *three_panels("batch_size", only("batch_size")),
    ),
    claims=(
        *by_sharpness("learning_rate", "falls", ["3A", "3B", "3C"]),
        *by_sharpness("batch_size", "rises", ["3D", "3E", "3F"]),
        *sparser("learning_rate", "falls"),
        *sparser("batch_size", "rises"),
        *claims_on(
            {},
            (
                "On average over the settings more than half of the gap comes from the 10 "
                "sharpest of 900 directions.",
                "3: more than 50 % in the example shown",
                larger_part("sharp", "eq11"),
            ),
        ),
        *claims_on(
            only(),
            (
                "With alpha = 0.1 and B = 25 alone it is more than half as well.",
                "3: the text does not say of which setting",
                larger_part("sharp", "eq11"),
            ),
            kind="ours",
        ),
    ),
    reason=SPARSER,
)

_FIG4 = study_of(
    "fig4",
    "Weight decay and initial scale",
    Version.norms,
    panels=(*three_panels("decay", only("decay")), *three_panels("init_scale", only("init_scale"))),
    claims=(
        *by_size("decay", "falls", ["4A", "4B", "4C"]),
        *by_size("init_scale", "rises", ["4D", "4E", "4F"], where=SCALES),
        *from_the_plain_scale(["4D", "4E", "4F"]),
        *grows_again(),
    ),
    differences=SQUARED,
    reason=f"{GROWS_AGAIN}\n"
    "With the demo's settings sigma_g of the sharpest directions falls up to s = 5 and rises again "
    "up to s = 7, where the sharp part of the gap is largest; why is not known.",
)

STUDIES = (_FIG2, _FIG3, _FIG4)
