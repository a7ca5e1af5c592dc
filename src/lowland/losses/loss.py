"""What a loss is to the rest of Lowland: one number per sample, and what may be asked about it."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from lowland.errors import InputError

# What a user's function may raise when outputs and targets do not fit each other.
_MISFITS = (RuntimeError, ValueError, TypeError, IndexError, AssertionError)


class Loss(ABC):
    """One loss per sample.

    Whatever depends on which loss it is, is asked here; no other room compares names of losses. A
    subclass says how the losses are computed, and as much of the rest as it knows.
    """

    name: str
    unit: str | None = None  # what the loss, and so the gap, is counted in: "nats" or unknown
    needs_model = False  # computed from the model itself and not from its outputs
    separate = True  # known to compare each sample with its own target only
    classes = False  # targets are class labels, or shares of classes
    weighted = False  # classes have weights, so that it depends on all training labels
    is_softmax = False  # softmax cross-entropy of one label per sample, with nothing added to it

    @abstractmethod
    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The losses of a batch, (n,)."""

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The losses of a batch, (n,); an error in words where they cannot be computed."""
        try:
            losses = self.losses(outputs, targets)
        except InputError:
            raise
        except _MISFITS as error:
            raise InputError(
                f"loss {self.name!r} cannot compare outputs of shape {tuple(outputs.shape)} "
                f"({outputs.dtype}) with targets of shape {tuple(targets.shape)} "
                f"({targets.dtype}): {error}"
            ) from error
        return self.one_per_sample(losses, len(targets))

    def one_per_sample(self, losses: Any, count: int) -> Tensor:
        """The losses as they are; an error if they are not one number for each sample."""
        if not isinstance(losses, Tensor) or losses.shape != (count,):
            came = tuple(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
            raise InputError(
                f"loss {self.name!r} must return one loss per sample, shape ({count},), but "
                f"returned {came}; use reduction='none' and average over everything but the batch"
            )
        return losses

    def on(self, targets: Tensor) -> "Loss":
        """The loss for training data with these targets: weights of classes depend on them."""
        return self

    def check(self, outputs: Tensor, targets: Tensor, every: Mapping[str, Tensor]) -> None:
        """Raise an error if the loss does not fit outputs and targets of a few samples.

        ``every`` has all targets by split: none of them may be one that cannot be compared.
        """
        self(outputs, targets)

    def second(self, outputs: Tensor, targets: Tensor) -> Tensor | None:
        """``d2l/dz2`` (n, C, C) in closed form, or None where there is none."""
        return None

    def fisher(self, outputs: Tensor) -> Tensor:
        """``E[g g^T]`` (n, C, C), g = dl/dz, over targets that the model itself would draw."""
        raise InputError(
            "the true Fisher matrix needs to know how the model draws targets, which the loss "
            f"{self.name!r} does not tell"
        )

    def seen(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The numbers of each sample's outputs that its loss depends on, (n, D).

        They are linear in the outputs. Where two outputs agree in them, no target tells them apart.
        """
        return outputs.reshape(len(outputs), -1)

    def flat(self, outputs: Tensor) -> str | None:
        """Why the loss has no curvature at all for such outputs, or None where it has."""
        return None

    def constant_shape(self, outputs: Tensor, targets: Tensor) -> tuple[int, ...]:
        """The shape, beside the samples, of a prediction that is the same everywhere."""
        return tuple(outputs.shape[1:])

    def has_errors(self, targets: Tensor) -> bool:
        """Whether a prediction of such targets is either right or wrong."""
        return False

    def wrong(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The share of each sample's predictions that are wrong, (n,), in float64."""
        raise InputError(f"a classification error needs class labels; the loss is {self.name!r}")

    def totals(
        self, outputs: Tensor, targets: Tensor, errors: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Sums over the samples of many models' losses and, if asked, of ``wrong``; each (k,).

        ``outputs`` are (k, n, ...), ``targets`` (n, ...): the models see the same samples.
        """
        k = len(outputs)
        outputs = outputs.flatten(0, 1)
        if k > 1:
            targets = targets.repeat(k, *[1] * (targets.ndim - 1))
        losses = self(outputs, targets).double().view(k, -1).sum(1)
        return losses, self.wrong(outputs, targets).view(k, -1).sum(1) if errors else None


class OwnLoss(Loss):
    """A function of the user's: nothing is known of it but the losses that it returns."""

    separate = False

    def __init__(self, function: Callable[[Tensor, Tensor], Tensor]) -> None:
        self.name, self.function = own_name(function), function

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """What the function returns."""
        return self.function(outputs, targets)


class ModelLoss(Loss):
    """A loss that runs the model itself: ``function(model, batch) -> (n,)``.

    For losses that need more than one pass, or gradients with respect to the inputs. ``model`` is
    the user's own, with the weights that are asked for in place; ``batch`` has ``inputs`` and
    ``targets``. Every sample's loss must depend on that sample alone. What is computed from a
    model's outputs (exact layers, GGN, classification errors, the duality) does not apply.

    >>> @ModelLoss
    ... def steepness(model, batch):
    ...     x = batch.inputs.detach().requires_grad_()
    ...     losses = torch.nn.functional.cross_entropy(model(x), batch.targets, reduction="none")
    ...     (slope,) = torch.autograd.grad(losses.sum(), x, create_graph=True)
    ...     return losses + slope.square().flatten(1).sum(1)
    """

    needs_model = True
    separate = False

    def __init__(self, function: Callable[[Any, Any], Tensor]) -> None:
        self.name, self.function = own_name(function), function

    def of_model(self, model: Any, batch: Any) -> Tensor:
        """The losses of a batch, (n,)."""
        return self.one_per_sample(self.function(model, batch), len(batch))

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """An error: outputs alone do not tell such a loss."""
        raise InputError(
            f"loss {self.name!r} is computed from the model itself and not from its outputs, "
            "which this needs"
        )


def own_name(function: Any) -> str:
    """``module:name`` of a user's function, as the command line has it: never a name of ours."""
    kind = function if hasattr(function, "__qualname__") else type(function)
    return f"{kind.__module__}:{kind.__qualname__}"


def summed_fisher(loss: Loss, outputs: Tensor, candidates: Sequence[Tensor]) -> Tensor:
    """The sum over all targets that can be drawn of ``p g g^T`` with ``p = exp(-loss)``."""
    leaf = outputs.detach().requires_grad_()
    losses = [loss(leaf, targets) for targets in candidates]
    p = torch.stack(losses, 1).detach().neg().exp()  # (n, candidates)
    if not torch.allclose(p.sum(1), torch.ones_like(p[:, 0]), atol=1e-3):
        raise InputError(
            f"the true Fisher matrix needs a loss that is minus the log of a probability; the "
            f"probabilities exp(-loss) of {loss.name!r} do not add up to 1"
        )
    gradients = [torch.autograd.grad(each.sum(), leaf, retain_graph=True)[0] for each in losses]
    g = torch.stack(gradients, 1).view(*p.shape, -1)  # (n, candidates, C)
    return torch.einsum("nc,nco,ncp->nop", p, g, g)
