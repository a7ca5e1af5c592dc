"""Entropy-SGD: descend the local entropy instead of the loss."""

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, Optimizer

from lowland.errors import InputError
from lowland.optim.around import Closure, check_count
from lowland.optim.excursion import Exploring
from lowland.optim.noise import generators_of


class EntropySGD(Exploring):
    """Chaudhari et al., ICLR 2017, Algorithm 1: the local entropy's gradient by Langevin dynamics.

    From the weights w, ``langevin`` inner steps wander by

        w' <- w' - inner_lr (grad L(w') + gamma (w' - w)) + noise sqrt(inner_lr) N(0, I)

    while their running mean mu is kept; the base optimiser then steps with ``gamma (w - mu)``, so
    that plain SGD with ``lr = 1 / gamma`` goes to mu. Scoping raises gamma by the factor
    ``1 + scoping`` at every step of the base, which narrows the valley that is looked for.

    Give ``step`` a closure, which is called for each inner step: let it draw a new batch. Or call
    ``step`` without one after every backward pass, as with any optimiser: each call is an inner
    step, and the last of ``langevin`` also takes the base's step. What is clipped, and unscaled by
    a ``GradScaler``, is grad L(w'); one that overflows only costs its inner step. Between inner
    steps the model has the weights w'; ``restore`` gives up the inner loop and goes back to w.

    Args:
        params: parameters or groups; all but ``langevin`` can be a group's own.
        base: a class of ``torch.optim``.
        langevin: inner steps.
        inner_lr: their step size.
        gamma: how strongly they are held near w.
        scoping: how much gamma grows at each step.
        noise: the temperature's root.
        memory: the share of the past in the running mean; 0.75 as in the code of the authors.
        seed: of the noise.
        options: those of the base.
    """

    not_negative = ("inner_lr", "gamma", "noise")

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
        check_count("langevin", langevin)
        if not 0 <= memory < 1:
            raise InputError(f"memory must be at least 0 and below 1; got {memory}")
        if seed < 0:
            raise InputError(f"seed must not be negative; got {seed}")
        own = {
            "inner_lr": inner_lr,
            "gamma": gamma,
            "scoping": scoping,
            "noise": noise,
            "memory": memory,
            "seed": seed,
            "inner_steps": 0,  # with the seed they give the noise: a saved state has all of it
        }
        super().__init__(params, base, own, options)
        self.langevin = langevin

    def step(self, closure: Closure | None = None) -> Any:
        """With a closure all inner steps that are left, without one a single one; then the base's.

        Returns the first loss of the closure, which is that at the weights w.
        """
        losses = []
        try:
            if closure is None and self._excursion.steps < self.langevin:
                self.inner_step()
            while closure is not None and self._excursion.steps < self.langevin:
                losses.append(self._call(closure))
                self.inner_step()
        except BaseException:
            self.restore()
            raise
        if self._excursion.steps == self.langevin:
            self._outer_step()
        return losses[0] if losses else None

    @torch.no_grad()
    def inner_step(self) -> None:
        """Wander by one step, with the gradients at hand, which are cleared."""
        if self._excursion.steps == self.langevin:
            raise InputError(f"all {self.langevin} inner steps are taken: call step, or restore")
        for number, group in enumerate(self.param_groups):
            generators = generators_of(group, number, group["inner_steps"])
            for p in group["params"]:
                if p.grad is not None:
                    self._wander(p, group, generators[p.device])
            group["inner_steps"] += 1
        self._excursion.advance()
        self.zero_grad()

    def _wander(self, p: Tensor, group: dict[str, Any], generator: torch.Generator) -> None:
        start, means = self._excursion.start_of(p), self._excursion.notes
        draw = torch.randn(p.shape, generator=generator, dtype=p.dtype, device=p.device)
        shake = group["noise"] * math.sqrt(group["inner_lr"]) * draw
        p.add_(shake - group["inner_lr"] * (group["gamma"] * (p - start) + p.grad))
        if p not in means:
            means[p] = start.clone()
        means[p].mul_(group["memory"]).add_(p, alpha=1 - group["memory"])

    @torch.no_grad()
    def _outer_step(self) -> None:
        means = dict(self._excursion.notes)
        self.restore()
        for group in self.param_groups:
            for p in group["params"]:
                if p in means:
                    p.grad = group["gamma"] * (p - means[p])
        self.base.step()
        for group in self.param_groups:
            group["gamma"] *= 1 + group["scoping"]
