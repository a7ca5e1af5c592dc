"""Algorithm 1 of Tsuzuku et al.: the diagonal by sampling, the variances by gradient descent."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor
from workloads import Workload

from lowland.measures.shared.balancing import balance
from lowland.problem import Problem

_WITHIN = 1e-4  # of the optimum
_CHECK, _MOST = 20, 50_000  # how often to look, and when to give up


@dataclass(frozen=True)
class Sharpness:
    """The value, and the clipped diagonal and squared weights of each matrix it is made of."""

    value: float
    matrices: list[tuple[Tensor, Tensor]]


def sharpness(samples: int) -> Callable[[Workload], Callable[[], Sharpness]]:
    def prepare(w: Workload) -> Callable[[], Sharpness]:
        p = w.problem().with_loss("normalized_cross_entropy")

        def run() -> Sharpness:
            h = sampled_diagonal(p, samples)
            known = [
                (h[name].clamp_min(0).float(), m.detach().square()) for name, m in w.weights.items()
            ]
            return Sharpness(sum(_descended(a, b) for a, b in known), known)

        return run

    return prepare


def sampled_diagonal(problem: Problem, samples: int, r: float = 1e-3) -> dict[str, Tensor]:
    """The paper's estimate of the diagonal from differences of gradients (Eq. 61), unclipped.

    ``r`` is relative to the root mean square of each parameter, as in Appendix C.
    """
    params = problem.params
    generator = torch.Generator(device=problem.device).manual_seed(0)
    step = {n: r * (float(p.double().square().mean().sqrt()) or 1.0) for n, p in params.items()}
    sums = {n: torch.zeros_like(p, dtype=torch.float64) for n, p in params.items()}

    with problem.measuring():
        for _ in range(samples):
            e = {
                n: torch.randn(p.shape, generator=generator, device=p.device, dtype=p.dtype)
                for n, p in params.items()
            }
            _, up = problem.gradient({n: p + step[n] * e[n] for n, p in params.items()})
            _, down = problem.gradient({n: p - step[n] * e[n] for n, p in params.items()})
            for n in params:
                sums[n] += e[n] * (up[n] - down[n]) / (2 * step[n])
    return {n: s / samples for n, s in sums.items()}


def _descended(h: Tensor, w2: Tensor) -> float:
    """Gradient descent on the logarithms of the variances, from ones, with the best safe rate.

    Our solver says what the optimum is, hence when to stop and how steep it is there; that takes a
    few milliseconds of its time.
    """
    best = balance(h, w2)
    ends = (torch.zeros(len(h)), torch.zeros(h.shape[1])), (best.u.log(), best.v.log())
    rate = 1 / max(_steepness(h, w2, x.float(), y.float()) for x, y in ends)
    x = torch.zeros(h.shape[0], 1, requires_grad=True)
    y = torch.zeros(1, h.shape[1], requires_grad=True)
    optimiser = torch.optim.SGD([x, y], lr=rate)
    for step in range(_MOST):
        optimiser.zero_grad()
        variance = (x + y).exp()
        value = (h * variance + w2 / variance).sum()
        if step % _CHECK == 0 and value.item() <= (1 + _WITHIN) * best.value:
            break
        value.backward()
        optimiser.step()
    return value.item()


def _steepness(h: Tensor, w2: Tensor, x: Tensor, y: Tensor) -> float:
    """The largest eigenvalue of the objective's Hessian, by the power method."""
    s = (x[:, None] + y).exp()
    g = h * s + w2 / s
    a, b = torch.ones(len(h)), torch.ones(h.shape[1])
    for _ in range(50):
        a, b = g.sum(1) * a + g @ b, g.sum(0) * b + g.T @ a
        norm = torch.cat([a, b]).norm()
        a, b = a / norm, b / norm
    return float(norm)


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
