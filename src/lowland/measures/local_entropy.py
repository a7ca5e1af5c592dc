"""The local entropy: how much low loss there is around the weights."""

import math
import statistics

import numpy as np
import torch
from torch import Tensor

from lowland.budget import Work
from lowland.measures.registry import Value, register
from lowland.measures.shared.diagonals import gauss_newton_diagonal
from lowland.measures.shared.neighbourhood import Neighbourhood, Noise, neighbourhood
from lowland.problem import Problem

GAMMA = 100.0  # neighbours within 0.1 of each weight
_NODES = 8  # couplings
_BATCHES, _EACH = 8, 16  # steps that are averaged at each coupling
_BURN = 32  # steps before them, in which the step size adapts
_ACCEPTED = 0.57  # the best rate of the Langevin algorithm (Roberts & Rosenthal 1998)


@register(
    title="Local entropy",
    family="volume",
    formula="F = 1/N log E[exp(-N L(w + v))], v ~ N(0, I / gamma), gamma = 100",
    definition="The logarithm of the likelihood of the training data, per sample, averaged over a "
    "Gaussian neighbourhood of the weights; a constant loss L gives -L.",
    citation="Chaudhari et al., ICLR 2017",
    sharper="lower",
    cost=Work(
        gradients=_NODES * (_BURN + _BATCHES * _EACH),
        needs=(neighbourhood, gauss_newton_diagonal),
    ),
    trains=True,
)
def local_entropy(problem: Problem) -> Value:
    """By thermodynamic integration, from Langevin dynamics with Metropolis' correction.

    The paper weighs neighbours by exp(-L); here the energy is the loss summed over the N samples,
    so that the exponential is their likelihood. With h = N times the Gauss-Newton diagonal (or any
    other h >= 0) and the Gaussian q of precision gamma + h, whose normaliser is known,

        N F = -1/2 sum_i log(1 + h_i / gamma) - int_0^1 <Phi>_t dt,  Phi = N L - 1/2 sum_i h_i v_i^2

    where <.>_t averages over the density q exp(-t Phi). The standard error is that of the averages.
    """
    near = neighbourhood(problem)
    N = problem.count()
    diagonal = gauss_newton_diagonal(problem)
    h = torch.cat(
        [
            N * diagonal[name].flatten().clamp_min(0)
            if name in diagonal
            else near.w.new_zeros(p.numel())
            for name, p in problem.params.items()
        ]
    )
    entropy = -0.5 * float((h / GAMMA).log1p().sum())
    variance = 0.0
    nodes, weights = np.polynomial.legendre.leggauss(_NODES)
    with problem.measuring():
        chain = _Chain(near, h, N)
        # <Phi>_t falls fast at first: t = s^3 sets the couplings densely there.
        for s, weight in zip((nodes + 1) / 2, weights / 2, strict=True):
            means = chain.means(s**3)
            entropy -= 3 * s**2 * weight * statistics.fmean(means)
            variance += (3 * s**2 * weight * _error(means)) ** 2
    method = f"thermodynamic integration, {chain.gradients} gradients"
    parts = {"without_loss": float(entropy / N + near.origin[0])}
    return Value(float(entropy / N), method, math.sqrt(variance) / N, parts)


def _error(means: list[float]) -> float:
    """The standard error of a chain's mean: from batches, pairs of them, and so on to halves.

    What a chain forgets slowly shows in the longer ones; the largest of these errors counts.
    """
    errors = []
    while len(means) > 1:
        errors.append(statistics.stdev(means) / math.sqrt(len(means)))
        means = [statistics.fmean(pair) for pair in zip(means[::2], means[1::2], strict=True)]
    return max(errors)


class _Chain:
    """Samples v of q exp(-t Phi) by the preconditioned Crank-Nicolson Langevin algorithm.

    Its proposals leave the Gaussian q as it is, whatever the dimension (Cotter et al., Statistical
    Science 2013, Sec. 4.3).
    """

    def __init__(self, near: Neighbourhood, h: Tensor, N: int) -> None:
        self._near, self._h, self._N = near, h, N
        self._C = 1 / (GAMMA + h)
        self._noise, self._uniform = Noise(near, near.w), np.random.default_rng(0)
        self.gradients = 0
        self._step = 1.0  # of at most 2, where the proposal forgets the state
        self._v = self._C.sqrt() * self._noise.draw()
        self._Phi, self._slope = self._potential(self._v)

    def means(self, t: float) -> list[float]:
        """Means of Phi over successive batches of steps at coupling t."""
        for k in range(_BURN):
            excess = self._advance(t) - _ACCEPTED
            self._step = min(self._step * math.exp(excess / math.sqrt(1 + k / 4)), 2.0)
        batches = []
        for _ in range(_BATCHES):
            values = []
            for _ in range(_EACH):
                self._advance(t)
                values.append(self._Phi)
            batches.append(statistics.fmean(values))
        return batches

    def _advance(self, t: float) -> float:
        """One step; the probability with which it was accepted."""
        k, v = self._step, self._v
        drift = 2 * k * t * self._C * self._slope
        noise = math.sqrt(8 * k) * self._C.sqrt() * self._noise.draw()
        proposal = ((2 - k) * v - drift + noise) / (2 + k)
        Phi, slope = self._potential(proposal)
        there = self._rho(t, v, proposal, self._Phi, self._slope)
        back = self._rho(t, proposal, v, Phi, slope)
        probability = math.exp(min(there - back, 0)) if math.isfinite(back) else 0.0
        if self._uniform.random() < probability:
            self._v, self._Phi, self._slope = proposal, Phi, slope
        return probability

    def _rho(self, t: float, u: Tensor, v: Tensor, Phi: float, slope: Tensor) -> float:
        """The part of -log of (density at u) x (proposal of v from u) that is not symmetric."""
        k, D = self._step, t * slope
        line = (v - u) / 2 + k / 4 * (u + v) + k / 4 * self._C * D
        return t * Phi + float(line @ D)

    def _potential(self, v: Tensor) -> tuple[float, Tensor]:
        self.gradients += 1
        loss, slope = self._near.gradient(v)
        return self._N * loss - 0.5 * float(self._h @ v.square()), self._N * slope - self._h * v
