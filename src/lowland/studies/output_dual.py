"""Do the claims of Feng & Tu hold by the output-level dual, and in networks they could not treat?

The paper's dual is of the activity level, and exact where all data passes through a layer. The
output-level dual also exists in residual networks and Transformers. On the paper's own network both
are made of the same trained weights.
"""

import functools
import operator
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from lowland.studies.claims import Test, between, on
from lowland.studies.evidence import Runs
from lowland.studies.feng_tu.columns import LayerColumns
from lowland.studies.feng_tu.grids import FULL, QUICK, Version, only
from lowland.studies.feng_tu.patterns import by_sharpness, by_size
from lowland.studies.panels import Against, Panel
from lowland.studies.study import Claim, Study
from lowland.sweep.grid import Grid

_SETTINGS = {"learning_rate": "falls", "batch_size": "rises"}
_NORMS = {"decay": "falls", "init_scale": "rises"}
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


def _parts(key: str, where: dict[str, Any], layer: LayerColumns, title: str) -> Panel:
    columns = {
        "$\\Delta L$": layer.column("eq11"),
        "$\\Delta L_s$": layer.column("sharp"),
        "$\\Delta L_f$": layer.column("flat"),
    }
    log = "" if key in _NORMS else "x"
    return Against(key, columns, "generalisation gap", log=log, where=where, title=title)


_PLAIN = LayerColumns()
_FIG3 = Study(
    "output-dual:fig3",
    "Learning rate and batch size by either dual, in the paper's network",
    grid=_both(FULL.sgd),
    quick=_both(QUICK.sgd),
    panels=tuple(
        _parts(key, only(key, dual=dual), _PLAIN, f"{dual}-level")
        for key in _SETTINGS
        for dual in _DUALS
    ),
    claims=_by_each_dual(
        (
            *by_sharpness("learning_rate", "falls", ["3A", "3B", "3C"]),
            *by_sharpness("batch_size", "rises", ["3D", "3E", "3F"]),
        )
    ),
)


def _normed(version: Version) -> Callable[..., Grid]:
    def grid(**keys: Any) -> Grid:
        decayed = version.decayed("norm", **keys)
        return decayed + version.vary(init_scale=version.scales, **keys)

    return grid


_FIG4 = Study(
    "output-dual:fig4",
    "Weight decay and initial scale by either dual, in the paper's network",
    grid=_both(_normed(FULL)),
    quick=_both(_normed(QUICK)),
    panels=tuple(
        _parts(key, only(key, dual=dual), _PLAIN, f"{dual}-level")
        for key in _NORMS
        for dual in _DUALS
    ),
    claims=_by_each_dual(
        (
            *by_size("decay", "falls", ["4A", "4B", "4C"]),
            *by_size("init_scale", "rises", ["4D", "4E", "4F"]),
        )
    ),
    differences=("The decay is beta times the sum of the norms |w| of the layers.",),
)


@dataclass(frozen=True)
class _Network:
    """A network that the paper could not treat, with its data."""

    name: str
    words: str
    settings: dict[str, Any]
    layers: tuple[str, ...]

    def grid(self, **values: Any) -> Grid:
        """One setting at a time, with these values of each."""
        common = {**self.settings, "layers": self.layers, "dual": "output"}
        common |= {key: values.pop(key) for key in list(values) if key not in _SETTINGS | _NORMS}
        plain = Grid(**common)
        varied = (Grid(**common, **{key: value}) for key, value in values.items())
        return functools.reduce(operator.add, varied, plain)

    def study(self) -> Study:
        """Which of the paper's claims carry over to it."""
        first, *others = self.layers
        columns = [LayerColumns("", f"layer {first}")]
        columns += [LayerColumns(name, f"layer {name}") for name in others]
        claims: list[Claim] = [Claim(*_solved(column)) for column in columns]
        for column in columns:
            for key, trend in _SETTINGS.items():
                claims += by_sharpness(key, trend, ["3", "3", "3"], column)
            for key, trend in _NORMS.items():
                claims += by_size(key, trend, ["4", "4", "4"], column)
        return Study(
            f"output-dual:{self.name}",
            f"Learning rate, batch size, decay and initial scale in {self.words}",
            grid=self.grid(
                **_FULL_VALUES, per_class=100, test_per_class=50, stop_loss=0.01, max_epochs=500
            ),
            quick=self.grid(
                **_QUICK_VALUES, per_class=20, test_per_class=10, stop_loss=0.1, max_epochs=200
            ),
            panels=tuple(
                _parts(key, only(key), column, column.title)
                for column in columns
                for key in _SETTINGS | _NORMS
            ),
            claims=tuple(claims),
            differences=(
                "The paper's network has no path around a layer; this one has, and the claims are "
                "read by the output-level dual.",
            ),
        )


def _solved(layer: LayerColumns) -> tuple[str, str, Test]:
    def lost(runs: Runs) -> Any:
        return runs.column(layer.column("excluded_share"))

    lost.__name__ = "share of the gap in pairs that were not solved"
    return (
        f"The output-level dual holds 95 % of the gap, {layer.title}.",
        "not in the paper",
        between(lost, -1e-12, 0.05),
    )


_FULL_VALUES: dict[str, Any] = {
    "learning_rate": [0.02, 0.05, 0.1],
    "batch_size": [25, 50, 100],
    "decay": [0.0, 1e-3, 4e-3],
    "init_scale": [0.7, 1.0, 1.5],
    "seed": range(6),
}
_QUICK_VALUES: dict[str, Any] = {
    "learning_rate": [0.05, 0.1],
    "batch_size": [25, 50],
    "decay": [0.0, 4e-3],
    "init_scale": [1.0, 1.5],
    "seed": range(2),
}

_RESNET = _Network(
    "resnet",
    "a residual network of eight layers on CIFAR-10",
    {"data": "cifar10", "network": "lowland.studies.residual:wrn_10_1"},
    ("1.conv1", "2.shortcut", "3.shortcut"),
)
_TRANSFORMER = _Network(
    "transformer",
    "a small Transformer on the rows of MNIST",
    {"data": "mnist5k", "network": "lowland.studies.transformer:mnist_rows"},
    ("blocks.0.value", "blocks.0.down", "blocks.1.up"),
)
_CIFAR_TRANSFORMER = _Network(
    "transformer-cifar",
    "a small Transformer on the rows of CIFAR-10",
    {"data": "cifar10", "network": "lowland.studies.transformer:cifar_rows"},
    ("blocks.0.value", "blocks.0.down", "blocks.1.up"),
)

STUDIES = (
    _FIG3,
    _FIG4,
    *(network.study() for network in (_RESNET, _TRANSFORMER, _CIFAR_TRANSFORMER)),
)
