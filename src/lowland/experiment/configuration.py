"""Every setting that decides an experiment. No torch: mistakes are told at once."""

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from numbers import Integral, Real
from types import NoneType
from typing import Any, Self, get_args, get_origin

from lowland.errors import InputError
from lowland.wording import suggestion

# The rescalings after which measures can be taken again, with the factor of each: the first four
# multiply weights, the last puts a half of every layer beside the rest (Tsuzuku et al., Eq. 26-30).
# All keep the function but "outputs", which keeps its decisions.
FACTORS = {"layers": 10.0, "units": 10.0, "norms": 10.0, "outputs": 10.0, "split": 2.0}
# What a run can record beside the rest, for claims about single equations.

# Settings of these groups decide the trained weights; the others what is recorded of them.
_TRAINING = ("data", "network", "training")

_SIZES = re.compile("[1-9][0-9]{0,8}(-[1-9][0-9]{0,8})+")

# What others call our keys, where the spelling alone would not lead there.
_ALIASES = {
    "alpha": "learning_rate",
    "architecture": "network",
    "bs": "batch_size",
    "dataset": "data",
    "epochs": "max_epochs",
    "eta": "learning_rate",
    "l2": "decay",
    "lr": "learning_rate",
    "beta": "decay",
    "model": "network",
    "noise": "label_noise",
    "opt": "optimizer",
    "rho": "radius",
    "lr_schedule": "schedule",
    "scheduler": "schedule",
    "ema_decay": "average_decay",
    "swa": "average",
    "ema": "average",
    "swa_start": "average_from",
    "scale": "init_scale",
    "step_size": "learning_rate",
    "threshold": "stop_loss",
    "tolerance": "stop_loss",
    "weight_decay": "decay",
}


@dataclass(frozen=True)
class Values:
    """The values that a key takes: in words, as a test, and their names if they have some."""

    words: str = ""
    fit: Callable[[Any], bool] = lambda value: True
    names: tuple[str, ...] = ()


def _one_of(*names: str, other: str = "", form: Callable[[str], bool] = lambda v: False) -> Values:
    words = f"one of {', '.join(names)}" + (f", or {other}" if other else "")
    return Values(words, lambda value: value in names or form(value), names)


def _importable(value: str) -> bool:
    """Whether it has the form ``pkg.module:name``."""
    parts = value.split(":")
    return len(parts) == 2 and all(word.isidentifier() for p in parts for word in p.split("."))


_ANY = Values()
_POSITIVE = Values("above 0", lambda value: value > 0)
_FROM_0 = Values("from 0 up", lambda value: value >= 0)
_FROM_1 = Values("from 1 up", lambda value: value >= 1)
_FRACTION = Values("from 0 to 1", lambda value: 0 <= value <= 1)
_BELOW_1 = Values("from 0 to below 1", lambda value: 0 <= value < 1)
_DATA = _one_of(
    *("mnist5k", "mnist", "mnist_demo", "mnist5k_demo"),
    *("fashion_mnist", "cifar10", "digits", "xor"),
    other="pkg.module:factory that returns (train, test)",
    form=_importable,
)
_NETWORK = Values(
    'the sizes of an MLP such as "784-30-30-10", or lenet, or cnn, or pkg.module:factory',
    lambda v: v in ("lenet", "cnn") or bool(_SIZES.fullmatch(v)) or _importable(v),
    ("lenet", "cnn"),
)
_LOSS = _one_of(
    *("cross_entropy", "mse", "normalized_cross_entropy"),
    other="pkg.module:function",
    form=_importable,
)
_FUNCTIONS = Values("as pkg.module:name", lambda names: all(":" in name for name in names))
_RESCALINGS = Values(f"of {', '.join(FACTORS)}", lambda names: set(names) <= FACTORS.keys())
_WITH_RADIUS = ("sam", "asam", "sam_on", "friendly_sam", "look_sam", "functional_sam")
_OPTIMIZER = _one_of(
    *("sgd", "adam", "rmsprop", *_WITH_RADIUS, "entropy_sgd", "replicated_sgd", "ivon"),
    other="pkg.module:factory that takes (model, settings)",
    form=_importable,
)


def _about(group: str, meaning: str, values: Values = _ANY) -> dict[str, Any]:
    return {"group": group, "meaning": meaning, "values": values}


@dataclass(frozen=True)
class Configuration:
    """What is trained on what and how, and what is recorded of it. Checked when it is made."""

    data: str = field(default="mnist5k", metadata=_about("data", "data set", _DATA))
    per_class: int | None = field(
        default=None, metadata=_about("data", "training samples of every class", _FROM_1)
    )
    test_per_class: int | None = field(
        default=None, metadata=_about("data", "test samples of every class", _FROM_1)
    )
    label_noise: float = field(
        default=0.0, metadata=_about("data", "share of training labels drawn at random", _FRACTION)
    )
    noise_kind: str = field(
        default="replaced",
        metadata=_about(
            "data",
            "replaced: label_noise of the labels are random; added: so large a share of all are "
            "samples beside the others, with wrong labels, which are only trained on",
            _one_of("replaced", "added"),
        ),
    )
    data_seed: int = field(
        default=0, metadata=_about("data", "of the choice of samples and noisy labels", _FROM_0)
    )
    network: str = field(default="784-30-30-10", metadata=_about("network", "network", _NETWORK))
    bias: bool = field(default=False, metadata=_about("network", "layers have biases"))
    init_scale: float = field(
        default=1.0, metadata=_about("network", "factor of the initial weights", _POSITIVE)
    )
    init: str = field(
        default="xavier",
        metadata=_about(
            "network",
            "initial weights: xavier, uniform; torch, PyTorch's default",
            _one_of("xavier", "torch"),
        ),
    )
    dropout: float = field(
        default=0.0, metadata=_about("network", "share of hidden units left out", _BELOW_1)
    )
    dropout_layers: str = field(
        default="hidden",
        metadata=_about(
            "network",
            "where units are left out: in all hidden layers, or the first",
            _one_of("hidden", "first"),
        ),
    )
    loss: str = field(default="cross_entropy", metadata=_about("training", "loss", _LOSS))
    optimizer: str = field(default="sgd", metadata=_about("training", "optimiser", _OPTIMIZER))
    learning_rate: float = field(
        default=0.1, metadata=_about("training", "learning rate", _POSITIVE)
    )
    schedule: str = field(
        default="constant",
        metadata=_about(
            "training",
            "how the learning rate changes from step to step",
            _one_of("constant", "cosine", "cyclical", "warm_restarts"),
        ),
    )
    cycle: int = field(
        default=10,
        metadata=_about("training", "epochs of a cycle, if the schedule has cycles", _FROM_1),
    )
    rate_floor: float = field(
        default=0.0,
        metadata=_about(
            "training", "share of the learning rate that a schedule goes down to", _FRACTION
        ),
    )
    momentum: float = field(
        default=0.0, metadata=_about("training", "momentum, not with adam or ivon", _BELOW_1)
    )
    batch_size: int = field(default=25, metadata=_about("training", "samples in a batch", _FROM_1))
    radius: float | None = field(
        default=None,
        metadata=_about("training", "of the ball of sam and its kin; none: their own", _POSITIVE),
    )
    decay: float = field(
        default=0.0, metadata=_about("training", "weight of the penalty in the loss", _FROM_0)
    )
    penalty: str = field(
        default="squared",
        metadata=_about(
            "training",
            "squared: the sum of squared weights; norm: the sum of the norms of layers; "
            "global_norm: the norm of all weights",
            _one_of("squared", "norm", "global_norm"),
        ),
    )
    decay_epochs: int | None = field(
        default=200, metadata=_about("training", "epochs with the penalty; none: all", _FROM_1)
    )
    average: str | None = field(
        default=None,
        metadata=_about(
            "training",
            "mean of the weights: plain over epochs, or exponential over steps",
            _one_of("swa", "ema"),
        ),
    )
    average_from: int | None = field(
        default=None,
        metadata=_about(
            "training",
            "first epoch in the mean; none: three quarters of max_epochs for swa, 1 for ema",
            _FROM_1,
        ),
    )
    average_decay: float = field(
        default=0.999, metadata=_about("training", "memory of the exponential mean", _BELOW_1)
    )
    stop_loss: float = field(
        default=5e-4, metadata=_about("training", "training loss at which to stop", _POSITIVE)
    )
    stop_accuracy: float = field(
        default=0.0,
        metadata=_about(
            "training", "accuracy, as a mean of nine epochs, to reach before that", _BELOW_1
        ),
    )
    max_epochs: int = field(
        default=1000, metadata=_about("training", "epochs after which to stop", _FROM_1)
    )
    seed: int = field(
        default=0,
        metadata=_about("training", "of initial weights, order of data and dropout", _FROM_0),
    )
    layers: tuple[str, ...] = field(
        default=(), metadata=_about("analysis", "layers to decompose; empty: the default layer")
    )
    n_sharp: int = field(
        default=10, metadata=_about("analysis", "directions that count as sharp", _FROM_1)
    )
    basis: str = field(
        default="hessian",
        metadata=_about(
            "analysis",
            "matrix whose eigenvectors are the directions",
            _one_of("hessian", "ggn", "fisher"),
        ),
    )
    dual: str = field(
        default="activity",
        metadata=_about(
            "analysis",
            "what dual weights reproduce: what the layer puts out, or what the network does",
            _one_of("activity", "output"),
        ),
    )
    widths: int = field(
        default=0,
        metadata=_about("analysis", "directions whose widths F_n are computed", _FROM_0),
    )
    measures: tuple[str, ...] = field(
        default=(),
        metadata=_about(
            "analysis",
            "measures to compute besides the outcome; default: all that need no training",
        ),
    )
    rescalings: tuple[str, ...] = field(
        default=(),
        metadata=_about(
            "sweep",
            "rescalings of the weights, without a change of the function, after which the measures "
            "are computed again, in double precision; in sweeps only",
            _RESCALINGS,
        ),
    )
    details: tuple[str, ...] = field(
        default=(),
        metadata=_about(
            "sweep",
            "your functions that are given the record of a run and return it with more numbers; in "
            "sweeps only",
            _FUNCTIONS,
        ),
    )

    def __post_init__(self) -> None:
        for name, setting in SETTINGS.items():
            object.__setattr__(self, name, setting.check(getattr(self, name)))
        if self.rescalings and not self.measures:
            raise InputError(
                "rescalings are named, but no measures to take again; name some in measures"
            )
        if self.radius is not None and not (
            self.optimizer in _WITH_RADIUS or ":" in self.optimizer
        ):
            raise InputError(
                f"radius is {self.radius}, but only {', '.join(_WITH_RADIUS)} have one and "
                f"optimizer is {self.optimizer!r}; leave radius out"
            )
        if self.momentum and self.optimizer in ("adam", "ivon"):
            raise InputError(
                f"momentum is {self.momentum}, but {self.optimizer} has its own; leave momentum out"
            )
        if self.average is not None and self.optimizer == "replicated_sgd":
            raise InputError(
                f"average is {self.average!r}, but replicated_sgd is an average already; leave "
                "average out"
            )

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Self:
        """The configuration with these settings, and defaults for the others."""
        for name in settings:
            check_key(name)
        return cls(**settings)

    @property
    def sizes(self) -> tuple[int, ...] | None:
        """The layer sizes if the network is an MLP given by them."""
        if not _SIZES.fullmatch(self.network):
            return None
        return tuple(int(size) for size in self.network.split("-"))

    def to_dict(self) -> dict[str, Any]:
        """Every setting, ready for JSON; equal configurations give equal dictionaries."""
        values = {name: getattr(self, name) for name in SETTINGS}
        return {k: list(v) if isinstance(v, tuple) else v for k, v in values.items()}

    def training(self) -> dict[str, Any]:
        """The settings that decide the trained weights."""
        return {k: v for k, v in self.to_dict().items() if SETTINGS[k].group in _TRAINING}


@dataclass(frozen=True)
class Setting:
    """A key of a configuration: its type, its default, its meaning and the values it takes."""

    name: str
    type: Any
    default: Any
    group: str  # data, network, training, analysis or sweep
    meaning: str
    values: Values

    @property
    def optional(self) -> bool:
        """Whether it may be None, which a TOML file calls "none"."""
        return NoneType in get_args(self.type)

    @property
    def kind(self) -> type:
        """Bool, int, float, str, or tuple for a list of names."""
        return get_args(self.type)[0] if self.optional else get_origin(self.type) or self.type

    @property
    def expected(self) -> str:
        """The values it takes, in words."""
        words = " ".join(filter(None, (_KINDS[self.kind][0], self.values.words)))
        return words + (' or "none"' if self.optional else "")

    def check(self, value: Any) -> Any:
        """The value in its one form, such as 1.0 for 1; an error if the key cannot have it."""
        if value is self.default:
            return value
        if self.optional and (value is None or value == "none"):
            return None
        try:
            kept = _KINDS[self.kind][1](value)
            if self.values.fit(kept):
                return kept
            came = _shown(value)
        except TypeError:
            came = _shown(value)
        except OverflowError:
            came = "a number beyond 64 bits"
        hint = _hint(value, self.values.names) if isinstance(value, str) else ""
        raise InputError(f"{self.name} must be {self.expected}; got {came}{hint}")


def check_key(name: str) -> None:
    """Raise unless there is such a key, with the name that was probably meant."""
    if name not in SETTINGS:
        hint = _hint(name, SETTINGS, _ALIASES) or f"; the keys are {', '.join(SETTINGS)}"
        raise InputError(f"there is no key {_shown(name)}{hint}")


def _hint(word: str, names: Iterable[str], aliases: Mapping[str, str] | None = None) -> str:
    hint = suggestion(word, names, aliases)
    return hint and f"; {hint}"


def _shown(value: Any) -> str:
    try:
        text = repr(value)
    except ValueError:  # Python refuses to print numbers of thousands of digits
        return f"a {type(value).__name__} too long to show"
    return text if len(text) <= 80 else f"{text[:77]}..."


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError
    return value


def _whole(value: Any) -> int:
    # A bool is an int to Python, and 25.0 is more often a slip than a batch size.
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError
    number = int(value)
    if number.bit_length() > 63:
        raise OverflowError
    return number


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError
    number = float(value) + 0.0  # -0.0 becomes 0.0
    if not math.isfinite(number):
        raise TypeError
    return number


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    return str(value)


def _names(value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        value = (value,)
    if not isinstance(value, list | tuple):
        raise TypeError
    if not all(isinstance(v, str) and v for v in value) or len(set(value)) < len(value):
        raise TypeError
    return tuple(value)


_KINDS: dict[type, tuple[str, Callable[[Any], Any]]] = {
    bool: ("true or false", _flag),
    int: ("a whole number", _whole),
    float: ("a number", _number),
    str: ("", _text),
    tuple: ("a list of different names", _names),
}

SETTINGS = {f.name: Setting(f.name, f.type, f.default, **f.metadata) for f in fields(Configuration)}
