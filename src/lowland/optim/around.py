"""An optimiser around another one: they share parameter groups and state."""

import inspect
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from torch import Tensor
from torch.optim import LBFGS, Optimizer

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
        own: dict[str, Any],
        options: dict[str, Any],
    ) -> None:
        if not (isinstance(base, type) and issubclass(base, Optimizer)):
            raise InputError(f"base must be a class of torch.optim, such as SGD; got {base!r}")
        if issubclass(base, LBFGS):
            raise InputError("base must step with the gradients it finds; LBFGS computes its own")
        both = own.keys() & inspect.signature(base).parameters.keys()
        if both:
            raise InputError(
                f"{base.__name__} cannot be the base: its option {min(both)!r} means something else"
                f" in {type(self).__name__}; use another base"
            )
        super().__init__(params, {**own, **options})
        self.base = base(self.param_groups, **options)
        self.defaults = {**self.base.defaults, **own}  # schedulers look for momentum or betas here
        self._share()

    def _share(self) -> None:
        self.param_groups = self.base.param_groups
        self.state = self.base.state

    def __getstate__(self) -> dict[str, Any]:
        # All of it, for copies and pickles; but a scheduler's wrapper around step stays here.
        return {name: value for name, value in self.__dict__.items() if name != "step"}

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
