"""All that an analysis found, as it is saved, drawn and compared."""

import json
from dataclasses import dataclass, field
from typing import Any, Literal, NoReturn

import numpy as np

from lowland.errors import InputError
from lowland.findings.convergence import Convergence
from lowland.findings.encoding import Arrays, decode, encode
from lowland.findings.landscape import Landscape
from lowland.findings.spectrum import WholeSpectrum
from lowland.findings.split import Decomposition, LayerRow

# Goes up by one whenever a type below, or one that it holds, changes.
FORMAT = 8

Scalar = bool | int | float | str | None


@dataclass(frozen=True)
class TrainingRecord:
    """How the analysed weights were trained."""

    epochs: int
    converged: bool  # whether the loss reached its goal, rather than the limit of epochs
    seconds: float
    settings: dict[str, Scalar]
    curves: dict[str, np.ndarray]  # one number per epoch: loss, error, weight_norm


@dataclass(frozen=True)
class Origin:
    """Where a problem came from, as far as its maker tells."""

    command: str | None = None  # that was typed; None from Python
    data: str | None = None  # in words
    checkpoint: str | None = None
    seed: int | None = None
    training: TrainingRecord | None = None


@dataclass(frozen=True)
class Subject:
    """What was analysed."""

    title: str
    model: str  # as torch prints it
    parameters: int  # that were measured
    frozen: int  # others, which the training left alone
    layer: str | None  # that was decomposed in full
    layer_shape: tuple[int, ...] | None
    layers: tuple[str, ...]  # all that could have been
    loss: str
    unit: str | None  # of the loss and its gap
    train_samples: int
    test_samples: int
    device: str
    dtype: str
    fingerprint: str  # of the data: equal for the same samples


@dataclass(frozen=True)
class Outcome:
    """How well the model does; None where a measure does not apply."""

    train_loss: float | None
    test_loss: float | None
    train_error: float | None
    test_error: float | None
    gap: float | None


@dataclass(frozen=True)
class Unseen:
    """The test samples one by one, for comparing solutions on the same ones."""

    losses: np.ndarray  # (n,)
    wrong: np.ndarray | None  # (n,), the share of wrong predictions; None if there are no such


@dataclass(frozen=True)
class MeasureRow:
    """One measure: what it is, and its value with its error or the reason why there is none."""

    name: str
    title: str
    family: str
    formula: str
    definition: str
    citation: str
    sharper: Literal["higher", "lower"] | None
    needs_test: bool
    needs_initial: bool
    invariant: tuple[str, ...]
    loss: str | None
    trains: bool
    value: float | None
    stderr: float | None
    method: str | None
    reason: str | None
    seconds: float
    gradients: float | None  # the same in gradients of the training loss
    predicted: (
        float | None
    )  # seconds, before it began; with what it shares with others, if left out
    samples: int | None  # of the subset that it is from; None if it is from all data
    parts: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Course:
    """The time of an analysis: what was planned before it began, and whether it ended early."""

    budget: float | None  # seconds; None if there was no limit
    gradient: float | None  # seconds of one gradient of the training loss
    planned: str | None  # in words
    predicted: float | None  # seconds of all that was planned
    spent: float  # seconds of the same, as it came
    samples: int | None  # of the subset that some numbers are from; None if all are from all data
    stopped: str | None  # why it ended early
    interrupted: bool  # whether that was Ctrl-C


@dataclass(frozen=True)
class Check:
    """An identity that must hold, with what came out."""

    name: str
    value: float
    limit: float
    passed: bool
    meaning: str


@dataclass(frozen=True)
class Results:
    """All that an analysis found."""

    lowland: str  # the version that made it
    created: str  # ISO 8601
    seconds: float
    course: Course
    origin: Origin
    subject: Subject
    outcome: Outcome
    unseen: Unseen | None  # without test data
    convergence: Convergence
    duality: Decomposition | None  # of the layer that was chosen
    balanced: Decomposition | None  # the same with balanced units, if the first is as given
    layers: dict[str, Decomposition]  # further layers that were asked for
    layer_rows: tuple[LayerRow, ...]  # every layer in short
    measures: tuple[MeasureRow, ...]
    checks: tuple[Check, ...]
    notes: tuple[str, ...]
    versions: dict[str, str] = field(default_factory=dict)  # of what computed it, by name
    spectrum: WholeSpectrum | None = None  # where a measure asked for it
    landscape: Landscape | None = None

    @property
    def comparable(self) -> Decomposition | None:
        """The decomposition with balanced units, which rescaling a solution cannot change."""
        if self.duality is not None and self.duality.setting.gauge == "balanced":
            return self.duality
        return self.balanced


def to_json(results: Results) -> tuple[dict[str, Any], Arrays]:
    """The results as a document for JSON, with the format's number, and the arrays it names."""
    arrays: Arrays = {}
    return {"format": FORMAT, **encode(results, arrays)}, arrays


def from_json(text: str | bytes, arrays: Arrays) -> Results:
    """The results that were written; an error in one line if these are others or damaged ones."""
    try:
        document = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise InputError(f"this is no JSON: {error}") from error
    if not isinstance(document, dict):
        raise InputError(f"the document should be an object; it is {type(document).__name__}")
    number = document.pop("format", None)
    if number != FORMAT:
        raise InputError(f"they have format {number!r} and this Lowland reads format {FORMAT}")
    return decode(Results, document, arrays)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
