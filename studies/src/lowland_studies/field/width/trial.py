"""Expected sharpness against KL divergence, of a network with one hidden layer on MNIST.

In the PAC-Bayes bound with prior N(0, s^2 I) and posterior N(w, s^2 I), noise of size s adds
the expected sharpness ``E[L(w + s z)] - L(w)`` to the loss and costs ``|w|^2 / (2 s^2)`` in KL
(Neyshabur et al., NeurIPS 2017). Every s is a point of a curve.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from lowland.experiment import Configuration
from lowland.experiment.subject import Subject
from lowland.measures import measure
from lowland.problem import Problem
from lowland.training import train_many

SHARPNESS = 0.1  # at which networks are compared by their KL
MEASURES = ("path_norm", "frobenius_norms", "spectral_norms", "margin", "keskar_sharpness", "trace")

_SIZES = np.geomspace(0.01, 0.2, 10)  # of the noise, along the curve
_DRAWS = 5
_HALVINGS = 16  # to a five-thousandth of the size


def trial(settings: dict[str, Any], seed: int) -> dict[str, Any]:
    """Train a network of ``width`` hidden units to a loss of 0.01, and measure it.

    ``data`` are images of 28 x 28 pixels, by default ``mnist5k``.
    """
    names = ("data", "per_class", "label_noise", "max_epochs")
    own = {name: settings[name] for name in names if name in settings}
    configuration = Configuration(
        network=f"784-{settings['width']}-10", stop_loss=0.01, seed=seed, data_seed=seed, **own
    )
    subject = Subject.of(configuration)
    (training,) = train_many([subject.model], subject.train, [subject.settings])
    problem = subject.problem()
    rows = measure(problem, ["train_error", "test_error", "weight_norm", *MEASURES]).whole()
    rise = expected_sharpness(problem, seed)
    squared_norm = sum(float(w.double().square().sum()) for w in problem.params.values())
    return {
        **{name: row.value for name, row in rows.items()},
        "converged": training.converged,
        "samples": problem.count(),
        "kl": squared_norm / (2 * size_of(rise, SHARPNESS) ** 2),
        "curve/kl": squared_norm / (2 * _SIZES**2),
        "curve/sharpness": np.array([rise(s) for s in _SIZES]),
    }


def expected_sharpness(problem: Problem, seed: int) -> Callable[[float], float]:
    """The mean rise of the loss as a function of the noise's size, always by the same draws."""
    random = torch.Generator().manual_seed(seed)
    noises = [
        {name: torch.randn(w.shape, generator=random).to(w) for name, w in problem.params.items()}
        for _ in range(_DRAWS)
    ]
    loss = float(problem.losses().double().mean())

    def rise(size: float) -> float:
        noisy = (
            problem.at({name: w + size * z[name] for name, w in problem.params.items()})
            for z in noises
        )
        return float(np.mean([float(p.losses().double().mean()) for p in noisy])) - loss

    return rise


def size_of(rise: Callable[[float], float], sharpness: float) -> float:
    """The size of the noise at which the loss rises by so much, by halving on a logarithm."""
    low, high = math.log(1e-4), math.log(10.0)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if rise(math.exp(middle)) > sharpness else (middle, high)
    return math.exp((low + high) / 2)
