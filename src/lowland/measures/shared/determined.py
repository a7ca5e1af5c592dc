"""Whether derivatives of the loss are more than rounding, so that ratios of them mean something."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from lowland.budget import Work
from lowland.errors import InputError
from lowland.measures.shared.spectrum import hessian_spectrum, in_double, whole_hessian
from lowland.measures.sharing import once
from lowland.problem import Problem

# The share of a derivative that may change when all weights move by their rounding, and how often.
_MOVED, _MOVES = 0.1, 2


@once(Work(gradients=1 + _MOVES))
def check_gradient_determined(problem: Problem) -> None:
    """Raise an error if the mean gradient is made of rounding."""

    def gradient(params: dict[str, Tensor]) -> Tensor:
        return torch.cat([g.flatten() for g in problem.gradient(params)[1].values()])

    _check(problem, "mean gradient", gradient)


@once(Work(products=3 * (1 + _MOVES)))  # each makes its graph again
def check_hessian_determined(problem: Problem) -> None:
    """Raise an error if the Hessian is made of rounding, going by a product with it.

    It is asked in the precision that its spectrum is computed in.
    """
    if hessian_spectrum(problem).exact:
        problem = in_double(problem)
    H = whole_hessian(problem)
    generator = torch.Generator(device=H.device).manual_seed(0)
    v = torch.randn(H.size, dtype=H.dtype, device=H.device, generator=generator)
    _check(problem, "Hessian", partial(H.product_at, v))


def _check(problem: Problem, name: str, derivative: Callable[[dict[str, Tensor]], Tensor]) -> None:
    if problem.stored is not None or problem.sharded:
        return

    def changes() -> bool:
        weights = problem.select()
        here, eps = derivative(weights).double(), torch.finfo(problem.dtype).eps
        generator = torch.Generator(device=problem.device).manual_seed(0)
        for _ in range(_MOVES):
            moved = {
                n: p * (1 + 4 * eps * torch.empty_like(p).normal_(generator=generator))
                for n, p in weights.items()
            }
            there = derivative(moved).double()
            size = max(float(here.norm()), float(there.norm()))
            if not float((here - there).norm()) < _MOVED * size:
                return True
        return False

    if problem.found((_check, name), changes):
        raise InputError(
            f"the {name} is zero to rounding: it changes by {_MOVED:.0%} or more when the "
            "weights move by their last digits, so ratios of it are not defined"
        )
