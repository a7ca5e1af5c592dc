"""Diagonals of several curvature matrices from one pass over the data.

The Gauss-Newton matrices of all losses of the same outputs differ by a small matrix between the
same Jacobians: ``B_k^T A_k B_k`` with ``A_k = d2l_k/dz2``. Jacobians are what takes time, so they
are made once. The empirical Fisher matrix needs none of them, but a single backward pass.
"""

from collections.abc import Iterable, Sequence
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
    of_batch,
    output_curvature,
    rows_with_curvature,
    through_outputs,
)
from lowland.curvature.sketch import finite
from lowland.distributed import total
from lowland.problem import Problem, differentiating

# Outputs of a sample up to which a backward pass is made for each of them.
MOST_OUTPUTS = 128

Diagonals = dict[str, Tensor]  # by parameter, in float64 and in the parameter's shape


@dataclass(frozen=True)
class FisherMoments:
    """Second moments of the samples' gradients g_k, of parameters that can be seen through."""

    squares: Diagonals  # mean_k g_k^2, the diagonal of the empirical Fisher matrix
    along: Tensor  # (n,), sum over these parameters of w . g_k, for each of this rank's samples


def few_outputs(problem: Problem) -> bool:
    """Whether a backward pass for each output of a sample is affordable."""
    return not problem.loss.needs_model and outputs_of_a_sample(problem) <= MOST_OUTPUTS


@differentiating()
def joint_diagonals(problems: Sequence[Problem]) -> list[Diagonals]:
    """The GGN's exact diagonals under several losses of one model: C backward passes in all.

    A parameter that turns out not to be seen through on some of the data is left out.
    """
    problem = problems[0]
    left = parameters(problem)
    each = max(1, sum(factor_bytes(problem, layer, "ggn")[1] for layer in left.values()))
    sums = [_zeros(problem, left) for _ in problems]
    with problem.measuring():
        for batch in problem.batches("train", samples_within(problem, each)):
            seen = ForwardPass(problem, batch, left)
            for other in problems:
                give_up(other, seen.opaque)
            left = {name: layer for name, layer in left.items() if name not in seen.opaque}
            if not left:
                break
            for name, part, small in _parts(problems, batch, seen, seen.reached(left)):
                for place, value in zip(sums, _diagonals(part, small), strict=True):
                    place[name] += value
        return _kept(problem, sums)


@differentiating()
def fisher_moments(problem: Problem) -> FisherMoments:
    """The empirical Fisher matrix's diagonal: one backward pass, however many outputs."""
    left = parameters(problem)
    each = max(1, sum(factor_bytes(problem, layer, "fisher")[1] for layer in left.values()))
    sums, done = _zeros(problem, left), 0
    along = {
        name: torch.zeros(len(problem.train), dtype=torch.float64, device=problem.device)
        for name in left
    }
    with problem.measuring():
        for batch in problem.batches("train", samples_within(problem, each)):
            seen = ForwardPass(problem, batch, left)
            give_up(problem, seen.opaque)
            left = {name: layer for name, layer in left.items() if name not in seen.opaque}
            if not left:
                break
            for name, part in of_batch(problem, batch, seen, seen.reached(left), "fisher").items():
                square, dots = _squares(part, problem.params[name].flatten())
                sums[name] += square
                along[name][done : done + len(batch)] = dots
            done += len(batch)
        (squares,) = _kept(problem, [sums])
    none = torch.zeros(len(problem.train), dtype=torch.float64, device=problem.device)
    return FisherMoments(squares, sum((along[name] for name in squares), none))


def _zeros(problem: Problem, names: Iterable[str]) -> Diagonals:
    params = problem.params
    return {
        name: torch.zeros(params[name].numel(), dtype=torch.float64, device=problem.device)
        for name in names
    }


def _kept(problem: Problem, sums: list[Diagonals]) -> list[Diagonals]:
    """Means from sums over samples, for the parameters that all data-parallel ranks saw through."""
    count, names, seen = problem.count(), list(problem.params), parameters(problem)
    lost = total(torch.tensor([name not in seen for name in names], dtype=torch.long))
    kept = [name for name, times in zip(names, lost.tolist(), strict=True) if not times]
    return [{n: finite(total(s[n]) / count).view_as(problem.params[n]) for n in kept} for s in sums]


def _parts(
    problems: Sequence[Problem], batch: Batch, seen: ForwardPass, chosen: dict[str, Layer]
) -> list[tuple[str, Factors, list[Tensor]]]:
    """Each parameter's factors, with the second derivatives of every loss, (n, C, C)."""
    z = seen.outputs.detach()
    curvatures = [output_curvature(p, z.clone(), batch.targets) for p in problems]
    rows = rows_with_curvature(curvatures)
    small = [rows @ A @ rows.T for A in curvatures]
    terms = through_outputs(seen, chosen, rows)
    return [
        (name, Factors(layer, terms[name], small[0], "C backward passes"), small)
        for name, layer in chosen.items()
    ]


def _diagonals(part: Factors, small: list[Tensor]) -> list[Tensor]:
    """The diagonals with each small matrix, summed over samples, (M,)."""
    if part.is_outer:
        return [replace(part, A=A).diagonal_sum().double() for A in small]
    C, done = part.A.shape[1], 0
    sums = part.A.new_zeros(len(small), part.layer.size, dtype=torch.float64)
    for some in part.cached():
        of = slice(done, done + len(some.A))
        done += len(some.A)
        places, B = some.as_used()
        products = torch.cat([A[of] for A in small], 1) @ B  # all matrices at once
        for i in range(len(small)):
            own = products[:, C * i : C * (i + 1)].mul_(B)
            sums[i, places] += own.sum((0, 1))
    return list(sums)


def _squares(part: Factors, w: Tensor) -> tuple[Tensor, Tensor]:
    """The squares of the samples' gradients, summed, (M,); and their products with w, (n,)."""
    if part.is_outer:
        (term,) = part.terms
        x, g = term.x[:, 0, 0], term.J[:, 0, 0, 0]  # (n, in), (n, out)
        dots = (g * (x @ w[term.places[0]].T)).double().sum(1)
        return part.diagonal_sum().double(), dots
    sums = w.new_zeros(len(w), dtype=torch.float64)
    along = []
    for some in part.cached():
        places, B = some.as_used()
        g = B[:, 0]  # (n, m)
        sums[places] += g.square().sum(0)
        along.append((g @ w[places]).double())
    return sums, torch.cat(along)
