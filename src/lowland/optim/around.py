"""An optimiser around another one: they share parameter groups and state."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from lowland.errors import InputError

Closure = Callable[[], Any]


class Around(Optimizer):
    """Changes gradients or weights, then lets the base optimiser take the step.

    Parameter groups are the base's own, so that schedulers, clipping and ``state_dict`` see one
    optimiser; what the outer one needs stands in the same groups.
    """

    def __init__(
        self,
        params: Iterable[Any],
        base: type[Optimizer],
        own: dict[str, float],
        options: dict[str, Any],
    ) -> None:
        if not (isinstance(base, type) and issubclass(base, Optimizer)):
            raise InputError(f"base must be a class of torch.optim, such as SGD; got {base!r}")
        super().__init__(params, {**own, **options})
        self.base = base(self.param_groups, **options)
        self._share()

    def _share(self) -> None:
        self.param_groups = self.base.param_groups
        self.state = self.base.state

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters, with options of their own where they differ."""
        if "base" in self.__dict__:  # made before the base, and only added to it afterwards
            self.base.add_param_group({**self.defaults, **param_group})
        else:
            super().add_param_group(param_group)

    def state_dict(self) -> dict[str, Any]:
        """The base's state, with all groups."""
        return self.base.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a saved state."""
        self.base.load_state_dict(state_dict)
        self._share()

    def _with_gradients(self) -> Iterator[tuple[Tensor, Tensor, dict[str, Any]]]:
        """Every parameter that has a gradient, with it and its group."""
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    yield p, p.grad, group


class KeptStatistics:
    """While it is on, running averages of batch normalisation are kept, to be put back at the end.

    The perturbed pass sees weights that nobody will keep, so its activations must leave no trace
    in the running averages. An optimiser does not know the model: a hook on all modules finds the
    normalisations whose parameters are its own, or that have none. Buffers are put back only after
    the backward pass, which still needs them as they were.
    """

    def __init__(self, own: Callable[[], set[int]]) -> None:
        self._own = own
        self._handle: RemovableHandle | None = None
        self._kept: dict[nn.Module, list[tuple[Tensor, Tensor]]] = {}

    @property
    def active(self) -> bool:
        """Whether it is on."""
        return self._handle is not None

    def on(self) -> None:
        """Start."""
        if self._handle is None:
            self._handle = register_module_forward_pre_hook(self._keep)

    def off(self) -> None:
        """Stop, and put back what was there."""
        if self._handle is not None:
            self._handle.remove()
            self._handle = None
        with torch.no_grad():
            for buffers in self._kept.values():
                for buffer, before in buffers:
                    buffer.copy_(before)
        self._kept = {}

    def _keep(self, module: nn.Module, args: Any) -> None:
        if not isinstance(module, _NormBase) or not module.training or module in self._kept:
            return
        if {id(p) for p in module.parameters(recurse=False)} <= self._own():
            self._kept[module] = [(b, b.clone()) for b in module.buffers(recurse=False)]
