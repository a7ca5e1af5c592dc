"""Entropy-SGD: descend the local entropy instead of the loss."""

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch.optim import SGD, Optimizer

from lowland.errors import InputError
from lowland.optim.around import Around, Closure


class EntropySGD(Around):
    """Chaudhari et al., ICLR 2017: the gradient of the local entropy, by Langevin dynamics.

    From the weights w, ``langevin`` inner steps wander by

        w' <- w' - inner_lr (grad L(w') + gamma (w' - w)) + noise sqrt(inner_lr) N(0, I)

    while their running mean mu is kept; the base optimiser then steps with ``gamma (w - mu)``.
    Scoping raises gamma by the factor ``1 + scoping`` at every step, which narrows the valley that
    is looked for. The closure is called once for each inner step: let it draw a new batch.

    Args:
        params: parameters or groups.
        base: a class of ``torch.optim``.
        langevin: inner steps.
        inner_lr: their step size.
        gamma: how strongly they are held near w.
        scoping: how much gamma grows at each step.
        noise: the temperature's root.
        memory: the share of the past in the running mean.
        seed: of the noise.
        options: those of the base.
    """

    def __init__(
        self,
        params: Iterable[Any],
        base: type[Optimizer] = SGD,
        *,
        langevin: int = 20,
        inner_lr: float = 0.1,
        gamma: float = 0.03,
        scoping: float = 1e-3,
        noise: float = 1e-4,
        memory: float = 0.75,
        seed: int = 0,
        **options: Any,
    ) -> None:
        if langevin < 1:
            raise InputError(f"langevin must be at least 1; got {langevin}")
        if not 0 <= memory < 1:
            raise InputError(f"memory must be at least 0 and below 1; got {memory}")
        own = {"inner_lr": inner_lr, "gamma": gamma, "scoping": scoping, "noise": noise}
        super().__init__(params, base, own, options)
        self.langevin, self.memory = langevin, memory
        self._generators: dict[torch.device, torch.Generator] = {}
        self._seed = seed

    def _generator(self, device: torch.device) -> torch.Generator:
        if device not in self._generators:
            self._generators[device] = torch.Generator(device).manual_seed(self._seed)
        return self._generators[device]

    def step(self, closure: Closure | None = None) -> Any:
        """The inner steps, then one of the base; returns the loss at the weights w."""
        if closure is None:
            raise InputError("Entropy-SGD needs a closure: it computes gradients at many points")
        start = [(p, p.detach().clone()) for group in self.param_groups for p in group["params"]]
        mean = {p: before.clone() for p, before in start}
        before = dict(start)
        first = None
        try:
            for number in range(self.langevin):
                with torch.enable_grad():
                    loss = closure()
                first = loss if number == 0 else first
                self._wander(before, mean)
        except BaseException:
            self._put_back(start)
            raise
        self._put_back(start)
        with torch.no_grad():
            for group in self.param_groups:
                for p in group["params"]:
                    if p.grad is not None:
                        p.grad = group["gamma"] * (p - mean[p])
        self.base.step()
        for group in self.param_groups:
            group["gamma"] *= 1 + group["scoping"]
        return first

    @torch.no_grad()
    def _wander(self, start: dict[Any, torch.Tensor], mean: dict[Any, torch.Tensor]) -> None:
        for p, g, group in self._with_gradients():
            pull = g + group["gamma"] * (p - start[p])
            draw = torch.randn(
                p.shape, generator=self._generator(p.device), dtype=p.dtype, device=p.device
            )
            shake = group["noise"] * math.sqrt(group["inner_lr"]) * draw
            p.add_(shake - group["inner_lr"] * pull)
            mean[p].mul_(self.memory).add_(p, alpha=1 - self.memory)

    @torch.no_grad()
    def _put_back(self, start: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
        for p, before in start:
            p.copy_(before)
