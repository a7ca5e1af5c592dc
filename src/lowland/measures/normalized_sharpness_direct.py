"""Normalized sharpness without the second-order approximation."""

import math

import torch
from torch import Tensor

from lowland.budget import Work
from lowland.distributed import gathered, total
from lowland.measures.registry import Value, register
from lowland.measures.shared.balancing import Balanced
from lowland.measures.shared.noise_variances import as_matrices, best_variances
from lowland.measures.shared.noisy_weights import averages, draws
from lowland.measures.shared.standard_error import standard_error
from lowland.problem import Problem

_FITS, _STEPS = 4, 25  # evaluations of the bound and its gradient
_PAIRS, _FRESH = 8, 50  # pairs of opposite noises to fit to, and fresh ones to measure with


@register(
    title="Normalized sharpness, direct",
    family="normalized",
    formula="min_(u,v>0) E L(W + sqrt(u_i v_j) noise) - L(W) + sum_ij W_ij^2 / (2 m u_i v_j)",
    definition="The rise of the loss under noise with variances per row and column of every weight "
    "matrix, plus the squared weights over these variances (lambda = m, the number of samples), as "
    "small as 25 steps from Eq. 17 make it; for a quadratic loss, Eq. 17's value over 2 sqrt(m).",
    citation="Tsuzuku, Sato & Sugiyama, ICML 2020, Eq. 62",
    sharper="higher",
    cost=Work(
        gradients=_FITS * _STEPS * 2 * _PAIRS,
        forwards=_FITS * (2 * _FRESH + 1),
        needs=(best_variances,),
    ),
    invariant=("layers", "units", "outputs"),
    loss="normalized_cross_entropy",
    trains=True,
)
def normalized_sharpness_direct(problem: Problem) -> Value:
    """Descend by L-BFGS in log-variances with the same noises at each step, then take fresh ones.

    Not lambda = 1/2, as for Eq. 17: the loss of Eq. 20 is bounded, and weights that cost so little
    would let the noise grow without end, until the value is the loss of noise alone. The variances
    depend on the noises they are fitted to, so the error is that of several fits, with
    what is left of the descent within two of it.
    """
    fits = torch.tensor([_fitted(problem, seed) for seed in range(_FITS)], dtype=torch.float64)
    rise, cost, left = fits.mean(0).tolist()
    spread = standard_error(fits[:, :2].sum(1))
    return Value(
        rise + cost,
        f"{_FITS} fits of {_STEPS} evaluations by L-BFGS to {_PAIRS} pairs of noises, "
        f"{_FRESH} fresh pairs",
        math.hypot(spread or 0.0, left / 2),
        {"rise": rise, "squared_weights": cost},
    )


def _fitted(problem: Problem, seed: int) -> tuple[float, float, float]:
    """Return both terms of Eq. 62 at variances fitted to some noises, measured with others.

    And what is left of the descent.
    """
    loss, m = float(gathered(problem.losses()).double().mean()), problem.count()
    with problem.measuring():
        variances = {
            name: _Variances(problem.params[name], groups, m)
            for name, groups in best_variances(problem).items()
        }
        mean = {n: problem.params[n] for n in variances}
        leaves = [t for each in variances.values() for t in (each.x, each.y)]
        optimiser = torch.optim.LBFGS(
            leaves, max_iter=_STEPS, max_eval=_STEPS, line_search_fn="strong_wolfe"
        )
        fallen = [math.inf]  # the bound at each step that made it less

        def closure() -> Tensor:
            optimiser.zero_grad()
            std = {n: each.std() for n, each in variances.items()}
            value = torch.zeros((), dtype=torch.float64, device=problem.device)
            for params in draws(mean, std, _PAIRS, seed, signs=(1, -1)):
                for batch in problem.batches():
                    losses = problem.batch_losses(batch, params)
                    # Summed up in .grad, so that no more than one batch's graph is held.
                    share = losses.sum() / (2 * _PAIRS * m)
                    share.backward(retain_graph=True)
                    value += share.detach()
            for leaf in leaves:
                assert leaf.grad is not None  # every rank has samples
                leaf.grad = total(leaf.grad)
            cost = torch.stack([each.cost() for each in variances.values()]).sum()
            cost.backward()
            value = total(value) + cost.detach()
            fallen.append(min(fallen[-1], float(value)))
            return value

        if _STEPS:
            optimiser.step(closure)
    std = {n: each.std().detach() for n, each in variances.items()}
    fresh = draws(mean, std, _FRESH, _FITS + seed, signs=(1, -1))
    noisy = averages(problem, fresh, problem.batch_losses)
    cost = sum(float(each.cost().detach()) for each in variances.values())
    return float(noisy.mean()) - loss, cost, _left(fallen[1:])


def _left(fallen: list[float]) -> float:
    """Return what is left of a descent, taken to be as much as its second half was."""
    return fallen[len(fallen) // 2] - fallen[-1] if fallen else 0.0


class _Variances:
    """The log-variances of one weight: x for rows, y for columns, group by group.

    They start at Eq. 17's solution over sqrt(m), where ``h s / 2 + W^2 / (2 m s)`` is least:
    noise of variance s raises a quadratic loss by ``h s / 2``. What costs nothing there carries no
    noise here.
    """

    def __init__(self, weight: Tensor, groups: list[Balanced], m: int) -> None:
        self.weight = weight
        shift = math.log(m) / 4
        self.x = (torch.stack([b.u for b in groups]).log() - shift).requires_grad_()
        self.y = (torch.stack([b.v for b in groups]).log() - shift).requires_grad_()
        self.kept = torch.stack([b.kept for b in groups])  # (groups, rows, columns)
        self.costs = as_matrices(weight.double().square(), len(groups)) * self.kept / (2 * m)

    def std(self) -> Tensor:
        """The standard deviation of every weight."""
        s = self.kept * ((self.x.unsqueeze(2) + self.y.unsqueeze(1)) / 2).exp()
        places = [1] * (self.weight.ndim - 2)
        return s.view(*self.weight.shape[:2], *places).expand_as(self.weight).to(self.weight)

    def cost(self) -> Tensor:
        """``sum_ij W_ij^2 / (2 m u_i v_j)``."""
        return (self.costs * (-self.x.unsqueeze(2) - self.y.unsqueeze(1)).exp()).sum()
