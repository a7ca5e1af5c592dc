"""Sharpness-aware minimisation: the gradient of the worst point nearby."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, Optimizer

from lowland.errors import InputError
from lowland.optim.around import Closure
from lowland.optim.excursion import Exploring


class SAM(Exploring):
    """Foret et al., ICLR 2021: ``w <- w - lr grad L(w + rho g / |g|)``, with g the gradient at w.

    Either give ``step`` a closure that computes gradients, or call ``first_step`` after the first
    backward pass and ``step`` after the second. The direction does not depend on the size of g: a
    ``GradScaler`` unscales only the second gradient, in ``scaler.step(optimizer)``, and clipping by
    norm matters only for the second. If that one overflows, the weights just go back.

    Args:
        params: parameters or groups; a group may have a ``rho`` of its own.
        base: a class of ``torch.optim``, which takes the step.
        rho: the radius of the ball around w.
        options: those of the base: ``lr``, ``momentum``, ...
    """

    # When gradients overflow, a GradScaler does not call the step of an optimiser without this
    # mark, and the weights would stay away. With it, the overflow is told in found_inf.
    _step_supports_amp_scaling = True

    def __init__(
        self,
        params: Iterable[Any],
        base: type[Optimizer] = SGD,
        *,
        rho: float = 0.05,
        **options: Any,
    ) -> None:
        _check_not_negative(rho=rho)
        super().__init__(params, base, {"rho": rho}, options)

    def _metric(self, p: Tensor, group: dict[str, Any]) -> Tensor | float:
        """The unit in which the ball is measured, for each weight."""
        return 1.0

    @torch.no_grad()
    def first_step(self, *, zero_grad: bool = True) -> None:
        """Climb to the worst point of the ball, to first order; gradients are cleared."""
        if self._excursion.steps:
            raise InputError("first_step was called twice; call step or restore in between")
        steps = [(p, g, group, self._metric(p, group)) for p, g, group in self._with_gradients()]
        norm = _norm([g * metric for _, g, _, metric in steps])
        if norm.isfinite() and norm > 0:  # otherwise there is no direction: stay
            for p, g, group, metric in steps:
                self._excursion.start_of(p)
                p.add_(g * (group["rho"] / norm.to(p.device)) * metric * metric)
        self._excursion.advance()
        if zero_grad:
            self.zero_grad()

    def second_step(self) -> None:
        """The same as ``step`` without a closure."""
        self.step()

    def step(self, closure: Closure | None = None) -> Any:
        """Both steps, with a closure that is called twice; the second, after ``first_step``.

        Returns the loss at w.
        """
        begun = self._excursion.steps > 0
        if closure is None and not begun:
            raise InputError("call first_step before step, or give step a closure")
        if closure is not None and hasattr(self, "found_inf"):
            raise InputError("a GradScaler takes no closure: call first_step, then scaler.step")
        loss = None
        try:
            if closure is not None and not begun:
                loss = self._call(closure)
                self.first_step()
            if closure is not None:
                with torch.enable_grad():
                    closure()
        finally:
            self.restore()
        if self._unscale():
            self.base.step()
        return loss

    @torch.no_grad()
    def _unscale(self) -> bool:
        """Take the factor of a GradScaler out of the gradients; whether they are finite."""
        factor = getattr(self, "grad_scale", None)
        if factor is not None:
            for _, g, _ in self._with_gradients():
                g.div_(factor.to(g.device))
        return not getattr(self, "found_inf", False)


class ASAM(SAM):
    """Kwon et al., ICML 2021: SAM in a ball that is measured in units of the weights.

    ``w + rho T^2 g / |T g|`` with ``T = |w| + eta``: rescaling layers does not change the method.
    The code of the authors takes T = 1 for biases: give these in a group with ``adaptive=False``.

    Args:
        params: parameters or groups; a group may have ``rho``, ``eta`` and ``adaptive`` of its own.
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
        _check_not_negative(rho=rho, eta=eta)
        Exploring.__init__(self, params, base, {"rho": rho, "eta": eta, "adaptive": True}, options)

    def _metric(self, p: Tensor, group: dict[str, Any]) -> Tensor | float:
        return p.abs() + group["eta"] if group["adaptive"] else 1.0


def _check_not_negative(**values: float) -> None:
    for name, value in values.items():
        if not value >= 0:
            raise InputError(f"{name} must not be negative; got {value}")


def _norm(tensors: list[Tensor]) -> Tensor:
    """The norm of all together, in at least single precision."""
    norms = [
        torch.linalg.vector_norm(t, dtype=torch.promote_types(t.dtype, torch.float32))
        for t in tensors
    ]
    return torch.stack([n.to(norms[0]) for n in norms]).norm() if norms else torch.zeros(())
