"""Algorithm 1 of Tsuzuku et al.: the diagonal by sampling, the variances by gradient descent."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor
from workloads import Workload

from lowland.measures.noise_variances import sampled_diagonal

_WITHIN = 1e-4  # of the optimum
_RATE, _CHECK, _MOST = 0.1, 20, 20_000


@dataclass(frozen=True)
class Sharpness:
    """The value, and the clipped diagonal and squared weights of each matrix it is made of."""

    value: float
    matrices: list[tuple[Tensor, Tensor]]


def sharpness(samples: int) -> Callable[[Workload], Callable[[], Sharpness]]:
    def prepare(w: Workload) -> Callable[[], Sharpness]:
        p = w.problem().with_loss("normalized_cross_entropy")
        goals: list[float] = []  # what the descent has to reach; known beforehand, not timed

        def matrices() -> list[tuple[Tensor, Tensor]]:
            h = sampled_diagonal(p, samples)
            return [
                (h[name].clamp_min(0).float(), m.detach().square()) for name, m in w.weights.items()
            ]

        goals.extend(optimum(h, w2) for h, w2 in matrices())

        def run() -> Sharpness:
            known = matrices()
            values = [_descended(h, w2, goal) for (h, w2), goal in zip(known, goals, strict=True)]
            return Sharpness(sum(values), known)

        return run

    return prepare


def _descended(h: Tensor, w2: Tensor, goal: float) -> float:
    """Gradient descent on the logarithms of the variances, from ones."""
    x = torch.zeros(h.shape[0], 1, requires_grad=True)
    y = torch.zeros(1, h.shape[1], requires_grad=True)
    optimiser = torch.optim.Adam([x, y], lr=_RATE)
    for step in range(_MOST):
        optimiser.zero_grad()
        variance = (x + y).exp()
        value = (h * variance + w2 / variance).sum()
        if step % _CHECK == 0 and value.item() <= (1 + _WITHIN) * goal:
            break
        value.backward()
        optimiser.step()
    return value.item()


def optimum(h: Tensor, w2: Tensor) -> float:
    """The same by quasi-Newton steps in float64 to convergence."""
    a, b = h.double().numpy(), w2.double().numpy()
    n = len(a)

    def value_and_slope(at: np.ndarray) -> tuple[float, np.ndarray]:
        s = np.exp(at[:n, None] + at[n:])
        up, down = a * s, b / s
        slope = up - down
        return (up + down).sum(), np.concatenate([slope.sum(1), slope.sum(0)])

    options = {"maxiter": 5000, "maxfun": 5000, "ftol": 1e-13, "gtol": 1e-12}
    start = np.zeros(sum(a.shape))
    return float(minimize(value_and_slope, start, jac=True, method="L-BFGS-B", options=options).fun)
