"""Diagonals of several curvature matrices from one pass over the data.

The Gauss-Newton matrices of all losses of the same outputs, and the empirical Fisher matrix,
differ by a small matrix between the same Jacobians: ``B_k^T A_k B_k`` with ``A_k = d2l_k/dz2``, or
``A_k = r_k r_k^T`` with ``r_k = dl_k/dz``. Jacobians are what takes time, so they are made once.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lowland.batches import Batch
from lowland.curvature.forward import ForwardPass
from lowland.curvature.layer_search import Layer, give_up, outputs_of_a_sample, parameters
from lowland.curvature.memory import samples_within
from lowland.curvature.sample_factors import (
    Factors,
    factor_bytes,
    factors,
    losses_in_double,
    output_curvature,
    rows_with_curvature,
    through_outputs,
)
from lowland.curvature.sketch import finite
from lowland.distributed import total
from lowland.problem import Problem, differentiating

# Outputs of a sample up to which a backward pass is made for each of them.
MOST_OUTPUTS = 128


@dataclass(frozen=True)
class JointDiagonals:
    """Exact diagonals of the parameters that can be seen through, by name.

    They are in float64 and in the parameter's shape.
    """

    ggn: list[dict[str, Tensor]]  # of each loss
    fisher: dict[str, Tensor]  # of the first loss: mean_k g_k^2
    along: Tensor  # (n,), sum over these parameters of w . g_k, for each of this rank's samples


def few_outputs(problem: Problem) -> bool:
    """Whether a backward pass for each output of a sample is affordable."""
    return not problem.loss.needs_model and outputs_of_a_sample(problem) <= MOST_OUTPUTS


@differentiating()
def joint_diagonals(problems: Sequence[Problem]) -> JointDiagonals:
    """The exact diagonals of one model and data under several losses: C backward passes in all.

    A parameter that turns out not to be seen through on some of the data is left out.
    """
    problem = problems[0]
    left = parameters(problem)
    each = max(1, sum(factor_bytes(problem, layer, "ggn")[1] for layer in left.values()))
    sums: list[dict[str, Tensor]] = [{} for _ in range(len(problems) + 1)]
    along = []
    with problem.measuring():
        for batch in problem.batches("train", samples_within(problem, each)):
            seen = ForwardPass(problem, batch, left)
            for other in problems:
                give_up(other, seen.opaque)
            left = {name: layer for name, layer in left.items() if name not in seen.opaque}
            if not left:
                break
            dots = torch.zeros(len(batch), dtype=torch.float64, device=problem.device)
            for name, part, small, r in _parts(problems, batch, seen, left):
                diagonals, g_along = _sums(part, small, r, problem.params[name].flatten())
                dots += g_along
                for place, value in zip(sums, diagonals, strict=True):
                    place[name] = place[name] + value if name in place else value
            along.append(dots)
        *ggn, fisher = _kept(problem, sums)
    missing = torch.zeros(len(problem.train), dtype=torch.float64, device=problem.device)
    return JointDiagonals(ggn, fisher, torch.cat(along) if fisher else missing)


@differentiating()
def fisher_diagonal(problem: Problem) -> JointDiagonals:
    """The empirical Fisher matrix's diagonal alone: one backward pass, however many outputs."""
    sums: dict[str, Tensor] = {}
    along = []
    with problem.measuring():
        for parts in factors(problem, list(parameters(problem).values()), "fisher"):
            rows = []
            for name, part in parts.items():
                ones = part.A[:, 0]  # (n, 1)
                (square,), dots = _sums(part, [], ones, problem.params[name].flatten())
                sums[name] = sums[name] + square if name in sums else square
                rows.append(dots)
            along.append(torch.stack(rows).sum(0))
        fisher = _kept(problem, [sums])[0]
    missing = torch.zeros(len(problem.train), dtype=torch.float64, device=problem.device)
    return JointDiagonals([], fisher, torch.cat(along) if fisher else missing)


def _kept(problem: Problem, sums: list[dict[str, Tensor]]) -> list[dict[str, Tensor]]:
    """Means from sums over samples, for the parameters that all data-parallel ranks saw through."""
    count, names, seen = problem.count(), list(problem.params), parameters(problem)
    lost = total(torch.tensor([name not in seen for name in names], dtype=torch.long))
    kept = [name for name, times in zip(names, lost.tolist(), strict=True) if not times]
    return [{n: finite(total(s[n]) / count).view_as(problem.params[n]) for n in kept} for s in sums]


def _parts(
    problems: Sequence[Problem], batch: Batch, seen: ForwardPass, chosen: dict[str, Layer]
) -> "list[tuple[str, Factors, list[Tensor], Tensor]]":
    """Each parameter's factors, the second derivatives of every loss, the slopes of the first."""
    z = seen.outputs.detach()
    curvatures = [output_curvature(p, z.clone(), batch.targets) for p in problems]
    leaf = z.clone().requires_grad_()
    losses = losses_in_double(problems[0], leaf, batch.targets)
    (slope,) = torch.autograd.grad(losses.sum(), leaf, materialize_grads=True)
    r = slope.reshape(len(z), -1)  # (n, C)
    rows = rows_with_curvature([*curvatures, r.unsqueeze(1)])
    small = [rows @ A @ rows.T for A in curvatures]
    terms = through_outputs(seen, chosen, rows)
    return [
        (name, Factors(layer, terms[name], small[0], "C backward passes"), small, r @ rows.T)
        for name, layer in chosen.items()
    ]


def _sums(part: Factors, small: list[Tensor], r: Tensor, w: Tensor) -> tuple[list[Tensor], Tensor]:
    """Summed over samples: the diagonals with each small matrix, and that of ``g_k g_k^T``.

    With the products ``w . g_k`` of each sample, (n,).
    """
    if part.is_outer:
        (term,) = part.terms
        own = replace(term, J=torch.einsum("nc,nctgo->ntgo", r, term.J).unsqueeze(1))
        gradient = replace(part, terms=[own], A=r.new_ones(len(r), 1, 1))
        each = [replace(part, A=A) for A in small] + [gradient]
        x, g = own.x[:, 0, 0], own.J[:, 0, 0, 0]  # (n, in), (n, out)
        dots = (g * (x @ w[own.places[0]].T)).double().sum(1)
        return [every.diagonal_sum().double() for every in each], dots
    sums = [w.new_zeros(len(w), dtype=torch.float64) for _ in range(len(small) + 1)]
    along: list[Tensor] = []
    for some in part.cached():
        of = slice(len(along), len(along) + len(some.A))
        B = some.gradients()
        g = (r[of].unsqueeze(1) @ B).squeeze(1)  # (n, M)
        for place, A in zip(sums, small, strict=False):
            place += (B * (A[of] @ B)).sum((0, 1))
        sums[-1] += g.square().sum(0)
        along += (g @ w).double()
    return sums, torch.stack(along)
