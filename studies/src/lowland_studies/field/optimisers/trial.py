"""A network trained by one of several methods, each with the same number of gradients."""

from typing import Any

from lowland.experiment import Configuration
from lowland.experiment.subject import Subject
from lowland.measures import measure
from lowland.training import TrainingSettings, train_many

# What a trial has where its settings do not say otherwise.
PLACE: dict[str, Any] = {
    "data": "digits",
    "network": "64-30-10",
    "per_class": 50,
    "batch_size": 25,
    "epochs": 200,  # of methods that take one gradient of a batch
    "measures": "default",  # or "cheap", where a gradient of all data takes minutes
}
_CHEAP = (
    *("train_loss", "test_error", "calibration_error"),
    *("largest_eigenvalue", "trace", "sam_sharpness", "adaptive_worst_case"),
    *("expected_sharpness", "keskar_sharpness", "fisher_trace"),
)
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
    "cyclical": {"schedule": "cyclical", "learning_rate": 2 * _RATE},
}


def settings_of(method: str, seed: int, batch_size: int, epochs: int) -> TrainingSettings:
    """The settings of a method; those that take two gradients a step have half of the epochs."""
    own = METHODS[method]
    if own.get("schedule") == "cyclical":
        own = {**own, "cycle": max(1, epochs // 4)}
    halved = own.get("optimizer") in _TWO_GRADIENTS
    return TrainingSettings(
        batch_size=batch_size,
        max_epochs=epochs // 2 if halved else epochs,
        stop_loss=_NEVER,
        seed=seed,
        **own,
    )


def trial(settings: dict[str, Any], seed: int) -> dict[str, Any]:
    """Train by a ``method``, and measure; what settings do not say is in ``PLACE``."""
    chosen = {**PLACE, **settings}
    method, batch_size, epochs = (chosen.pop(key) for key in ("method", "batch_size", "epochs"))
    names = list(_CHEAP) if chosen.pop("measures") == "cheap" else "default"
    subject = Subject.of(Configuration(**chosen, batch_size=batch_size, seed=seed, data_seed=seed))
    how = settings_of(method, seed, batch_size, epochs)
    train_many([subject.model], subject.train, [how])
    measured = measure(subject.problem(), names).whole()
    return {name: measured[name].value for name in measured}
