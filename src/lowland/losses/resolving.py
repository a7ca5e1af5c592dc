"""A loss from whatever the user passes: a name, a module of torch's, or a function."""

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lowland.errors import InputError
from lowland.losses.classes import ClassLoss, NormalizedCrossEntropy, cross_entropy
from lowland.losses.elementwise import BinaryLoss, ElementwiseLoss, SquaredError
from lowland.losses.loss import Loss, OwnLoss, own_name
from lowland.wording import suggestion

LossLike = str | nn.Module | Callable[[Tensor, Tensor], Tensor] | Loss

# One object for each name: what two measures compute with the same loss is computed once.
_NAMED: dict[str, Loss] = {
    loss.name: loss
    for loss in (
        cross_entropy(),
        SquaredError(),
        NormalizedCrossEntropy(),
        cross_entropy().placed(next_token=True),
    )
}

# What others call these losses.
_SYNONYMS = {
    "ce": "cross_entropy",
    "crossentropyloss": "cross_entropy",
    "nll": "cross_entropy",
    "softmax": "cross_entropy",
    "l2": "mse",
    "mean_squared_error": "mse",
    "mseloss": "mse",
    "squared_error": "mse",
}

_WRITE = "write a function (outputs, targets) -> (n,) of your own"
_REFUSED = {
    nn.GaussianNLLLoss: f"takes the variance as a third argument; {_WRITE} that splits the outputs "
    "into mean and variance",
    nn.CTCLoss: f"takes the lengths of inputs and targets as well; {_WRITE}",
    nn.CosineEmbeddingLoss: f"compares two outputs; {_WRITE}",
    nn.MarginRankingLoss: f"compares two outputs; {_WRITE}",
    nn.TripletMarginLoss: f"compares three outputs; {_WRITE}",
    nn.TripletMarginWithDistanceLoss: f"compares three outputs; {_WRITE}",
    nn.MultiLabelMarginLoss: f"cannot be differentiated twice; use BCEWithLogitsLoss, or {_WRITE}",
    nn.AdaptiveLogSoftmaxWithLoss: "has weights of its own, which belong to the model; make it the "
    "model's last layer (log_prob), with NLLLoss",
}


def resolve(loss: LossLike) -> Loss:
    """A :class:`Loss` from a name, a torch loss module or any per-sample callable."""
    if isinstance(loss, Loss):
        return loss
    if isinstance(loss, str):
        if loss not in _NAMED:
            hint = suggestion(loss, _NAMED, _SYNONYMS)
            raise InputError(
                f"no loss named {loss!r}; there are {', '.join(_NAMED)}{hint and f'; {hint}'}"
            )
        return _NAMED[loss]
    if isinstance(loss, type):
        raise InputError(f"loss is the class {loss.__name__}; pass an object, {loss.__name__}()")
    if isinstance(loss, nn.Module):
        return _of_module(loss)
    if callable(loss):
        return OwnLoss(loss)
    raise InputError(
        "loss must be a name, a torch loss module or a callable (outputs, targets) -> (N,) losses; "
        f"got {type(loss).__name__}"
    )


def _of_module(module: Any) -> Loss:
    """The loss that a module computes, one for each sample."""
    kind = type(module)
    if kind in _REFUSED:
        raise InputError(f"loss {kind.__name__} {_REFUSED[kind]}")
    if getattr(module, "reduction", None) == "sum":
        raise InputError(
            f"loss {kind.__name__} has reduction='sum', which grows with the number of samples; "
            "curvature is that of their mean: use reduction='mean'"
        )
    if kind not in _PLAIN:
        return OwnModule(module) if hasattr(module, "reduction") else OwnLoss(module)
    options = _options(module)
    name = f"{kind.__name__}({', '.join(f'{k}={v}' for k, v in options.items())})"
    options.pop("reduction", None)
    if kind is nn.CrossEntropyLoss and not options:
        return _NAMED["cross_entropy"]
    return _PLAIN[kind](name, module)


def _options(module: nn.Module) -> dict[str, Any]:
    """The options of a module of torch's that are not the default, with its buffers."""
    default = vars(type(module)())
    options = {
        key: value
        for key, value in vars(module).items()
        if not key.startswith("_") and key != "training" and value != default[key]
    }
    for key, value in module.named_buffers():
        options[key] = value.tolist() if value.numel() <= 10 else f"{value.numel()} numbers"
    return options


class OwnModule(OwnLoss):
    """A module that torch does not have but that takes a ``reduction``, as torch's do.

    Without its reduction it must give what it gives with it: their mean is compared.
    """

    def __init__(self, module: Any) -> None:
        self.name, self.module = own_name(module), module
        self.function = _unreduced(module)

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The losses of a batch, (n,): averaged over everything but the samples."""
        losses = self.function(outputs, targets)
        return losses.flatten(1).mean(1) if losses.ndim > 1 else losses

    def check(self, outputs: Tensor, targets: Tensor, every: Mapping[str, Tensor]) -> None:
        """An error unless the mean of the samples' losses is what the module itself returns."""
        mean = self(outputs, targets).mean()
        if self.module.reduction == "none":
            return
        own = self.module(outputs, targets)
        if own.ndim > 0 or not torch.allclose(own, mean, rtol=1e-4, atol=1e-6):
            raise InputError(
                f"loss {self.name!r} returns {float(own.mean()):.6g} for {len(outputs)} samples, "
                f"but the mean of its losses with reduction='none' is {float(mean):.6g}; {_WRITE}"
            )


def _unreduced(module: Any) -> Any:
    """A copy of a loss module that returns losses as they are."""
    copied = copy.deepcopy(module)
    copied.reduction = "none"
    return copied


def _weight(module: Any) -> Tensor | None:
    return None if module.weight is None else module.weight.detach().clone()


def _cross_entropy(name: str, module: nn.CrossEntropyLoss) -> Loss:
    weight, smoothing = _weight(module), module.label_smoothing

    def rows(scores: Tensor, labels: Tensor) -> Tensor:
        w = None if weight is None else weight.to(scores)
        return F.cross_entropy(scores, labels, w, label_smoothing=smoothing, reduction="none")

    return ClassLoss(name, rows, weight=weight, ignored=module.ignore_index, unit="nats")


def _nll(name: str, module: nn.NLLLoss) -> Loss:
    weight = _weight(module)

    def rows(scores: Tensor, labels: Tensor) -> Tensor:
        w = None if weight is None else weight.to(scores)
        return F.nll_loss(scores, labels, w, reduction="none")

    ignored = module.ignore_index
    return ClassLoss(name, rows, weight=weight, ignored=ignored, unit="nats", shift_free=False)


def _multi_margin(name: str, module: nn.MultiMarginLoss) -> Loss:
    weight, p, margin = _weight(module), module.p, module.margin

    def rows(scores: Tensor, labels: Tensor) -> Tensor:
        """The losses by plain operations: torch's own cannot be differentiated twice."""
        own = labels.unsqueeze(1)
        excess = (margin - scores.gather(1, own) + scores).clamp_min(0) ** p
        losses = excess.scatter(1, own, 0).sum(1) / scores.shape[1]
        return losses if weight is None else losses * weight.to(scores)[labels]

    return ClassLoss(name, rows)  # torch divides by the number of samples, weights or not


def _elementwise(name: str, module: Any) -> Loss:
    return ElementwiseLoss(name, _unreduced(module), summed=module.reduction == "batchmean")


def _logits(name: str, module: Any) -> Loss:
    """The loss of BCEWithLogitsLoss or MultiLabelSoftMarginLoss, which is its mean over labels."""
    weight = _weight(module)
    positive = copy.deepcopy(getattr(module, "pos_weight", None))

    def elements(outputs: Tensor, targets: Tensor) -> Tensor:
        w, yes = (t if t is None else t.to(outputs) for t in (weight, positive))
        return F.binary_cross_entropy_with_logits(
            outputs, targets, w, pos_weight=yes, reduction="none"
        )

    return BinaryLoss(name, elements, weights=(weight, positive), unit="nats")


def _probabilities(name: str, module: nn.BCELoss) -> Loss:
    weight = _weight(module)

    def elements(outputs: Tensor, targets: Tensor) -> Tensor:
        w = None if weight is None else weight.to(outputs)
        return F.binary_cross_entropy(outputs, targets, w, reduction="none")

    return BinaryLoss(name, elements, threshold=0.5, weights=(weight,), unit="nats")


def _soft_margin(name: str, module: nn.SoftMarginLoss) -> Loss:
    return BinaryLoss(name, _unreduced(module), signed=True, unit="nats")


# What is known of torch's own modules; subclasses may compute something else.
_PLAIN: dict[type, Callable[[str, Any], Loss]] = {
    nn.CrossEntropyLoss: _cross_entropy,
    nn.NLLLoss: _nll,
    nn.MultiMarginLoss: _multi_margin,
    nn.BCEWithLogitsLoss: _logits,
    nn.MultiLabelSoftMarginLoss: _logits,
    nn.BCELoss: _probabilities,
    nn.SoftMarginLoss: _soft_margin,
    nn.L1Loss: _elementwise,
    nn.SmoothL1Loss: _elementwise,
    nn.HuberLoss: _elementwise,
    nn.PoissonNLLLoss: _elementwise,
    nn.HingeEmbeddingLoss: _elementwise,
    nn.KLDivLoss: _elementwise,
    nn.MSELoss: lambda name, module: _NAMED["mse"],
}
