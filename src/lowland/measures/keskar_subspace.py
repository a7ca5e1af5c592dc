"""The sharpness of Keskar et al. in a random subspace."""

import torch
from torch import Tensor

from lowland.budget import Work
from lowland.errors import InputError
from lowland.measures.keskar_sharpness import START
from lowland.measures.registry import Value, register
from lowland.measures.shared.box_maximum import BOX_MAXIMUM, box_sharpness
from lowland.measures.shared.neighbourhood import Noise, neighbourhood
from lowland.problem import Problem

COLUMNS = 100  # the paper's


def subspace_work(problem: Problem) -> Work:
    """The search, with products of the weights with 100 columns for each gradient."""
    size = sum(p.numel() for p in problem.params.values())
    flops = 4 * size * COLUMNS * BOX_MAXIMUM.gradients + 2 * size * COLUMNS**2
    return BOX_MAXIMUM + Work(flops=flops)


@register(
    title="Keskar sharpness in a random subspace",
    family="perturbation",
    formula="max_y (L(w + A y) - L(w)) / (1 + L(w)), |y_i| <= eps (|(A^+ w)_i| + 1), eps = 0.001, "
    "A of 100 normal columns",
    definition="How much the training loss can rise in a small box within a random subspace of the "
    "weights, against one plus the loss.",
    citation="Keskar et al., ICLR 2017",
    sampled=True,
    sharper="higher",
    cost=subspace_work,
)
def keskar_subspace(problem: Problem) -> Value:
    """As over all weights; the entries of A are standard normal, which the paper leaves open.

    One subspace, the same for the same weights: others of a 784-512-512-10 network gave values that
    scatter by 20 %. A model too large for A to fit the problem's memory gets fewer columns.
    """
    near = neighbourhood(problem)
    n = len(near.w)
    p = min(COLUMNS, n, problem.memory // 4 // (n * problem.dtype.itemsize))
    if p < 1:
        raise InputError(
            f"one direction of {n:,} parameters exceeds the memory budget; pass "
            "Problem(memory=...) with more bytes"
        )
    generator = torch.Generator().manual_seed(0)
    # The transpose of A, its columns in the order of the weights rather than in that of the units.
    Z = torch.randn(p, n, generator=generator, dtype=problem.dtype).to(problem.device)
    order = Noise(near, near.w).order

    def spread(y: Tensor) -> Tensor:
        v = torch.empty_like(near.w)
        v[order] = (y.to(Z) @ Z).double()
        return v

    def gathered(v: Tensor) -> Tensor:
        return (Z @ v[order].to(Z)).double()

    # A^+ w by normal equations: normal columns are nearly orthogonal.
    y = torch.linalg.solve((Z @ Z.T).double(), gathered(near.w))
    start = START * torch.randn(p, generator=generator, dtype=torch.float64).to(y)
    sharpness = box_sharpness(near, y.abs() + 1, start.clamp(-1, 1), spread, gathered)
    method = f"{sharpness.method}; one subspace of {p} columns, others scatter by a tenth or more"
    return Value(sharpness.value, method, parts=sharpness.parts)
