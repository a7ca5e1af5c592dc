"""The average of the weights on the way, which lies deeper in a valley than any of them."""

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from lowland.errors import InputError


class WeightAverage:
    """The running mean of an optimiser's weights; around SAM it is WASAM (Kaddour et al., 2022).

    Without ``decay`` all weights count alike: stochastic weight averaging (SWA; Izmailov et al.,
    UAI 2018); call ``update`` at the end of every epoch or cycle from, say, three quarters of the
    training on. With ``decay`` the mean is exponential (EMA), ``mean <- decay mean + (1 - decay)
    w``, from the weights at hand; call ``update`` after every step. ::

        with average.in_place():  # the model has the averaged weights here
            torch.optim.swa_utils.update_bn(loader, model)
            torch.save(model.state_dict(), "average.pt")

    Running statistics of BatchNorm belong to the weights that they were taken with: a model with
    them needs ``update_bn`` for the averaged ones. The mean is kept in single precision at least:
    in half precision a small share of the way would be rounded off.

    Args:
        of: an optimiser, or parameters.
        decay: of the exponential mean; None for the plain one.
    """

    def __init__(self, of: Optimizer | Iterable[Tensor], decay: float | None = None) -> None:
        if decay is not None and not 0 <= decay < 1:
            raise InputError(f"decay must be at least 0 and below 1; got {decay}")
        if isinstance(of, Optimizer):
            of = [p for group in of.param_groups for p in group["params"]]
        self.params, self.decay, self.updates = _tensors(of), decay, 0
        self.weights = [
            p.detach().to(torch.promote_types(p.dtype, torch.float32), copy=True)
            for p in self.params
        ]

    @torch.no_grad()
    def update(self) -> None:
        """Take the weights as they are now into the mean."""
        self.updates += 1
        share = 1 / self.updates if self.decay is None else 1 - self.decay
        for mean, p in zip(self.weights, self.params, strict=True):
            mean.lerp_(p.to(mean), share)

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """Put the averaged weights into the model within the block."""
        before = [p.detach().clone() for p in self.params]
        try:
            self._put(self.weights)
            yield
        finally:
            self._put(before)

    @torch.no_grad()
    def _put(self, values: list[Tensor]) -> None:
        for p, value in zip(self.params, values, strict=True):
            p.copy_(value)

    def state_dict(self) -> dict[str, Any]:
        """The mean and how many weights are in it."""
        return {"weights": self.weights, "updates": self.updates, "decay": self.decay}

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with a saved mean."""
        shapes = [[tuple(t.shape) for t in part] for part in (self.weights, state["weights"])]
        if shapes[0] != shapes[1]:
            raise InputError(
                f"the saved mean is of other parameters: shapes {shapes[1]}, not {shapes[0]}"
            )
        for mean, value in zip(self.weights, state["weights"], strict=True):
            mean.copy_(value)
        self.updates, self.decay = state["updates"], state["decay"]


def _tensors(of: Any) -> list[Tensor]:
    """The parameters as a list; an error if they are none."""
    tensors = list(of) if isinstance(of, Iterable) else [of]
    if not tensors or not all(isinstance(t, Tensor) for t in tensors):
        raise InputError(
            f"a mean is of an optimizer or of parameters, such as model.parameters(); got {of!r}"
        )
    return tensors
