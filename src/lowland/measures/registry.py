"""Measures and their metadata: a file in this folder is all that a new measure needs.

Whatever shows measures (tables, the report, the docs gallery, the test battery) reads this
registry and never names one.
"""

import importlib
import pkgutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from lowland.errors import InputError
from lowland.measures.sharing import Cost
from lowland.problem import Problem
from lowland.wording import suggestion

# In the order in which tables show them.
FAMILIES = (
    *("outcome", "curvature", "normalized", "perturbation", "volume", "norms", "bounds"),
    *("gradients", "duality"),
)
# Function-preserving transformations of ReLU networks, and one that keeps only the decision:
# "layers" rescales one layer against the next (Dinh et al. 2017), "units" each hidden unit with a
# factor of its own (Tsuzuku et al., Sec. 5.1), "outputs" multiplies the last layer.
TRANSFORMATIONS = ("layers", "units", "outputs")
# What others call our measures; their titles are known as well.
_SYNONYMS = {
    "hessian_spectral_norm": "largest_eigenvalue",
    "lambda_max": "largest_eigenvalue",
    "max_eigenvalue": "largest_eigenvalue",
    "sharpness": "largest_eigenvalue",
    "top_eigenvalue": "largest_eigenvalue",
    "tr_hessian": "trace",
    "gradient_norm_variance": "gradient_variance",
    "generalization_gap": "gap",
    "l2_norm": "weight_norm",
    "parameter_norm": "weight_norm",
    "sam": "sam_sharpness",
    "ece": "calibration_error",
    "val_loss": "test_loss",
    "validation_loss": "test_loss",
    "test_accuracy": "test_error",
    "train_accuracy": "train_error",
    "accuracy": "test_error",
}
# Names that stand for several measures.
GROUPS: "dict[str, Callable[[Measure], bool]]" = {
    "default": lambda measure: not measure.trains,
    "all": lambda measure: True,
}


@dataclass(frozen=True)
class Value:
    """What a measure's function returns; ``parts`` are terms that it is made of, by name."""

    value: float
    method: str
    stderr: float | None = None
    parts: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Measure:
    """A measure: how to compute it, and all that may be said of it without computing it.

    ``invariant`` names those of ``TRANSFORMATIONS`` that leave it unchanged. The test battery
    checks that it holds where claimed and fails where not. Permuting hidden units, the order of
    samples and how they are batched must leave every measure unchanged.
    """

    name: str
    title: str
    family: str
    formula: str
    definition: str
    citation: str
    sharper: Literal["higher", "lower"] | None
    needs_test: bool
    needs_initial: bool  # the weights that the training started from
    invariant: frozenset[str]
    loss: str | None  # measured with this loss instead of the problem's own
    trains: bool  # optimises or samples for thousands of gradients; runs only when it is named
    sampled: bool  # whether some of the training samples tell it, with an error bar that holds
    cost: Cost = field(repr=False)  # what it takes
    function: Callable[[Problem], Value] = field(repr=False)


_REGISTERED: dict[str, Measure] = {}


def register(
    *,
    title: str,
    family: str,
    formula: str,
    definition: str,
    citation: str,
    sharper: Literal["higher", "lower"] | None,
    cost: Cost,
    needs_test: bool = False,
    needs_initial: bool = False,
    invariant: tuple[str, ...] = (),
    loss: str | None = None,
    trains: bool = False,
    sampled: bool = False,
) -> Callable[[Callable[[Problem], Value]], Callable[[Problem], Value]]:
    """Make a function of a Problem a measure of the same name.

    ``cost`` is what it takes: :class:`Work`, or a function of the problem that returns it.
    """

    def add(function: Callable[[Problem], Value]) -> Callable[[Problem], Value]:
        name = function.__name__
        _REGISTERED[name] = Measure(
            name=name, title=title, family=family, formula=formula, definition=definition,
            citation=citation, sharper=sharper, needs_test=needs_test, needs_initial=needs_initial,
            invariant=frozenset(invariant), loss=loss, trains=trains, sampled=sampled,
            cost=cost, function=function,
        )  # fmt: skip
        return function

    return add


def _as_name(title: str) -> str:
    return title.lower().replace("-", "_").replace(" ", "_")


def registered() -> dict[str, Measure]:
    """Every measure by name, family by family: this folder's modules are imported to find them."""
    package = importlib.import_module("lowland.measures")
    for module in sorted(m.name for m in pkgutil.iter_modules(package.__path__)):
        importlib.import_module(f"lowland.measures.{module}")
    order = sorted(_REGISTERED.values(), key=lambda m: (FAMILIES.index(m.family), m.name))
    return {m.name: m for m in order}


def chosen_measures(names: Sequence[str] | str | None) -> dict[str, Measure]:
    """The measures of these names, by default all that need no training of their own.

    ``"default"`` among the names stands for these, and ``"all"`` for every measure.
    """
    measures = registered()
    chosen: dict[str, Measure] = {}
    for name in [names or "default"] if names is None or isinstance(names, str) else names:
        if name in GROUPS:
            chosen |= {own: m for own, m in measures.items() if GROUPS[name](m)}
        elif name in measures:
            chosen[name] = measures[name]
        else:
            titles = {_as_name(m.title): own for own, m in measures.items()}
            hint = suggestion(name, (*measures, *GROUPS), titles | _SYNONYMS)
            hint = hint or f"there are {', '.join(measures)}"
            raise InputError(f"no measure named {name!r}; {hint}")
    return chosen
