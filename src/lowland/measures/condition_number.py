"""Condition number of the whole network's Hessian."""

import torch

from lowland.budget import Work
from lowland.curvature import (
    condition_number as condition_of,
)
from lowland.curvature import (
    rounding,
)
from lowland.distributed import total
from lowland.errors import InputError
from lowland.measures.registry import Value, register
from lowland.measures.shared.determined import check_hessian_determined
from lowland.measures.shared.spectrum import hessian_spectrum, value_of
from lowland.problem import Problem

_ROUNDING = 100  # of outputs and losses, in that of products


@register(
    title="Condition number",
    family="curvature",
    formula="|l|_max / |l|_min",
    definition="The sharpest against the flattest curvature. A network with more parameters than "
    "data, or with softmax outputs, has directions without curvature, and then there is none.",
    citation="Sagun et al. 2017, arXiv:1706.04454",
    sharper="higher",
    cost=Work(forwards=3, needs=(hessian_spectrum, check_hessian_determined)),
)
def condition_number(problem: Problem) -> Value:
    """From all eigenvalues of a small network, and from both ends of a large one's spectrum."""
    if _is_blind_to_shifts(problem):
        raise InputError("it is infinite: the loss does not see a common shift of the outputs")
    check_hessian_determined(problem)
    spectrum = hessian_spectrum(problem)
    condition = condition_of(spectrum)
    if not condition.converged or condition.value == float("inf"):
        raise InputError(f"it is infinite or out of reach ({condition.method})")
    return value_of(condition, spectrum)


def _is_blind_to_shifts(problem: Problem) -> bool:
    """Whether the same change of all rows of the last matrix changes no sample's loss.

    So it is in front of a softmax, and a forward pass finds out at once. Another shows what a
    change of one row does, so that rounding can be told from nothing.
    """
    matrices = [name for name, p in problem.params.items() if p.ndim == 2]
    if not matrices or problem.sharded:
        return False
    name, weight = matrices[-1], problem.params[matrices[-1]].to(problem.dtype)
    row = torch.randn(weight.shape[1], generator=torch.Generator().manual_seed(0)).to(weight)
    row *= weight.norm() / len(weight) ** 0.5 / row.norm()
    only_first = torch.zeros_like(weight)
    only_first[0] = row
    squares = torch.zeros(2, dtype=torch.float64, device=problem.device)  # of changes of losses
    with problem.measuring(), torch.no_grad():
        for batch in problem.batches():
            losses = problem.batch_losses(batch)
            for i, rows in enumerate((row, only_first)):
                moved = problem.batch_losses(batch, {name: weight + rows})
                squares[i] += (moved - losses).double().square().sum()
    shifted, typical = total(squares).sqrt()
    return bool(shifted <= _ROUNDING * rounding(problem.dtype) * typical)
