"""A perceptron with weights of -1 and 1 learns from a teacher: how solutions are found, and where.

Baldassi et al., Phys. Rev. Lett. 115, 128101 (2015), and PNAS 113, E7655 (2016).
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from scipy.special import log_ndtr

_REPLICAS = 5
_DRAWS = 2000  # of neighbours at each distance
_DISTANCES = list(range(1, 31, 2))
_COLD = 3.0  # the inverse temperature at which annealing ends, per weight to be flipped
_ATTRACTION = 1.0  # between replicas, at the end
_REINFORCED = 7.0  # what focusing takes for the number of replicas

Random = np.random.Generator


def violations(margins: np.ndarray) -> np.ndarray:
    """Least number of weights to flip for the samples of each network, summed; 0 for a solution.

    ``margins`` (networks, samples) are odd, as the number of weights is.
    """
    return np.where(margins < 0, (1 - margins) / 2, 0.0).sum(axis=1)


def annealed(X: np.ndarray, sweeps: int, replicas: int, random: Random) -> np.ndarray | None:
    """Simulated annealing of one network, or of replicas that attract each other.

    The rows of X are samples times their labels. A replica's weights feel the sum of all at their
    place, through a centre that is summed over: log 2 cosh(gamma sum_a w_a). The solution is the
    sign of that sum; None if it was not found.
    """
    size = X.shape[1]
    W = random.choice([-1.0, 1.0], (replicas, size))
    margins = W @ X.T
    energy, every = violations(margins), np.arange(replicas)
    columns = np.ascontiguousarray(X.T)
    for step in range(sweeps * size):
        part = step / (sweeps * size)
        i = random.integers(size, size=replicas)
        own = W[every, i]
        moved = margins - 2 * own[:, None] * columns[i]
        candidate = violations(moved)
        gain = _COLD * part * (energy - candidate)
        if replicas > 1:
            whole = W[:, i].sum(axis=0)
            gamma = _ATTRACTION * part
            gain += np.logaddexp(gamma * (whole - 2 * own), -gamma * (whole - 2 * own))
            gain -= np.logaddexp(gamma * whole, -gamma * whole)
        taken = np.log(random.uniform(size=replicas)) < gain
        W[every[taken], i[taken]] *= -1
        margins[taken], energy[taken] = moved[taken], candidate[taken]
        if step % size == 0 or not energy.any():
            centre = np.sign(W.sum(axis=0))
            if not violations((centre @ X.T)[None]).any():
                return centre
    return None


def focused(X: np.ndarray, sweeps: int, random: Random) -> np.ndarray | None:
    """Focusing belief propagation, in the form of message passing for dense samples.

    Beside what samples say (h), a weight feels a centre that attracts y replicas of it:
    atanh(tanh(gamma) tanh((y - 1) atanh(tanh(gamma) tanh(h)))), with gamma growing.
    """
    samples, size = X.shape
    F = X / np.sqrt(size)
    m = random.normal(0.0, 0.01, (size,))
    g, h = np.zeros(samples), np.zeros(size)
    for step in range(sweeps):
        V = max(1 - float(m @ m) / size, 1e-6)
        omega = F @ m - V * g
        u = omega / np.sqrt(V)
        g = np.exp(-(u**2) / 2 - log_ndtr(u)) / np.sqrt(2 * np.pi * V)
        h = 0.5 * h + 0.5 * (F.T @ g + (g**2 + g * omega / V).mean() * samples / size * m)
        centre = np.where(h < 0, -1.0, 1.0)
        if not violations((centre @ X.T)[None]).any():
            return centre
        gamma = np.tanh(3 * (step + 1) / sweeps)
        inner = np.clip(gamma * np.tanh(h), -1 + 1e-12, 1 - 1e-12)
        outer = np.tanh((_REINFORCED - 1) * np.arctanh(inner))
        m = np.tanh(h + np.arctanh(np.clip(gamma * outer, -1 + 1e-12, 1 - 1e-12)))
    return None


_METHODS: dict[str, Callable[[np.ndarray, int, Random], np.ndarray | None]] = {
    "annealing": lambda X, sweeps, random: annealed(X, sweeps, 1, random),
    "replicated": lambda X, sweeps, random: annealed(X, sweeps, _REPLICAS, random),
    "focusing": focused,
}


def share_of_solutions(X: np.ndarray, w: np.ndarray, distance: int, random: Random) -> float:
    """The share of solutions among networks that differ from w in so many weights."""
    count = len(w) if distance == 1 else _DRAWS
    places = np.argsort(random.uniform(size=(count, len(w))), axis=1)[:, :distance]
    if distance == 1:  # all of them
        places = np.arange(len(w))[:, None]
    neighbours = np.tile(w, (count, 1))
    np.put_along_axis(neighbours, places, -np.take_along_axis(neighbours, places, 1), 1)
    return float((violations(neighbours @ X.T) == 0).mean())


def trial(settings: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """A solution by ``method``, its error on fresh samples, and the solutions around it.

    ``teacher`` is the network that gave the labels: a solution as typical as any. The error is that
    of normal inputs, the angle to the teacher over pi, which many inputs of -1 and 1 come close to.
    """
    size = settings["weights"]
    random = np.random.default_rng(seed)  # the same samples for every method
    inputs = random.choice([-1.0, 1.0], (round(settings["load"] * size), size))
    teacher = random.choice([-1.0, 1.0], size)
    X = inputs * np.sign(inputs @ teacher)[:, None]
    method = settings["method"]
    w = teacher if method == "teacher" else _METHODS[method](X, settings["sweeps"], random)
    if w is None:
        return {"converged": False}
    shares = np.array([share_of_solutions(X, w, d, random) for d in _DISTANCES])
    overlap = float(w @ teacher) / size
    return {
        "converged": True,
        "test_error": float(np.arccos(np.clip(overlap, -1, 1)) / np.pi),
        "one_flip": float(shares[0]),
        "five_flips": float(shares[_DISTANCES.index(5)]),
        "smallest_margin": float((X @ w).min()),
        "around/distance": np.array(_DISTANCES) / size,
        "around/solutions": shares,
    }
