"""Gradients away from the weights, and the way back."""

import sys
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.utils.hooks import RemovableHandle

from lowland.errors import InputError
from lowland.optim.around import Around, Closure


class Excursion:
    """The values of weights and running averages before they were moved, to put them back.

    A pass away from the weights sees a model that nobody will keep, so its activations must leave
    no trace in the running averages of batch normalisation. An optimiser does not know the model: a
    hook on all modules finds those that hold any of its parameters, and keeps their averages. They
    are put back only at the end, since backward passes still need them as they are.
    """

    def __init__(self, own: Callable[[], set[int]]) -> None:
        self.steps = 0
        self.notes: dict[Tensor, Tensor] = {}  # what the optimiser keeps for each weight on the way
        self.cleared = False  # whether zero_grad was called
        self._own = own
        self._weights: dict[Tensor, Tensor] = {}
        self._averages: list[tuple[Tensor, Tensor]] = []
        self._seen: set[nn.Module] = set()
        self._handle: RemovableHandle | None = None

    def start_of(self, p: Tensor) -> Tensor:
        """The value of a weight before it was moved, which is noted when it is first asked for."""
        if p not in self._weights:
            self._weights[p] = p.detach().clone()
        return self._weights[p]

    def advance(self, *, averages: bool = True) -> None:
        """Count a step; from here on running averages are noted, to be put back, if asked for."""
        self.steps += 1
        if averages and self._handle is None:
            self._handle = self._hook()

    def end(self, *, put_back: bool) -> None:
        """Forget the noted values, after putting them back if that is asked for."""
        if self._handle is not None:
            self._handle.remove()
            self._handle = None
        if put_back:
            with torch.no_grad():
                for value, before in [*self._weights.items(), *self._averages]:
                    value.copy_(before)
        self.steps = 0
        self.notes.clear()
        self._weights.clear()
        self._averages.clear()
        self._seen.clear()

    def _hook(self) -> RemovableHandle:
        # Weak, so that an optimiser that is dropped on the way takes its hook along.
        reference = weakref.ref(self, lambda _: handle.remove())

        def keep(module: nn.Module, args: Any) -> None:
            excursion = reference()
            if excursion is not None:  # it may go while torch is on its way through the hooks
                excursion._keep(module)

        if _something_is_compiled():  # which would trace the hook, and not always can
            keep = torch.compiler.disable(keep)
        handle: RemovableHandle = register_module_forward_pre_hook(keep)
        return handle

    def _keep(self, module: nn.Module) -> None:
        if module in self._seen or self._own().isdisjoint(id(p) for p in module.parameters()):
            return
        for part in set(module.modules()) - self._seen:
            self._seen.add(part)
            if isinstance(part, _NormBase):
                self._averages += [(b, b.clone()) for b in part.buffers(recurse=False)]
        if _something_is_compiled() and self._handle is not None and self._all_is_seen():
            self._handle.remove()  # a hook would break the graph at every part of the model

    def _all_is_seen(self) -> bool:
        seen = {id(p) for part in self._seen for p in part.parameters(recurse=False)}
        return self._own() <= seen


def _something_is_compiled() -> bool:
    """Whether torch.compile was used; asking it would load its compiler, which takes seconds."""
    return "torch._dynamo" in sys.modules


class Exploring(Around):
    """Computes gradients away from the weights, and comes back for the base's step.

    What is under way is changed in place only: wrappers such as Lightning's share it.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._excursion = Excursion(self._own_ids)

    def _own_ids(self) -> set[int]:
        return {id(p) for group in self.param_groups for p in group["params"]}

    def restore(self) -> None:
        """Put weights and running averages back without a step, for instance after an error."""
        self._excursion.end(put_back=True)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear all gradients."""
        self._excursion.cleared = True
        super().zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        """The state of the base, with all groups; only while the weights are in their place."""
        if self._excursion.steps:
            raise InputError("the weights are away from their place: save after step or restore")
        return super().state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a saved state; what was under way is forgotten."""
        self._excursion.end(put_back=False)
        super().load_state_dict(state_dict)

    def _call(self, closure: Closure) -> Any:
        """The loss, after a closure that must not add its gradients to those it finds."""
        before = [(p, g) for p, g, _ in self._with_gradients()]
        self._excursion.cleared = False
        with torch.enable_grad():
            loss = closure()
        if not self._excursion.cleared and any(p.grad is g for p, g in before):
            raise InputError(
                "the closure must clear gradients with zero_grad, as it is called at several"
                " points; to accumulate gradients over batches, use the form without a closure"
            )
        return loss

    @torch.no_grad()
    def _unscale(self) -> bool:
        """Take the factor of a GradScaler out of the gradients; whether they are finite."""
        factor = getattr(self, "grad_scale", None)
        if factor is not None:
            for _, g, _ in self._with_gradients():
                g.div_(factor.to(g.device))
        return not getattr(self, "found_inf", False)
