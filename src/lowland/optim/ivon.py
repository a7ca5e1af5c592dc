"""IVON: learn a normal distribution over the weights at the cost of Adam."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD

from lowland.errors import InputError
from lowland.optim.around import Closure
from lowland.optim.excursion import Exploring
from lowland.optim.noise import generators_of


class IVON(Exploring):
    """Shen et al., ICML 2024, Algorithm 1: variational learning by an improved online Newton step.

    The weights w are the mean of ``N(w, sigma^2)`` with ``sigma^2 = 1 / (ess (h + delta))``, for
    each weight alone. A step takes the gradient g at a sample ``x`` of it, and then ::

        h_x = g (x - w) / sigma^2
        m <- beta1 m + (1 - beta1) g
        h <- beta2 h + (1 - beta2) h_x + (1 - beta2)^2 (h - h_x)^2 / (2 (h + delta))
        w <- w - lr (h0 + delta) (m / (1 - beta1^t) + delta w) / (h + delta)

    Either give ``step`` a closure, which is called once, at the sample; or call ``sample`` before
    the forward pass and ``step`` after the backward pass. Between them the model has the weights x,
    and with them its running averages of batch normalisation are updated.
    A run of the model at another ``sample`` is a draw from the posterior; ``restore`` goes back.

    Args:
        params: parameters or groups; each may have options of its own.
        lr: the learning rate, times ``h0 + delta`` as in the code of the authors.
        ess: the effective sample size, which is the number of training samples.
        h0: the Hessian's diagonal to begin with: larger is more certain.
        delta: the strength of the prior, as a weight decay.
        beta1: the memory of the gradient.
        beta2: the memory of the Hessian; trainings of few steps need less of it.
        seed: of the samples.
    """

    _step_supports_amp_scaling = True  # as in SAM: else an overflow would leave the weights at x

    def __init__(
        self,
        params: Iterable[Any],
        *,
        lr: float = 0.1,
        ess: float,
        h0: float = 1.0,
        delta: float = 1e-4,
        beta1: float = 0.9,
        beta2: float = 0.99999,
        seed: int = 0,
    ) -> None:
        for name, value in {"ess": ess, "h0": h0, "delta": delta}.items():
            if not value > 0:
                raise InputError(f"{name} must be positive; got {value}")
        for name, value in {"beta1": beta1, "beta2": beta2}.items():
            if not 0 <= value < 1:
                raise InputError(f"{name} must be at least 0 and below 1; got {value}")
        if seed < 0:
            raise InputError(f"seed must not be negative; got {seed}")
        own = {"ess": ess, "h0": h0, "delta": delta, "beta1": beta1, "beta2": beta2, "seed": seed}
        super().__init__(params, SGD, {**own, "samples": 0, "updates": 0}, {"lr": lr})

    def _hessian(self, p: Tensor, group: dict[str, Any]) -> Tensor:
        if "hessian" not in self.state[p]:
            self.state[p]["hessian"] = torch.full_like(p, group["h0"])
            self.state[p]["mean_gradient"] = torch.zeros_like(p)
        hessian: Tensor = self.state[p]["hessian"]
        return hessian

    @torch.no_grad()
    def sample(self) -> None:
        """Go to weights that are drawn from the distribution."""
        if self._excursion.steps:
            raise InputError("sample was called twice; call step or restore in between")
        for number, group in enumerate(self.param_groups):
            generators = generators_of(group, number, group["samples"])
            for p in group["params"]:
                if p.requires_grad:
                    sigma = (group["ess"] * (self._hessian(p, group) + group["delta"])).rsqrt()
                    normal = {"generator": generators[p.device], "device": p.device}
                    shift = sigma * torch.randn(p.shape, dtype=p.dtype, **normal)
                    self._excursion.start_of(p)
                    self._excursion.notes[p] = shift
                    p.add_(shift)
            group["samples"] += 1
        self._excursion.advance(averages=False)  # no other pass would update them

    def step(self, closure: Closure | None = None) -> Any:
        """The whole step, with a closure that is called once; its end, after ``sample``.

        Returns the loss of the closure, at the sample.
        """
        if closure is None and not self._excursion.steps:
            raise InputError("call sample before the forward pass, or give step a closure")
        if closure is not None and hasattr(self, "found_inf"):
            raise InputError("a GradScaler takes no closure: call sample, then scaler.step")
        loss = None
        try:
            if closure is not None:
                if not self._excursion.steps:
                    self.sample()
                with torch.enable_grad():
                    loss = closure()
        finally:
            shifts = dict(self._excursion.notes)
            self.restore()
        if self._unscale():
            self._update(shifts)
        return loss

    @torch.no_grad()
    def _update(self, shifts: dict[Tensor, Tensor]) -> None:
        for group in self.param_groups:
            group["updates"] += 1
        for p, g, group in self._with_gradients():
            h, delta, beta2 = self._hessian(p, group), group["delta"], group["beta2"]
            new = g * shifts[p] * group["ess"] * (h + delta)
            correction = 0.5 * (1 - beta2) ** 2 * (h - new).square() / (h + delta)
            h.mul_(beta2).add_(new, alpha=1 - beta2).add_(correction)
            mean = self.state[p]["mean_gradient"]
            mean.mul_(group["beta1"]).add_(g, alpha=1 - group["beta1"])
            slope = mean / (1 - group["beta1"] ** group["updates"]) + delta * p
            p.grad = slope * ((group["h0"] + delta) / (h + delta))
        self.base.step()
