"""Sharpness-aware minimisation: the gradient of the worst point nearby."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from lowland.errors import InputError
from lowland.optim.around import Closure
from lowland.optim.excursion import Exploring

Notes = dict[Tensor, Tensor]  # what is kept of each weight between the two passes


class SAM(Exploring):
    """Foret et al., ICLR 2021: ``w <- w - lr grad L(w + rho g / |g|)``, with g the gradient at w.

    Either give ``step`` a closure that computes gradients, or call ``first_step`` after the first
    backward pass and ``step`` after the second. The direction does not depend on the size of g: a
    ``GradScaler`` unscales only the second gradient, in ``scaler.step(optimizer)``, and clipping by
    norm matters only for the second. If that one overflows, the weights just go back.

    Args:
        params: parameters or groups; a group may have a ``rho`` of its own. One with
            ``perturbed=False`` is trained, but neither moved for the second pass nor counted in
            ``|g|``: see :func:`norms_only`.
        base: a class of ``torch.optim``, which takes the step.
        rho: the radius of the ball around w.
        options: those of the base: ``lr``, ``momentum``, ...
    """

    # When gradients overflow, a GradScaler does not call the step of an optimiser without this
    # mark, and the weights would stay away. With it, the overflow is told in found_inf.
    _step_supports_amp_scaling = True
    not_negative: tuple[str, ...] = ("rho",)

    def __init__(
        self,
        params: Iterable[Any],
        base: type[Optimizer] = SGD,
        *,
        rho: float = 0.05,
        **options: Any,
    ) -> None:
        self._set_up(params, base, {"rho": rho}, options)

    def _set_up(
        self,
        params: Iterable[Any],
        base: type[Optimizer],
        own: dict[str, Any],
        options: dict[str, Any],
    ) -> None:
        super().__init__(params, base, {**own, "perturbed": True}, options)

    @property
    def climbs(self) -> bool:
        """Whether the coming step needs a second pass, from above."""
        return True

    def _metric(self, p: Tensor, group: dict[str, Any]) -> Tensor | float:
        """The unit in which the ball is measured, for each weight."""
        return 1.0

    def _direction(self, p: Tensor, g: Tensor, group: dict[str, Any]) -> Tensor:
        """The vector to climb along, of which g is the gradient."""
        return g

    @torch.no_grad()
    def first_step(self, *, zero_grad: bool = True) -> None:
        """Climb to the worst point of the ball, to first order; gradients are cleared."""
        if self._excursion.steps:
            raise InputError("first_step was called twice; call step or restore in between")
        if not self.climbs:
            raise InputError("this step has one pass: ask optimizer.climbs before first_step")
        steps = [
            (p, self._direction(p, g, group), group, self._metric(p, group))
            for p, g, group in self._with_gradients()
            if group["perturbed"]
        ]
        norm = norm_of([d * metric for _, d, _, metric in steps])
        if norm.isfinite() and norm > 0:  # otherwise there is no direction: stay
            for p, d, group, metric in steps:
                self._excursion.start_of(p)
                p.add_(d * (group["rho"] / norm.to(p.device)) * metric * metric)
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
        if closure is None and not begun and self.climbs:
            raise InputError("call first_step before step, or give step a closure")
        if closure is not None and hasattr(self, "found_inf"):
            raise InputError("a GradScaler takes no closure: call first_step, then scaler.step")
        loss = None
        try:
            if closure is not None and not begun:
                loss = self._call(closure)
                if self.climbs:
                    self.first_step()
                    begun = True
            if closure is not None and begun:
                with torch.enable_grad():
                    closure()
        finally:
            notes = dict(self._excursion.notes)
            self.restore()
        if self._unscale():
            self._descend(notes)
        return loss

    def _descend(self, notes: Notes) -> None:
        """The step of the base, with the gradients at hand."""
        self.base.step()


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

    not_negative = ("rho", "eta")

    def __init__(
        self,
        params: Iterable[Any],
        base: type[Optimizer] = SGD,
        *,
        rho: float = 0.5,
        eta: float = 0.01,
        **options: Any,
    ) -> None:
        self._set_up(params, base, {"rho": rho, "eta": eta, "adaptive": True}, options)

    def _metric(self, p: Tensor, group: dict[str, Any]) -> Tensor | float:
        return p.abs() + group["eta"] if group["adaptive"] else 1.0


def norms_only(model: nn.Module) -> list[dict[str, Any]]:
    """Two groups of a model's parameters, with which SAM perturbs normalisation layers alone.

    Mueller et al., NeurIPS 2023 (SAM-ON): scales and shifts of normalisations are a thousandth of
    the weights, and SAM on them alone is at least as good. All parameters are trained. Works for
    SAM and all its kin: ``ASAM(norms_only(model), SGD, rho=1.0, lr=0.1)``.

    A normalisation is any module whose class has "norm" in its name, and parameters itself.
    """
    norms = [m for m in model.modules() if "norm" in type(m).__name__.lower()]
    scales = list(dict.fromkeys(p for m in norms for p in m.parameters(recurse=False)))
    if not scales:
        raise InputError(
            "the model has no normalisation layer with weights, and there is nothing to perturb; "
            "use SAM on all parameters"
        )
    chosen = {id(p) for p in scales}
    rest = [p for p in model.parameters() if id(p) not in chosen]
    groups: list[dict[str, Any]] = [{"params": scales}, {"params": rest, "perturbed": False}]
    return groups if rest else groups[:1]


def norm_of(tensors: list[Tensor]) -> Tensor:
    """The norm of all together, in at least single precision; of sparse ones too."""
    parts = [t.coalesce().values() if t.is_sparse else t for t in tensors]
    norms = [
        torch.linalg.vector_norm(t, dtype=torch.promote_types(t.dtype, torch.float32))
        for t in parts
    ]
    return torch.stack([n.to(norms[0]) for n in norms]).norm() if norms else torch.zeros(())
