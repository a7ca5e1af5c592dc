"""Whether derivatives of the loss are more than rounding, so that ratios of them mean something."""

from collections.abc import Callable

import torch
from torch import Tensor

from lowland.budget import Work
from lowland.curvature import hessian
from lowland.errors import InputError
from lowland.measures.shared.spectrum import in_double
from lowland.measures.sharing import once
from lowland.problem import Problem

# The share of a derivative that may change when all weights move by their rounding, and how often.
_MOVED, _MOVES = 0.1, 2


@once(Work(gradients=1 + _MOVES))
def check_gradient_determined(problem: Problem) -> None:
    """Raise an error if the mean gradient is made of rounding."""

    def gradient(p: Problem) -> Tensor:
        return torch.cat([g.flatten() for g in p.gradient()[1].values()])

    _check(problem, "gradient", gradient)


@once(Work(products=1 + _MOVES))
def check_hessian_determined(problem: Problem) -> None:
    """Raise an error if the Hessian is made of rounding, going by a product with it."""

    def product(p: Problem) -> Tensor:
        H = hessian(p)
        generator = torch.Generator(device=H.device).manual_seed(0)
        return H @ torch.randn(H.size, dtype=H.dtype, device=H.device, generator=generator)

    _check(in_double(problem), "Hessian", product)


def _check(problem: Problem, name: str, derivative: Callable[[Problem], Tensor]) -> None:
    here = derivative(problem).double()
    try:
        model = problem.copied_model()
    except (InputError, TypeError):  # as it is stored
        return
    generator = torch.Generator().manual_seed(0)
    weights = {n: p.detach().clone() for n, p in model.named_parameters()}
    for _ in range(_MOVES):
        with torch.no_grad():
            for n, p in model.named_parameters():
                digits = torch.randn(p.shape, generator=generator).to(p)
                p.copy_(weights[n] * (1 + 4 * torch.finfo(p.dtype).eps * digits))
        there = derivative(problem.of(model)).double()
        size = max(float(here.norm()), float(there.norm()))
        if not float((here - there).norm()) < _MOVED * size:
            raise InputError(
                f"the {name} is zero to rounding: it changes by {_MOVED:.0%} or more when the "
                "weights move by their last digits, so ratios of it are not defined"
            )
