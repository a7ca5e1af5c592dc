"""Kin of SAM: other directions to climb, fewer climbs, and another gradient from above."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, Optimizer

from lowland.errors import InputError
from lowland.optim.around import check_count
from lowland.optim.sam import SAM, Notes, norm_of


class FriendlySAM(SAM):
    """Li et al., CVPR 2024 (F-SAM): climb along the noise of the gradient, not along its mean.

    ::

        m <- memory m + (1 - memory) g,   d = g - sigma m,   w <- w - lr grad L(w + rho d / |d|)

    The running mean m of the batches' gradients, from 0, stands for the gradient of all data. As it
    mixes gradients of several steps, it takes no ``GradScaler``, whose factor changes on the way.

    Args:
        params: parameters or groups; a group may have ``rho``, ``sigma`` and ``memory`` of its own.
        base: a class of ``torch.optim``.
        rho: the radius.
        sigma: how much of the mean is taken out; 0 is SAM.
        memory: the share of the past in the mean; 0.9 as in the code of the authors.
        options: those of the base.
    """

    not_negative = ("rho", "sigma")

    def __init__(
        self,
        params: Iterable[Any],
        base: type[Optimizer] = SGD,
        *,
        rho: float = 0.05,
        sigma: float = 1.0,
        memory: float = 0.9,
        **options: Any,
    ) -> None:
        if not 0 <= memory < 1:
            raise InputError(f"memory must be at least 0 and below 1; got {memory}")
        self._set_up(params, base, {"rho": rho, "sigma": sigma, "memory": memory}, options)

    def _direction(self, p: Tensor, g: Tensor, group: dict[str, Any]) -> Tensor:
        before = self.state[p].get("mean_gradient") if p in self.state else None
        mean = g * (1 - group["memory"])
        if before is not None:
            mean.add_(before, alpha=group["memory"])
        self._excursion.notes[p] = mean
        return g - group["sigma"] * mean

    def _descend(self, notes: Notes) -> None:
        if hasattr(self, "grad_scale"):
            raise InputError(
                "FriendlySAM takes no GradScaler; use autocast to bfloat16 without one"
            )
        self.base.step()
        for p, _, _ in self._with_gradients():  # afterwards: bases take an empty state for new
            if p in notes:
                self.state[p]["mean_gradient"] = notes[p]


class LookSAM(SAM):
    """Liu et al., CVPR 2022: SAM's second pass in every k-th step, remembered in the others.

    In steps 0, k, 2k, ... the gradient from above is taken, g_s, and its part across the gradient g
    at w is kept: ``g_v = g_s - (g_s . g / |g|^2) g``. The steps between them have one pass and go
    along ``g + alpha |g| g_v / |g_v|``.

    With a closure nothing else is to be done. Without one, ask whether the step has two passes::

        loss().backward()
        if optimizer.climbs:
            optimizer.first_step()
            loss().backward()
        optimizer.step()

    Args:
        params: parameters or groups; a group may have a ``rho`` of its own.
        base: a class of ``torch.optim``.
        rho: the radius.
        every: the paper's k.
        reuse: the paper's alpha.
        options: those of the base.
    """

    not_negative = ("rho", "reuse")

    def __init__(
        self,
        params: Iterable[Any],
        base: type[Optimizer] = SGD,
        *,
        rho: float = 0.05,
        every: int = 5,
        reuse: float = 0.7,
        **options: Any,
    ) -> None:
        check_count("every", every)
        own = {"rho": rho, "every": every, "reuse": reuse, "turn": 0}
        self._set_up(params, base, own, options)

    @property
    def climbs(self) -> bool:
        """Whether the coming step needs a second pass, from above."""
        first = self.param_groups[0]
        return bool(first["turn"] % first["every"] == 0)

    @torch.no_grad()
    def first_step(self, *, zero_grad: bool = True) -> None:
        """Climb to the worst point of the ball, to first order; gradients are cleared."""
        below = {p: g.clone() for p, g, _ in self._with_gradients()}
        super().first_step(zero_grad=zero_grad)
        self._excursion.notes.update(below)

    @torch.no_grad()
    def _descend(self, notes: Notes) -> None:
        across = _across(self._gradients(), notes) if self.climbs else {}
        if not self.climbs:
            self._look()
        self.base.step()
        for p, vector in across.items():  # afterwards: bases take an empty state for new
            self.state[p]["across"] = vector
        for group in self.param_groups:
            group["turn"] += 1

    def _gradients(self) -> Notes:
        return {p: g for p, g, _ in self._with_gradients()}

    def _look(self) -> None:
        """Add the remembered part to the gradients, in their own size."""
        gradients = self._gradients()
        kept = {p: self.state[p]["across"] for p in gradients if "across" in self.state.get(p, {})}
        size, length = norm_of(list(gradients.values())), norm_of(list(kept.values()))
        if length > 0:
            for p, vector in kept.items():
                factor = self.param_groups[0]["reuse"] * size / length
                gradients[p].add_(vector * factor.to(vector))


def _across(above: Notes, below: Notes) -> Notes:
    """The part of the gradients above that is orthogonal to those below."""
    both = [p for p in above if p in below]
    if not both:
        return {}
    inner = torch.stack([(above[p] * below[p]).sum().to(below[both[0]]) for p in both]).sum()
    square = norm_of([below[p] for p in both]) ** 2
    share = inner / square if square > 0 else torch.zeros_like(inner)
    return {p: above[p] - share.to(above[p]) * below[p] for p in both}


class FunctionalSAM(SAM):
    """Singh et al., arXiv 2502.02407: SAM whose gradient does not see the logits change.

    The gradient from above is ``J(w + e)^T dl/df (w)``, with f the network's outputs, J their
    Jacobian and e the step of SAM, where SAM has ``J(w + e)^T dl/df (w + e)``. In language models,
    SAM lowers the sharpness mostly by that other path: by the statistics of the logits.

    Pass the outputs that the loss is computed from through :meth:`logits`; the rest is as in SAM.
    Both passes must see the same batches in the same order. ::

        loss = cross_entropy(optimizer.logits(model(x)), y)

    For a model that computes its loss itself, hook its last layer:
    ``model.lm_head.register_forward_hook(lambda layer, args, out: optimizer.logits(out))``.

    Args:
        params: parameters or groups; a group may have a ``rho`` of its own.
        base: a class of ``torch.optim``.
        rho: the radius.
        options: those of the base.
    """

    def __init__(
        self,
        params: Iterable[Any],
        base: type[Optimizer] = SGD,
        *,
        rho: float = 0.05,
        **options: Any,
    ) -> None:
        super().__init__(params, base, rho=rho, **options)
        self._below: list[Tensor] = []  # dl/df at w, in the order of the backward passes
        self._above: list[int] = [0]  # how many of them were used above; a list, to be shared

    def logits(self, outputs: Tensor) -> Tensor:
        """The outputs; the gradient that comes back to them above is replaced by that at w."""
        if not outputs.requires_grad:
            return outputs
        watched = outputs.view_as(outputs)
        watched.register_hook(self._replaced)
        return watched

    def _replaced(self, slope: Tensor) -> Tensor:
        if not self._excursion.steps:
            self._below.append(slope.detach())
            return slope
        number = self._above[0]
        if number >= len(self._below) or self._below[number].shape != slope.shape:
            raise InputError(
                "the second pass must see the batches of the first, in the same order; got outputs "
                f"of shape {tuple(slope.shape)} where there were "
                f"{[tuple(kept.shape) for kept in self._below]}"
            )
        self._above[0] += 1
        return self._below[number]

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear all gradients, and what was noted of the pass that they are of."""
        self._above[0] = 0
        if not self._excursion.steps:
            self._below.clear()
        super().zero_grad(set_to_none)

    def first_step(self, *, zero_grad: bool = True) -> None:
        """Climb to the worst point of the ball, to first order; gradients are cleared."""
        if not self._below:
            raise InputError(
                "no outputs were seen: compute the loss from optimizer.logits(model(inputs))"
            )
        super().first_step(zero_grad=zero_grad)

    def restore(self) -> None:
        """Put weights and running averages back without a step, for instance after an error."""
        super().restore()
        self._below.clear()
        self._above[0] = 0
