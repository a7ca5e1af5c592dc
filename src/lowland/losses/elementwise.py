"""Losses that compare each output with a target of its own, averaged over a sample's outputs."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from lowland.errors import InputError
from lowland.losses.loss import Loss, summed_fisher


class ElementwiseLoss(Loss):
    """The mean over a sample's outputs of a function of each output and its target.

    Args:
        name: what it is called.
        elements: from outputs and targets of one shape to losses of that shape.
        summed: the sum over a sample's outputs instead (``KLDivLoss("batchmean")``).
        weights: of torch's, for each output; they may not differ between samples.
        unit: what it is counted in.
    """

    def __init__(
        self,
        name: str,
        elements: Callable[[Tensor, Tensor], Tensor],
        *,
        summed: bool = False,
        weights: tuple[Tensor | None, ...] = (),
        unit: str | None = None,
    ) -> None:
        self.name, self.elements, self.summed, self.unit = name, elements, summed, unit
        self.weights = [w for w in weights if w is not None]

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The losses of a batch, (n,): averaged, or summed, over everything but the samples."""
        self._check_weight(outputs)
        losses = self.elements(outputs, aligned(outputs, targets)).reshape(len(outputs), -1)
        return losses.sum(1) if self.summed else losses.mean(1)

    def _check_weight(self, outputs: Tensor) -> None:
        for w in self.weights:
            if w.numel() > 1 and w.ndim >= outputs.ndim and len(w) > 1:
                raise InputError(
                    f"loss {self.name!r} has a weight of shape {tuple(w.shape)}, one for each "
                    "sample of a batch; weights may differ between outputs, not between samples"
                )


class SquaredError(ElementwiseLoss):
    """``|z - y|^2 / C``, ``torch.nn.MSELoss()``."""

    def __init__(self) -> None:
        super().__init__("mse", lambda outputs, targets: (outputs - targets).square())

    def second(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """``d2l/dz2``, which is ``2/C`` on the diagonal."""
        n, C = len(outputs), outputs[0].numel()
        return (2 / C * torch.eye(C, dtype=outputs.dtype, device=outputs.device)).expand(n, C, C)

    def fisher(self, outputs: Tensor) -> Tensor:
        """``exp(-loss)`` is a Gaussian around z: E[g g^T] is its constant second derivative."""
        return self.second(outputs, outputs)


class BinaryLoss(ElementwiseLoss):
    """A loss of outputs that each say yes or no, for targets 0, 1, or a share between them.

    A prediction is "yes" above the ``threshold`` and wrong if the target says otherwise. Targets
    are -1 and 1 where ``signed``.
    """

    def __init__(
        self,
        name: str,
        elements: Callable[[Tensor, Tensor], Tensor],
        *,
        threshold: float = 0.0,
        signed: bool = False,
        weights: tuple[Tensor | None, ...] = (),
        unit: str | None = None,
    ) -> None:
        super().__init__(name, elements, weights=weights, unit=unit)
        self.threshold, self.low = threshold, -1.0 if signed else 0.0

    def check(self, outputs: Tensor, targets: Tensor, every: Mapping[str, Tensor]) -> None:
        """An error unless all targets lie between no and yes."""
        for split, all_targets in every.items():
            low, high = float(all_targets.min()), float(all_targets.max())
            if low < self.low or high > 1:
                raise InputError(
                    f"{split} targets run from {low:.3g} to {high:.3g}; loss {self.name!r} needs "
                    f"them between {self.low:g} and 1"
                )
        super().check(outputs, targets, every)

    def fisher(self, outputs: Tensor) -> Tensor:
        """``E[g g^T]`` as the sum over the answers no and yes; for one output only."""
        if outputs[0].numel() > 1:
            raise InputError(
                "the true Fisher matrix needs a loss that is minus the log of a probability, which "
                f"the mean of {self.name!r} over {outputs[0].numel()} outputs is not"
            )
        answers = (torch.full_like(outputs, self.low), torch.ones_like(outputs))
        return summed_fisher(self, outputs, answers)

    def has_errors(self, targets: Tensor) -> bool:
        """Whether every target is a plain no or yes."""
        return bool(((targets == self.low) | (targets == 1)).all())

    def wrong(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The share of a sample's outputs on the wrong side of the threshold."""
        if not self.has_errors(targets):
            raise InputError(
                f"a classification error needs targets that are {self.low:g} or 1; with loss "
                f"{self.name!r} some are shares between them"
            )
        missed = (outputs > self.threshold) != (aligned(outputs, targets) == 1)
        return missed.reshape(len(outputs), -1).double().mean(1)


def aligned(outputs: Tensor, targets: Tensor) -> Tensor:
    """The targets in the outputs' shape and type; torch would broadcast others without a word."""
    if targets.shape != outputs.shape and targets.ndim == outputs.ndim - 1:
        targets = targets.unsqueeze(-1)  # one output: (n,) targets mean (n, 1)
    if targets.shape != outputs.shape:
        raise ValueError("targets must have the outputs' shape")
    return targets.to(outputs.dtype)
