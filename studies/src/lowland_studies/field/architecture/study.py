"""What parts of an architecture and ways to regularise do to the two determinants of the gap."""

from typing import Any

from lowland.sweep import Grid, trials
from lowland_studies.claims import larger, on, smaller
from lowland_studies.panels import Kinds
from lowland_studies.study import Claim, Kind, Study

_PLAIN: dict[str, Any] = {
    "data": "mnist5k",
    "per_class": 50,
    "test_per_class": 20,
    "width": 32,
    "depth": 3,
    "skip": False,
    "norm": "none",
    "dropout": 0.0,
    "decay": 0.0,
    "learning_rate": 0.05,
    "batch_size": 25,
    "stop_loss": 0.02,
    "max_epochs": 400,
}
_OVERVIEW = "overview, Section 6: design choices that promote flat minima"
_SAID = {
    "batch norm": f"{_OVERVIEW}, smoother loss landscapes",
    "skip": f"{_OVERVIEW}, smoother optimization landscapes",
    "wide": f"{_OVERVIEW}, more parameters than needed create flatter minima",
    "dropout": f"{_OVERVIEW}, averaging over configurations",
    "decay": f"{_OVERVIEW}, shrinks parameters",
    "stopped early": "overview, Section 8: may land in flatter regions",
}
# What Feng & Tu say of these as well; of decay they say that sharpness does not depend on it.
_FENG_TU = {
    ("dropout", "total_g"): "Feng & Tu, Fig. S6A",
    ("dropout", "total_w"): "Feng & Tu, Fig. S6B",
    ("decay", "total_w"): "Feng & Tu, Fig. 4B",
    ("decay", "eq11"): "Feng & Tu, Fig. 4C",
}
_ALL = ("plain", "batch norm", "layer norm", "skip", "wide", "dropout", "decay", "stopped early")


def _grid(seeds: int, **others: Any) -> Grid:
    name = "lowland_studies.field.architecture.trial:trial"
    return trials(name, **{**_PLAIN, **others}, kind=_ALL, seed=range(seeds))


def _against_plain(
    kind: str, what: str, column: str, test: Any, source: str = "", sort: Kind = "claim"
) -> Claim:
    beside = test(column, {"kind": kind}, {"kind": "plain"})
    source = "; ".join(filter(None, (source, _FENG_TU.get((kind, column)))))
    return Claim(
        f"{kind.capitalize()}: {what}.", source, on({"kind": [kind, "plain"]}, beside), sort
    )


def _claims() -> tuple[Claim, ...]:
    claims = []
    for kind, source in _SAID.items():
        claims += [
            _against_plain(kind, "T_g is smaller, the loss flatter", "total_g", smaller, source),
            _against_plain(kind, "the drawn basin is wider", "basin", larger, source),
            _against_plain(kind, "the gap is smaller", "eq11", smaller, source),
        ]
    for kind in ("batch norm", "skip"):
        claims.append(
            _against_plain(kind, "the drawn surface is smoother", "roughness", smaller, _SAID[kind])
        )
    for kind, test, words in (("decay", smaller, "smaller"), ("dropout", larger, "larger")):
        claims.append(_against_plain(kind, f"T_w is {words}", "total_w", test))
    ours = "ours: the overview names BatchNorm alone"
    claims += [
        _against_plain("layer norm", what, column, test, ours, "ours")
        for what, column, test in (
            ("T_g is smaller, the loss flatter", "total_g", smaller),
            ("the drawn basin is wider", "basin", larger),
            ("the gap is smaller", "eq11", smaller),
        )
    ]
    ours = "ours: what it does to the picture"
    for kind in ("layer norm", "wide", "dropout", "decay", "stopped early"):
        what = "the drawn surface is smoother"
        claims.append(_against_plain(kind, what, "roughness", smaller, ours, "ours"))
    ours = "ours: what it does to the parts of the gap"
    for kind in _ALL[1:]:
        for name, column in (("sharp part", "sharp"), ("flat part", "flat"), ("T_w", "total_w")):
            if column == "total_w" and (kind, column) in _FENG_TU:
                continue
            what = f"the {name} is smaller" if column != "total_w" else "T_w is smaller"
            claims.append(_against_plain(kind, what, column, smaller, ours, "ours"))
    return tuple(claims)


STUDY = Study(
    name="architecture",
    title="Architecture and regularisation: the two determinants and the picture",
    grid=_grid(5),
    quick=_grid(3, per_class=20, test_per_class=10),
    panels=tuple(
        Kinds("kind", column, label)
        for column, label in (
            ("eq11", "generalisation gap"),
            ("sharp", "sharp part"),
            ("flat", "flat part"),
            ("total_g", "$T_g$"),
            ("total_w", "$T_w$"),
            ("basin", "drawn width"),
            ("roughness", "drawn roughness"),
            ("test_error", "test error"),
        )
    ),
    claims=_claims(),
    differences=(
        "The overview names no setting. Ours: dense networks of a first layer and three more of 32 "
        "units (wide: 128) on 500 images of MNIST, trained by SGD (rate 0.05, batches of 25) to a "
        "loss of 0.02 (stopped early: 0.2), five realisations. Decay is 1e-3 times the sum of "
        "squared weights all along; dropout is 0.2 behind each of the three; normalisation stands "
        "before their ReLU.",
        "The gap is decomposed in the first of the three layers, by the output-level dual, which "
        "is right beside a shortcut, over 200 pairs, with 10 sharp directions; the totals are "
        "those of the data's pairs. The picture is that of the study `pictures`.",
        "Quick: 200 images, 100 pairs, three realisations.",
    ),
)
