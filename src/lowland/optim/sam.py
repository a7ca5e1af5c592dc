"""Sharpness-aware minimisation: the gradient of the worst point nearby."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, Optimizer

from lowland.errors import InputError
from lowland.optim.around import Around, Closure, KeptStatistics


class SAM(Around):
    """Foret et al., ICLR 2021: ``w <- w - lr grad L(w + rho g / |g|)``, with g the gradient at w.

    Either give ``step`` a closure that computes gradients, or call ``first_step`` after the first
    backward pass and ``step`` (or ``second_step``) after the second. The direction does not depend
    on the size of the gradient, so a ``GradScaler`` needs to unscale only the second one: call
    ``first_step`` on the scaled gradients, then ``scaler.step(optimizer)``.

    Args:
        params: parameters or groups; a group may have a ``rho`` of its own.
        base: a class of ``torch.optim``, which takes the step.
        rho: the radius of the ball around w.
        options: those of the base: ``lr``, ``momentum``, ...
    """

    def __init__(
        self,
        params: Iterable[Any],
        base: type[Optimizer] = SGD,
        *,
        rho: float = 0.05,
        **options: Any,
    ) -> None:
        if not rho >= 0:
            raise InputError(f"rho must not be negative; got {rho}")
        super().__init__(params, base, {"rho": rho}, options)
        self._moved: list[tuple[Tensor, Tensor]] = []  # parameters with the values they had
        self._statistics = KeptStatistics(self._own_ids)

    def _own_ids(self) -> set[int]:
        return {id(p) for group in self.param_groups for p in group["params"]}

    def _metric(self, p: Tensor) -> Tensor | float:
        """What the ball is measured in, for each weight."""
        return 1.0

    @torch.no_grad()
    def first_step(self, *, zero_grad: bool = True) -> None:
        """Climb to the worst point of the ball, to first order; gradients are cleared."""
        if self._moved:
            raise InputError("first_step was called twice; take the second step in between")
        known = [(p, g, group, self._metric(p)) for p, g, group in self._with_gradients()]
        if known:
            squares = [(g * metric).float().square().sum() for _, g, _, metric in known]
            norm = torch.stack([s.to(squares[0].device) for s in squares]).sum().sqrt()
            if norm.isfinite() and norm > 0:  # otherwise there is no direction: stay
                for p, g, group, metric in known:
                    self._moved.append((p, p.clone()))
                    p.add_(g * metric * metric * (group["rho"] / norm).to(p))
        self._statistics.on()
        if zero_grad:
            self.zero_grad()

    @torch.no_grad()
    def second_step(self) -> None:
        """Go back, and let the base optimiser step with the gradient found up there."""
        self._back()
        self.base.step()

    @torch.no_grad()
    def _back(self) -> None:
        self._statistics.off()
        for p, before in self._moved:
            p.copy_(before)
        self._moved = []

    def step(self, closure: Closure | None = None) -> Any:
        """Both steps with a closure, which is called twice; without one, the second step."""
        if closure is None:
            if not self._statistics.active:
                raise InputError("call first_step() before step(), or give step a closure")
            self.second_step()
            return None
        with torch.enable_grad():
            loss = closure()
        self.first_step()
        try:
            with torch.enable_grad():
                closure()
        except BaseException:
            self._back()
            raise
        self.second_step()
        return loss


class ASAM(SAM):
    """Kwon et al., ICML 2021: SAM in a ball that is measured in units of the weights.

    ``w + rho T^2 g / |T g|`` with ``T = |w| + eta``: rescaling layers does not change the method.

    Args:
        params: parameters or groups.
        base: a class of ``torch.optim``.
        rho: the radius, relative to the weights.
        eta: keeps weights near zero from being left out.
        options: those of the base.
    """

    def __init__(
        self,
        params: Iterable[Any],
        base: type[Optimizer] = SGD,
        *,
        rho: float = 0.5,
        eta: float = 0.01,
        **options: Any,
    ) -> None:
        if not eta >= 0:
            raise InputError(f"eta must not be negative; got {eta}")
        self.eta = eta
        super().__init__(params, base, rho=rho, **options)

    def _metric(self, p: Tensor) -> Tensor:
        return p.abs() + self.eta
