"""The training loss around the weights: at w + v, for any flat vector v over all parameters."""

from collections.abc import Callable, Mapping
from functools import cached_property
from itertools import accumulate

import torch
from torch import Tensor

from lowland.batches import Batch
from lowland.budget import Work
from lowland.distributed import total
from lowland.measures.sharing import once
from lowland.problem import Problem


class Neighbourhood:
    """The mean training loss L(w + v) and its gradient.

    Vectors are float64 and hold the parameters one after the other, in the model's order. Losses
    that overflow come back as they are: far from the weights this is an answer.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.w = self.flat(problem.params)  # (n,)
        self.sizes = [p.numel() for p in problem.params.values()]
        self.products: dict[tuple, Tensor] = {}  # of data with w, that rays from here share
        self._count = problem.count()

    def loss(self, v: Tensor) -> float:
        """L(w + v): one forward pass over the training data."""
        params = self.shaped(self.w + v)
        return self.mean_loss(lambda batch, place: self.problem.batch_losses(batch, params))

    def mean_loss(self, losses: Callable[[Batch, int], Tensor]) -> float:
        """The mean of what a function of each training batch, and of its place, returns."""
        with self.problem.measuring(), torch.no_grad():
            value = self.w.new_zeros(())
            for place, batch in enumerate(self.problem.batches()):
                value += losses(batch, place).double().sum()
            return float(total(value) / self._count)

    def gradient(self, v: Tensor) -> tuple[float, Tensor]:
        """L(w + v) and its gradient, (n,)."""
        loss, slopes = self.problem.gradient(self.shaped(self.w + v))
        return loss, self.flat(slopes)

    @cached_property
    def origin(self) -> tuple[float, Tensor]:
        """L(w) and its gradient."""
        return self.gradient(torch.zeros_like(self.w))

    @staticmethod
    def flat(params: Mapping[str, Tensor]) -> Tensor:
        """The vector that holds all parameters, one after the other."""
        return torch.cat([p.reshape(-1) for p in params.values()]).double()

    def shaped(self, x: Tensor) -> dict[str, Tensor]:
        """The parameters that a vector stands for, in the model's precision."""
        every = self.problem.params
        parts = zip(every.items(), x.to(self.problem.dtype).split(self.sizes), strict=True)
        return {name: part.view_as(p) for (name, p), part in parts}


@once(Work(gradients=1))
def neighbourhood(problem: Problem) -> Neighbourhood:
    """The neighbourhood that all measures share: loss and gradient at w are computed once."""
    return Neighbourhood(problem)


class Noise:
    """Standard normal vectors that are permuted with the hidden units, if these are.

    Each parameter's numbers are dealt out in the order of ``key``, (n,): given the weights they are
    independent and normal like any others, but permuting hidden units permutes them alike and so
    leaves what is measured with them unchanged. With w as key the same holds for the scale of
    a layer, with w * dL/dw for that of each hidden unit. ``order`` (n,) tells which parameter each
    successive number goes to.
    """

    def __init__(self, near: Neighbourhood, key: Tensor, seed: int = 0) -> None:
        starts = accumulate(near.sizes, initial=0)
        parts = zip(key.split(near.sizes), starts, strict=False)
        self.order = torch.cat([part.argsort(stable=True) + start for part, start in parts])
        self._generator = torch.Generator().manual_seed(seed)

    def draw(self) -> Tensor:
        """The next vector, (n,), of float32's digits, which take a fifth of float64's time."""
        z = torch.randn(len(self.order), generator=self._generator)
        dealt = torch.empty_like(z).to(self.order.device)
        dealt[self.order] = z.to(dealt.device)
        return dealt.double()
