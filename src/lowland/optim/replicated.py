"""Replicated SGD: several networks that attract each other meet in wide valleys."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from lowland.errors import InputError
from lowland.optim.around import Around, Closure


class ReplicatedSGD(Around):
    """Baldassi et al., PNAS 113, 2016: minimise ``sum_a L(w_a) + gamma/2 sum_a |w_a - mean|^2``.

    Every step adds ``gamma (w_a - mean)`` to the gradient of replica a; ``scoping`` raises gamma by
    the factor ``1 + scoping``, until the replicas agree. Compute the sum of the replicas' losses,
    each on a batch of its own if you like, and take ``mean_weights`` at the end.

    Args:
        replicas: the parameters of each, in one order: ``[m.parameters() for m in models]``.
        base: a class of ``torch.optim``.
        gamma: the strength of the attraction.
        scoping: how much it grows at each step.
        options: those of the base.
    """

    def __init__(
        self,
        replicas: Sequence[Iterable[nn.Parameter]],
        base: type[Optimizer] = SGD,
        *,
        gamma: float = 0.01,
        scoping: float = 1e-3,
        **options: Any,
    ) -> None:
        lists = [list(one) for one in replicas]
        if len(lists) < 2:
            raise InputError(f"replicas must be at least two; got {len(lists)}")
        shapes = [[p.shape for p in one] for one in lists]
        if any(shape != shapes[0] for shape in shapes):
            raise InputError("replicas must have the same parameters in the same order")
        super().__init__(
            [p for one in lists for p in one], base, {"gamma": gamma, "scoping": scoping}, options
        )
        self.replicas = lists

    @torch.no_grad()
    def mean_weights(self) -> list[Tensor]:
        """The centre of the replicas, parameter by parameter."""
        return [torch.stack(same).mean(0) for same in zip(*self.replicas, strict=True)]

    def step(self, closure: Closure | None = None) -> Any:
        """One step of all replicas."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        with torch.no_grad():
            (group,) = self.param_groups
            for same, centre in zip(
                zip(*self.replicas, strict=True), self.mean_weights(), strict=True
            ):
                for p in same:
                    if p.grad is not None:
                        p.grad.add_(p - centre, alpha=group["gamma"])
        self.base.step()
        group["gamma"] *= 1 + group["scoping"]
        return loss
