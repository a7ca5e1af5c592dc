"""Replicated SGD: several networks that attract each other meet in wide valleys."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, Optimizer

from lowland.errors import InputError
from lowland.optim.around import Around, Closure


class ReplicatedSGD(Around):
    """Baldassi et al., PNAS 113, 2016: minimise ``sum_a L(w_a) + gamma/2 sum_a |w_a - mean|^2``.

    Every step adds ``gamma (w_a - mean)`` to the gradient of replica a; ``scoping`` raises gamma by
    the factor ``1 + scoping``, until the replicas agree. Compute the sum of the replicas' losses,
    each on a batch of its own if you like, and take ``mean_weights`` at the end. Clipping and a
    ``GradScaler`` see the gradients of the losses only, before the attraction.

    Args:
        replicas: the parameters of each, in one order: ``[m.parameters() for m in models]``; or the
            groups of each, alike but for the parameters.
        base: a class of ``torch.optim``.
        gamma: the strength of the attraction; a group may have its own.
        scoping: how much it grows at each step; a group may have its own.
        options: those of the base.
    """

    not_negative = ("gamma",)

    def __init__(
        self,
        replicas: Sequence[Iterable[Tensor] | Iterable[dict[str, Any]]],
        base: type[Optimizer] = SGD,
        *,
        gamma: float = 0.01,
        scoping: float = 1e-3,
        **options: Any,
    ) -> None:
        groups = [_groups(replica) for replica in replicas]
        self.count = len(groups)
        if self.count < 2:
            raise InputError(f"replicas must be at least two; got {self.count}")
        numbers = [len(own) for own in groups]
        if len(set(numbers)) > 1:
            raise InputError(f"replicas must have the same number of groups; got {numbers}")
        shared = _shared(groups)
        if shared is not None:
            raise InputError(
                f"replicas must be different tensors; one of shape {tuple(shared.shape)} is in two"
                " places: copy the model, by copy.deepcopy"
            )
        together = [_together(same) for same in zip(*groups, strict=True)]
        super().__init__(together, base, {"gamma": gamma, "scoping": scoping}, options)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add the parameters of all replicas, one replica after the other."""
        params = list(param_group["params"])
        shapes = [[tuple(p.shape) for p in replica] for replica in self._split(params)]
        if len(params) % self.count or any(own != shapes[0] for own in shapes):
            raise InputError(
                f"replicas must have the same parameters in the same order; got shapes {shapes}"
            )
        super().add_param_group({**param_group, "params": params})

    def _split(self, params: list[Tensor]) -> list[list[Tensor]]:
        size = len(params) // self.count
        return [params[a * size : (a + 1) * size] for a in range(self.count)]

    @property
    def replicas(self) -> list[list[Tensor]]:
        """The parameters of each, group after group."""
        parts = [self._split(group["params"]) for group in self.param_groups]
        return [[p for part in replica for p in part] for replica in zip(*parts, strict=True)]

    @torch.no_grad()
    def mean_weights(self) -> list[Tensor]:
        """The centre of the replicas, parameter by parameter, in the order of ``replicas``."""
        return [torch.stack(same).mean(0) for same in zip(*self.replicas, strict=True)]

    def step(self, closure: Closure | None = None) -> Any:
        """One step of all replicas."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._attract()
        self.base.step()
        for group in self.param_groups:
            group["gamma"] *= 1 + group["scoping"]
        return loss

    @torch.no_grad()
    def _attract(self) -> None:
        for group in self.param_groups:
            for same in zip(*self._split(group["params"]), strict=True):
                centre = torch.stack(same).mean(0)
                for p in same:
                    if p.grad is not None:
                        p.grad.add_(p - centre, alpha=group["gamma"])


def _groups(replica: Iterable[Any]) -> list[dict[str, Any]]:
    """The groups of a replica, which may be one list of parameters."""
    parts = list(replica)
    groups = parts if parts and isinstance(parts[0], dict) else [{"params": parts}]
    groups = [{**group, "params": list(group["params"])} for group in groups]
    for p in (p for group in groups for p in group["params"]):
        if not isinstance(p, Tensor):
            raise InputError(
                "replicas must be the parameters of each: [m.parameters() for m in models]; got "
                f"{type(p).__name__} among them"
            )
    return groups


def _shared(replicas: list[list[dict[str, Any]]]) -> Tensor | None:
    """A parameter that is there twice."""
    seen: set[int] = set()
    for p in (p for groups in replicas for group in groups for p in group["params"]):
        if id(p) in seen:
            return p
        seen.add(id(p))
    return None


def _together(same: tuple[dict[str, Any], ...]) -> dict[str, Any]:
    """The groups of all replicas that belong together, as one."""
    options = [{k: v for k, v in group.items() if k != "params"} for group in same]
    for other in options[1:]:
        if other != options[0]:
            raise InputError(
                f"groups of replicas must have the same options; got {options[0]} and {other}"
            )
    return {**options[0], "params": [p for group in same for p in group["params"]]}
