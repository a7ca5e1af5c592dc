"""An optimiser around another one: they share parameter groups and state."""

import inspect
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from torch import Tensor
from torch.optim import LBFGS, Optimizer

from lowland.errors import InputError

Closure = Callable[[], Any]


class Around(Optimizer):
    """Changes gradients or weights, then lets the base optimiser take the step.

    Parameter groups and state are the base's own, the very objects, whichever of the two is asked,
    scheduled or loaded; what the outer one needs stands in the same groups.
    """

    not_negative: tuple[str, ...] = ()  # options of the outer one

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
        del self._first_groups
        self.defaults = {**self.base.defaults, **own}  # schedulers look for momentum or betas here

    # Until there is a base, torch's constructor fills lists of its own.
    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The groups of the base."""
        return self.base.param_groups if "base" in self.__dict__ else self._first_groups

    @param_groups.setter
    def param_groups(self, groups: list[dict[str, Any]]) -> None:
        if "base" in self.__dict__:
            self.base.param_groups = groups
        else:
            self._first_groups = groups

    @property
    def state(self) -> Any:
        """The state of the base."""
        return self.base.state if "base" in self.__dict__ else {}

    @state.setter
    def state(self, state: Any) -> None:
        if "base" in self.__dict__:
            self.base.state = state

    def __getstate__(self) -> dict[str, Any]:
        # All of it, for copies and pickles; but a scheduler's wrapper around step stays here.
        return {name: value for name, value in self.__dict__.items() if name != "step"}

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters, with options of their own where they differ."""
        for name in self.not_negative:
            check_not_negative(name, param_group.get(name, self.defaults[name]))
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

    def _with_gradients(self) -> Iterator[tuple[Tensor, Tensor, dict[str, Any]]]:
        """Every parameter that has a gradient, with it and its group."""
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    yield p, p.grad, group


def check_not_negative(name: str, value: Any) -> None:
    """An error unless an option is a finite number, and not negative."""
    try:
        if 0 <= value < math.inf:
            return
    except TypeError:
        pass
    raise InputError(f"{name} must be a number and must not be negative; got {value!r}")


def check_count(name: str, value: Any) -> None:
    """An error unless an option is a whole number, and at least one."""
    if not (isinstance(value, int) and value >= 1):
        raise InputError(f"{name} must be at least 1, and a whole number; got {value!r}")
