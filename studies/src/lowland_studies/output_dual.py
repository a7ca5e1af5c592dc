"""Do the claims of Feng & Tu hold by the output-level dual, and in networks they could not treat?

The paper's dual is of the activity level, and exact where all data passes through a layer. The
output-level dual also exists in residual networks and Transformers. On the paper's own network both
are made of the same trained weights. All of it together takes half an hour of two cores: of each
setting only the ends and a value between are taken, and the other networks are small.
"""

import functools
import operator
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from lowland.sweep.grid import Grid
from lowland_studies.claims import Test, between, correlated, on, smaller_part
from lowland_studies.evidence import Runs
from lowland_studies.feng_tu.columns import LayerColumns
from lowland_studies.feng_tu.grids import FULL, QUICK, Version, only
from lowland_studies.feng_tu.patterns import by_sharpness, by_size, three_panels
from lowland_studies.panels import Panel
from lowland_studies.study import Claim, Study

# What the paper says of the gap as each of them grows.
SETTINGS = {"learning_rate": "falls", "batch_size": "rises"}
NORMS = {"decay": "falls", "init_scale": "rises"}
_DUALS = ("activity", "output")


def _both(grid: Callable[..., Grid]) -> Grid:
    """The same trainings by either dual: they are trained once."""
    return functools.reduce(operator.add, (grid(dual=dual) for dual in _DUALS))


def _by_each_dual(claims: tuple[Claim, ...]) -> tuple[Claim, ...]:
    """Every claim once for each dual."""
    return tuple(
        replace(claim, text=f"{claim.text[:-1]}, by the {dual}-level dual.", test=_on(dual, claim))
        for claim in claims
        for dual in _DUALS
    )


def _on(dual: str, claim: Claim) -> Test:
    return on({"dual": dual}, claim.test)


def _panels_by_each_dual(*keys: str) -> tuple[Panel, ...]:
    """The panels of the paper's figure, by either dual."""
    return tuple(
        panel
        for key in keys
        for dual in _DUALS
        for panel in three_panels(key, only(key, dual=dual), LayerColumns("", f"{dual}-level"))
    )


_COMPARED = ("sharp", "flat", "total_w_data")
_NEW = "not in the paper"


def _side_by_side(runs: Runs) -> Runs:
    """The runs by the output-level dual, with the activity-level numbers of the same networks."""
    others = {row["training"]: row for row in runs.where(dual="activity").rows}
    own = [row for row in runs.where(dual="output").rows if row["training"] in others]
    return replace(
        runs,
        rows=tuple(
            row | {f"activity-level {name}": others[row["training"]][name] for name in _COMPARED}
            for row in own
        ),
    )


_AGREEMENT = tuple(
    Claim(text, _NEW, on(_side_by_side, test))
    for text, test in (
        (
            "The sharp part by one dual goes with that by the other.",
            correlated("sharp", "activity-level sharp", at_least=0.9),
        ),
        (
            "The flat part by one dual goes with that by the other.",
            correlated("flat", "activity-level flat", at_least=0.9),
        ),
        (
            "Output-level dual weights spread less, by T_w: less is asked of them.",
            smaller_part("total_w_data", "activity-level total_w_data", 1.0),
        ),
    )
)

# The paper's network, data and end of training; the ends of its settings and a value between.
_FEWER = replace(
    FULL,
    base={**FULL.base, "seed": range(5)},
    rates=[0.005, 0.02, 0.1],
    batches=[25, 100, 400],
    decays=[0.005, 0.02],
    scales=[1.0, 2.0, 3.0],
)
_FEWEST = replace(QUICK, base={**QUICK.base, "seed": range(3)})
_SCALED = "Ends and a middle of each setting, five realisations; the paper has ten."

_FIG3 = Study(
    "output-dual:fig3",
    "Learning rate and batch size by either dual, in the paper's network",
    grid=_both(_FEWER.sgd),
    quick=_both(_FEWEST.sgd),
    panels=_panels_by_each_dual(*SETTINGS),
    claims=(
        *_by_each_dual(
            (
                *by_sharpness("learning_rate", "falls", ["3A", "3B", "3C"]),
                *by_sharpness("batch_size", "rises", ["3D", "3E", "3F"]),
            )
        ),
        *_AGREEMENT,
    ),
    differences=(_SCALED,),
)


def _normed(version: Version) -> Callable[..., Grid]:
    def grid(**keys: Any) -> Grid:
        decayed = version.decayed("norm", **keys)
        return decayed + version.vary(init_scale=version.scales, **keys)

    return grid


_FIG4 = Study(
    "output-dual:fig4",
    "Weight decay and initial scale by either dual, in the paper's network",
    grid=_both(_normed(_FEWER)),
    quick=_both(_normed(_FEWEST)),
    panels=_panels_by_each_dual(*NORMS),
    claims=(
        *_by_each_dual(
            (
                *by_size("decay", "falls", ["4A", "4B", "4C"]),
                *by_size("init_scale", "rises", ["4D", "4E", "4F"]),
            )
        ),
        *_AGREEMENT,
    ),
    differences=(
        _SCALED,
        "The initial scale ends at 3: half of the networks do not converge at the paper's 4.",
        "The decay is beta times the sum of the norms |w| of the layers.",
    ),
)


def one_at_a_time(**values: Any) -> Grid:
    """The plain run, and those in which one of the paper's four settings takes its values."""
    common = {key: value for key, value in values.items() if key not in SETTINGS | NORMS}
    varied = ({key: values[key]} for key in SETTINGS | NORMS if key in values)
    return functools.reduce(operator.add, (Grid(**common, **own) for own in varied), Grid(**common))


@dataclass(frozen=True)
class _Network:
    """A network that the paper could not treat, with its data."""

    name: str
    words: str
    settings: dict[str, Any]
    layers: dict[str, str]  # what stands for each of them in a sentence
    differences: tuple[str, ...]

    def grid(self, **values: Any) -> Grid:
        """One setting at a time, with these values of each."""
        layers = {"layers": tuple(self.layers), "dual": "output"}
        return one_at_a_time(**self.settings, **layers, **values)

    def study(self) -> Study:
        """Which of the paper's claims carry over to it."""
        first, *others = self.layers.items()
        columns = [LayerColumns("", first[1]), *(LayerColumns(*other) for other in others)]
        claims: list[Claim] = [Claim(*_solved(column)) for column in columns]
        for column in columns:
            for key, trend in SETTINGS.items():
                claims += by_sharpness(key, trend, ["3", "3", "3"], column)
            for key, trend in NORMS.items():
                claims += by_size(key, trend, ["4", "4", "4"], column)
        return Study(
            f"output-dual:{self.name}",
            f"Learning rate, batch size, decay and initial scale in {self.words}",
            grid=self.grid(**FULL_VALUES),
            quick=self.grid(**QUICK_VALUES),
            panels=tuple(
                three_panels(key, only(key), column)[-1]
                for column in columns
                for key in SETTINGS | NORMS
            ),
            claims=tuple(claims),
            differences=(
                "The paper's network has no path around a layer; this one has, and the claims are "
                "read by the output-level dual.",
                *self.differences,
                _SMALL,
            ),
        )


def _solved(layer: LayerColumns) -> tuple[str, str, Test]:
    def lost(runs: Runs) -> Any:
        return runs.column(layer.column("excluded_share"))

    lost.__name__ = "share of the gap in pairs that were not solved"
    return (
        f"The output-level dual holds 95 % of the gap, {layer.title}.",
        _NEW,
        between(lost, -0.05, 0.05),
    )


FULL_VALUES: dict[str, Any] = {
    "learning_rate": [0.025, 0.05, 0.1],
    "batch_size": [25, 50, 100],
    "decay": [0.0, 1e-3, 4e-3],
    "init_scale": [0.7, 1.0, 1.5],
    "seed": range(5),
    "per_class": 30,
    "test_per_class": 10,
    "stop_loss": 0.01,
    "max_epochs": 800,
}
QUICK_VALUES: dict[str, Any] = {
    "learning_rate": [0.05, 0.1],
    "batch_size": [25, 50],
    "decay": [0.0, 4e-3],
    "init_scale": [1.0, 1.5],
    "seed": range(2),
    "per_class": 10,
    "test_per_class": 5,
    "stop_loss": 0.1,
    "max_epochs": 200,
}
_SMALL = (
    "Scaled down: 30 images of a class to train on and 10 for the 100 pairs, an end of training at "
    "a loss of 0.01, a range of 4 in learning rate and batch size, five realisations, two layers."
)

_RESNET = _Network(
    "resnet",
    "a small residual network on CIFAR-10",
    {"data": "cifar10", "network": "lowland_studies.residual:half_resnet"},
    {"2.conv1": "in a residual branch", "3.shortcut": "in a shortcut"},
    (
        "Nine convolutions of 8, 16 and 32 channels with BatchNorm on images of 16 x 16 pixels; "
        "claims are of a convolution beside an identity (layer 2.conv1) and of the shortcut behind "
        "it (layer 3.shortcut).",
    ),
)
_IN_TRANSFORMERS: dict[str, str] = {
    "blocks.0.value": "in the attention's values",
    "blocks.0.down": "in the dense part",
}
_TRANSFORMERS = (
    "Two blocks of width 24 with two heads and LayerNorm, a row of an image being a token; claims "
    "are of layers blocks.0.value and blocks.0.down.",
    "Directions are those of the GGN matrix, to save time: the exact Hessian of a smooth layer "
    "takes as many backward passes as it has outputs for a sample.",
)
_TRANSFORMER = _Network(
    "transformer",
    "a small Transformer on the rows of MNIST",
    {"data": "mnist5k", "network": "lowland_studies.transformer:mnist_rows", "basis": "ggn"},
    _IN_TRANSFORMERS,
    _TRANSFORMERS,
)
_CIFAR_TRANSFORMER = _Network(
    "transformer-cifar",
    "a small Transformer on the rows of CIFAR-10",
    {"data": "cifar10", "network": "lowland_studies.transformer:cifar_rows", "basis": "ggn"},
    _IN_TRANSFORMERS,
    _TRANSFORMERS,
)

STUDIES = (
    _FIG3,
    _FIG4,
    *(network.study() for network in (_RESNET, _TRANSFORMER, _CIFAR_TRANSFORMER)),
)
