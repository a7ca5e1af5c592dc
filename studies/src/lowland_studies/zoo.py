"""The reference models that a report compares with: `python -m lowland_studies.zoo DIR`.

They are the networks of the league table, and some that were trained further. Those that DIR, a
store such as that of `lowland reproduce league --out DIR`, does not have are trained and measured
there; it can be interrupted and started again. Their numbers are written to the file that ships
with Lowland, `src/lowland/reference/zoo.json`.
"""

import json
import math
import sys
from pathlib import Path
from typing import Any

from lowland import __version__
from lowland.errors import InputError
from lowland.measures import Measure, registered
from lowland.reference import ZOO
from lowland.results import load
from lowland.sweep import Grid, Store, run
from lowland_studies.league import networks

DIGITS, IMAGES = "64-30-30-10", "784-30-30-10"
# Two training losses: curvature shrinks with the loss, so that a solution has a rank only among
# models that were trained as far as it.
_STOP = {"stop_loss": [0.01, 0.0005], "max_epochs": 600}
# What a model of the zoo is told apart by.
TOLD = (
    *("data", "per_class", "label_noise", "network", "init_scale", "optimizer", "learning_rate"),
    *("batch_size", "decay", "dropout", "stop_loss", "seed"),
)


def grid() -> Grid:
    """What the models are: small classifiers, trained in different ways."""
    return networks.grid() + _further()


def _further() -> Grid:
    """Models beside those of the league: of digits, LeNets among them, at two losses."""
    measures = [name for name, its in registered().items() if not its.trains]
    fixed = {**_STOP, "measures": measures}
    digits = {"data": "digits", **fixed}
    images = {"data": "mnist5k", "per_class": 100, **fixed}
    few = {"data": "mnist5k", "per_class": 20, "network": "lenet", "bias": True, **fixed}
    widths, deep = ["64-12-10", "64-100-10"], "64-40-40-40-10"
    return (
        Grid(network=DIGITS, learning_rate=[0.05, 0.2], batch_size=[10, 50], seed=[0, 1], **digits)
        + Grid(network=DIGITS, decay=[0.0003, 0.001], **digits)
        + Grid(network=DIGITS, init_scale=[0.5, 2.0], **digits)
        + Grid(network=DIGITS, label_noise=[0.1, 0.3], **digits)
        + Grid(network=[*widths, deep], **digits)
        + Grid(network=DIGITS, optimizer=["sam", "asam"], **digits)
        + Grid(network=DIGITS, optimizer="adam", learning_rate=0.001, **digits)
        + Grid(network=IMAGES, learning_rate=[0.05, 0.2], batch_size=[10, 50], **images)
        + Grid(network=IMAGES, decay=[0.0003, 0.001], **images)
        + Grid(network=IMAGES, init_scale=[0.5, 2.0], **images)
        + Grid(network=IMAGES, label_noise=[0.1, 0.3], **images)
        + Grid(network=["784-10-10", "784-100-10", "784-40-40-40-10"], **images)
        + Grid(network=IMAGES, optimizer=["sam", "asam"], **images)
        + Grid(network=IMAGES, **{**images, "per_class": 400})
        + Grid(learning_rate=[0.02, 0.05], batch_size=[10, 25], **few)
        + Grid(label_noise=0.2, learning_rate=0.05, **few)
        + Grid(optimizer="adam", learning_rate=0.001, **few)
    )


def numbers(store: Store) -> dict[str, Any]:
    """The models that reached their training loss, and every measure of each, in their order."""
    rows = [row for row in store.rows(old=False) if row["status"] == "done" and row["converged"]]
    rows.sort(key=lambda row: [str(row.get(name)) for name in TOLD])
    if not rows:
        raise InputError(f"no run in {store.directory} reached its training loss")
    values = {
        name: [_short(row.get(name)) if _default_layer(measure, row) else None for row in rows]
        for name, measure in registered().items()
    }
    return {
        "lowland": __version__,
        "command": "python -m lowland_studies.zoo zoo",
        "loss": "cross_entropy",
        "weights": [_weights(store, row) for row in rows],
        "models": {name: [row.get(name) for row in rows] for name in TOLD},
        "values": {name: its for name, its in values.items() if any(v is not None for v in its)},
    }


def _default_layer(measure: Measure, row: dict[str, Any]) -> bool:
    """Whether a measure is of the layer that a report decomposes; all but duality's always are."""
    return measure.family != "duality" or row["layers"] == "[]"


def _weights(store: Store, row: dict[str, Any]) -> int:
    return load(store.path(row["key"])).results.subject.parameters


def _short(value: float | None) -> float | None:
    """Four digits, or None: a rank needs no more."""
    return float(f"{value:.4g}") if value is not None and math.isfinite(value) else None


def main(directory: str) -> None:
    """Train, measure and write."""
    summary = run(grid(), directory, executor="serial", progress=lambda now: print(now.done))
    for name, reason in summary.failed.items():
        print(f"failed: {name}: {reason}", file=sys.stderr)
    document = numbers(Store(directory))
    write(document)
    count = len(document["weights"])
    print(f"{count} models, {len(document['values'])} measures: {ZOO}")


def write(document: dict[str, Any]) -> None:
    """Put the numbers into the file that ships, a line for each setting and measure."""
    text = json.dumps(document, allow_nan=False, separators=(",", ":"))
    Path(ZOO).write_text(text.replace('],"', '],\n"') + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:2])
