"""A network trained by one of several methods, each with the same number of gradients."""

from typing import Any

from lowland.data import load
from lowland.measures import measure
from lowland.problem import Problem
from lowland.training import TrainingSettings, mlp, train_many

SIZES = 64, 30, 10
PER_CLASS = 50
BATCH = 25
EPOCHS = 200  # of methods that take one gradient of a batch
_NEVER = 1e-12  # a training loss that is not reached
_TWO_GRADIENTS = ("sam", "asam")  # a step

_RATE, _ADAPTIVE = 0.2, 0.002
METHODS: dict[str, dict[str, Any]] = {
    "sgd": {"learning_rate": _RATE},
    "sam": {"optimizer": "sam", "learning_rate": _RATE},
    "asam": {"optimizer": "asam", "learning_rate": _RATE},
    "entropy_sgd": {"optimizer": "entropy_sgd", "learning_rate": _RATE},
    "average": {"learning_rate": _RATE, "average": "swa"},
    "adam": {"optimizer": "adam", "learning_rate": _ADAPTIVE},
    "rmsprop": {"optimizer": "rmsprop", "learning_rate": _ADAPTIVE},
    "cyclical": {"schedule": "cyclical", "learning_rate": 2 * _RATE, "cycle": EPOCHS // 4},
}
MEASURES = (
    *("train_loss", "test_error", "calibration_error"),
    *("largest_eigenvalue", "trace", "sam_sharpness", "adaptive_worst_case"),
    *("expected_sharpness", "keskar_sharpness", "fisher_trace"),
)


def settings_of(method: str, seed: int) -> TrainingSettings:
    """The settings of a method; those that take two gradients a step have half of the epochs."""
    own = METHODS[method]
    epochs = EPOCHS // 2 if own.get("optimizer") in _TWO_GRADIENTS else EPOCHS
    return TrainingSettings(batch_size=BATCH, max_epochs=epochs, stop_loss=_NEVER, seed=seed, **own)


def trial(settings: dict[str, Any], seed: int) -> dict[str, Any]:
    """Train, and measure all that is cheap."""
    data = load("digits", per_class=PER_CLASS, seed=seed)
    model = mlp(SIZES, seed=seed)
    train_many([model], data.train, [settings_of(settings["method"], seed)])
    problem = Problem(model, "cross_entropy", train=data.train, test=data.test)
    measured = measure(problem, list(MEASURES))
    return {name: measured[name].value for name in measured}
