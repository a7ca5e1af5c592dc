"""Sharpness-aware minimisation on parities of two bits, with and without biases (Wen et al.)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

_TEST = 2000  # fresh points that give the test error
_LOOKS = 25  # times that a training is looked at

Points = tuple[np.ndarray, np.ndarray]


@dataclass
class TwoLayers:
    """``f(x) = a . relu(W x + b)``, where b stays 0 unless there are ``biases``."""

    W: np.ndarray  # (units, bits)
    a: np.ndarray  # (units,)
    b: np.ndarray  # (units,)
    biases: bool

    @classmethod
    def drawn(cls, units: int, bits: int, biases: bool, random: np.random.Generator) -> "TwoLayers":
        """Normal weights, of variance 1 over the number of inputs of each layer."""
        W = random.normal(size=(units, bits)) / np.sqrt(bits)
        return cls(W, random.normal(size=units) / np.sqrt(units), np.zeros(units), biases)

    @classmethod
    def memorising(cls, points: Points) -> "TwoLayers":
        """A unit for each point, which is active there only: as flat as any, and of no use else.

        Its input at the point is the fourth root of d + 1: both layers share the sharpness.
        """
        X, y = points
        bits = X.shape[1]
        active = (bits + 1) ** 0.25
        scale = active / 2  # of x_i x - (d - 2), which is 2 at x_i, and 0 or less elsewhere
        return cls(scale * X, y / active, np.full(len(X), -scale * (bits - 2)), True)

    @classmethod
    def solving(cls, bits: int) -> "TwoLayers":
        """Four units along x_0 + x_1 and x_0 - x_1 that compute the parity of all points."""
        active = bits**0.25
        signs = np.array([[1, 1], [-1, -1], [1, -1], [-1, 1]])
        W = np.zeros((4, bits))
        W[:, :2] = signs * active / 2
        return cls(W, np.array([1, 1, -1, -1]) / active, np.zeros(4), False)

    def outputs(self, X: np.ndarray) -> np.ndarray:
        """The value at every point."""
        return np.maximum(X @ self.W.T + self.b, 0) @ self.a

    def sharpness(self, X: np.ndarray) -> float:
        """The trace of the Hessian of the mean squared error, whatever the targets.

        The output is linear in each layer's weights, so the diagonal has no second derivatives:
        Tr H = 2 / n sum_i |grad f(x_i)|^2.
        """
        Z = np.maximum(X @ self.W.T + self.b, 0)
        inputs = X.shape[1] + self.biases
        squares = (Z**2).sum() + inputs * ((Z > 0) * self.a**2).sum()
        return float(2 * squares / len(X))

    def step(self, x: np.ndarray, y: float, rate: float, radius: float) -> None:
        """One step of SAM on the squared error of a point; with radius 0 of plain SGD."""
        slope_a, slope_z = self._slopes(self.W @ x + self.b, self.a, y)
        inputs = x @ x + self.biases
        size = np.sqrt(slope_a @ slope_a + inputs * (slope_z @ slope_z))
        if radius and size > 0:  # to the worst point of the ball, to first order
            up = radius / size
            z = (self.W @ x + self.b) + up * inputs * slope_z
            slope_a, slope_z = self._slopes(z, self.a + up * slope_a, y)
        self.a -= rate * slope_a
        self.W -= np.outer(rate * slope_z, x)
        if self.biases:
            self.b -= rate * slope_z

    @staticmethod
    def _slopes(z: np.ndarray, a: np.ndarray, y: float) -> tuple[np.ndarray, np.ndarray]:
        """The derivatives of (a . relu(z) - y)^2 by a and by z."""
        h = np.maximum(z, 0)
        residual = 2 * (h @ a - y)
        return residual * h, residual * a * (z > 0)


def parities(count: int, bits: int, random: np.random.Generator) -> Points:
    """Random points of {-1, 1}^d with the product of their first two coordinates."""
    X = random.integers(0, 2, (count, bits)) * 2.0 - 1.0
    return X, X[:, 0] * X[:, 1]


def least_sharpness(bits: int, biases: bool) -> float:
    """What no network that fits its data is below: 4 sqrt(d), with biases 4 sqrt(d + 1).

    At a point |grad f|^2 = sum z_j^2 + d sum a_j^2 >= 2 sqrt(d) sum |a_j z_j| >= 2 sqrt(d).
    """
    return float(4 * np.sqrt(bits + biases))


def trial(settings: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """Train a network on ``samples`` parities; its sharpness, in units of the least, and errors."""
    random = np.random.default_rng(seed)
    bits, biases = settings["bits"], bool(settings["bias"])
    train = parities(settings["samples"], bits, random)
    test = parities(_TEST, bits, random)
    least = least_sharpness(bits, biases)
    network = TwoLayers.drawn(settings["units"], bits, biases, random)
    course = []
    order = random.integers(settings["samples"], size=settings["steps"])
    for part in np.array_split(order, _LOOKS):
        for i in part:
            network.step(train[0][i], train[1][i], settings["rate"], settings["radius"])
        course.append((network.sharpness(train[0]) / least, _error(network, test)))
    sharpness, errors = np.array(course).T
    memorised = TwoLayers.memorising(train)
    return {
        "sharpness": sharpness[-1],
        "test_error": errors[-1],
        "train_loss": float(np.mean((network.outputs(train[0]) - train[1]) ** 2)),
        "course/sharpness": sharpness,
        "course/test_error": errors,
        "memorised_sharpness": memorised.sharpness(train[0]) / least_sharpness(bits, True),
        "memorised_test_error": _error(memorised, test),
        "solving_sharpness": TwoLayers.solving(bits).sharpness(train[0])
        / least_sharpness(bits, False),
    }


def _error(network: TwoLayers, points: Points) -> float:
    """The share of points whose sign is wrong; an output of 0 is half wrong."""
    signs = np.sign(network.outputs(points[0])) * points[1]
    return float(np.mean((1 - signs) / 2))
