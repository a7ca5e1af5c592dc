"""Where a number stands among reference models, whose numbers ship with Lowland.

`zoo.json` has every measure of some small classifiers that `lowland_studies.zoo` trained: what they
are, and the command that makes them again, stands in it. No torch.
"""

import functools
import json
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lowland.findings import MeasureRow, Results

ZOO = Path(__file__).with_name("zoo.json")

FEW = 20  # models with fewer values than this rank nothing
# Networks whose number of weights is beyond the zoo's by more than this factor are another kind,
# and models whose training loss is further away are trained to another point.
BEYOND = 5.0


@dataclass(frozen=True)
class Standing:
    """The share of reference models with a lower value; from and to where the error leaves it."""

    share: float
    low: float
    high: float
    models: int

    @property
    def words(self) -> str:
        """In per cent, or a word where it is the first or last."""
        if self.share in (0, 1):
            return "highest" if self.share else "lowest"
        return f"{100 * self.share:.0f} %"


@dataclass(frozen=True)
class Zoo:
    """Reference models: what they are, and the values of each measure over them."""

    models: tuple[dict[str, Any], ...]
    weights: tuple[int, ...]  # how many each model has
    values: dict[str, tuple[float | None, ...]]  # of each model
    loss: str
    command: str

    @property
    def words(self) -> str:
        """What the models are, in a sentence."""
        networks = sorted({model["network"] for model in self.models})
        data = sorted({model["data"] for model in self.models})
        losses = sorted({model["stop_loss"] for model in self.models}, reverse=True)
        return (
            f"{len(self.models)} small classifiers of {' and '.join(data)} "
            f"({len(networks)} kinds, {min(self.weights):,} to {max(self.weights):,} weights), "
            f"trained to a training loss of {' or '.join(f'{loss:g}' for loss in losses)} with "
            "different learning rates, batch sizes, optimisers, weight decay, initial weights, "
            "dropout and shares of random labels"
        )

    def comparable(self, results: Results) -> "Zoo | str":
        """The models that these results may be ranked among; otherwise the reason in words."""
        subject, loss = results.subject, results.outcome.train_loss
        least, most = min(self.weights), max(self.weights)
        if subject.loss != self.loss:
            return f"the loss is {subject.loss}, and that of the reference models is {self.loss}"
        if not least / BEYOND <= subject.parameters <= most * BEYOND:
            return f"it has {subject.parameters:,} weights, and they have {least:,} to {most:,}"
        if results.convergence.state == "untrained" or loss is None or not math.isfinite(loss):
            return "it is not trained, and they are"
        alike = [i for i, v in enumerate(self.values["train_loss"]) if _near(v, loss)]
        if len(alike) < FEW:
            return f"too few of them have a training loss near {loss:.2g}"
        return replace(
            self,
            models=tuple(self.models[i] for i in alike),
            weights=tuple(self.weights[i] for i in alike),
            values={name: tuple(row[i] for i in alike) for name, row in self.values.items()},
        )

    def standing(self, row: MeasureRow) -> Standing | None:
        """Where a measure's value stands; None where it has none, or too few models have."""
        values = [v for v in self.values.get(row.name, ()) if v is not None]
        if row.value is None or not math.isfinite(row.value) or len(values) < FEW:
            return None
        if min(values) == max(values):
            return None
        error = 2 * row.stderr if row.stderr is not None and math.isfinite(row.stderr) else 0.0
        share, low, high = (
            _below(values, value) for value in (row.value, row.value - error, row.value + error)
        )
        return Standing(share, low, high, len(values))


def _near(value: float | None, loss: float) -> bool:
    return value is not None and loss / BEYOND <= value <= loss * BEYOND


def _below(values: list[float], value: float) -> float:
    """The share of the values below; equal ones count half."""
    below = sum(v < value for v in values) + 0.5 * sum(v == value for v in values)
    return below / len(values)


@functools.cache
def zoo() -> Zoo:
    """The reference models that ship with this version."""
    document = json.loads(ZOO.read_text(encoding="utf-8"))
    return Zoo(
        models=tuple(
            dict(zip(document["models"], values, strict=True))
            for values in zip(*document["models"].values(), strict=True)
        ),
        weights=tuple(document["weights"]),
        values={name: tuple(row) for name, row in document["values"].items()},
        loss=document["loss"],
        command=document["command"],
    )
