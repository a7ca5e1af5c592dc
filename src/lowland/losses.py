"""Per-sample losses: whatever the user names, as one function (outputs, targets) -> (N,)."""

import copy
import difflib
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lowland.errors import InputError


@dataclass(frozen=True)
class Loss:
    """One loss per sample, and whether its targets are class indices."""

    name: str
    function: Callable[[Tensor, Tensor], Tensor]
    classes: bool
    # d2l/dz2 (N, C, C) of outputs (N, C) and their targets, class labels if they are classes
    second: Callable[[Tensor, Tensor], Tensor] | None = None

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Losses of a batch, (N,)."""
        try:
            losses = self.function(outputs, targets)
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            raise InputError(
                f"loss {self.name!r} cannot compare outputs of shape {tuple(outputs.shape)} "
                f"({outputs.dtype}) with targets of shape {tuple(targets.shape)} "
                f"({targets.dtype}): {error}"
            ) from error
        if not isinstance(losses, Tensor) or losses.shape != outputs.shape[:1]:
            came = tuple(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
            raise InputError(
                f"loss {self.name!r} must return one loss per sample, shape ({len(outputs)},), but "
                f"returned {came}; use reduction='none' and average over everything but the batch"
            )
        return losses


def _per_sample(losses: Tensor) -> Tensor:
    """Average over every dimension but the first."""
    return losses.flatten(1).mean(1) if losses.ndim > 1 else losses


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Softmax cross-entropy of class indices; further positions of a sample are averaged."""
    return _per_sample(F.cross_entropy(outputs, targets, reduction="none"))


def mse(outputs: Tensor, targets: Tensor) -> Tensor:
    """Squared error, averaged over a sample's outputs (``torch.nn.MSELoss`` for one sample)."""
    if targets.shape != outputs.shape and targets.ndim == outputs.ndim - 1:
        targets = targets.unsqueeze(-1)  # one output: (N,) targets mean (N, 1)
    if targets.shape != outputs.shape:
        # torch would broadcast (N, 1) against (N,) to (N, N) without a word
        raise ValueError("targets must have the outputs' shape")
    return _per_sample((outputs - targets).square())


def normalized_cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy of logits divided by their own standard deviation (Tsuzuku et al., Eq. 20-22).

    It does not change when the last layer is scaled, so it measures the decision and not its
    confidence. The mean is subtracted as well: softmax ignores it. Constant logits are left
    as they are, which gives the uniform distribution.
    """
    centred = outputs - outputs.mean(1, keepdim=True)
    variance = centred.square().mean(1, keepdim=True)
    return cross_entropy(centred / torch.where(variance > 0, variance, 1).sqrt(), targets)


def _cross_entropy_second(outputs: Tensor, targets: Tensor) -> Tensor:
    """``diag(p) - p p^T``, whatever the label."""
    p = outputs.softmax(1)
    return torch.diag_embed(p) - _outer(p, p)


def _normalized_cross_entropy_second(outputs: Tensor, targets: Tensor) -> Tensor:
    """With ``u = sqrt(C) c / n``, c the centred logits and n their length, by the chain rule.

    ``U^T (diag(p) - p p^T) U`` with ``U = du/dz = sqrt(C)/n (I - e e^T)`` for centred vectors,
    ``e = c/n``, and the curvature of u itself along the gradient ``g = p - y``, for which

        sum_i g_i d2(c_i/n) = -(g e^T + e g^T + (g . e) (I - 3 e e^T)) / n^2
    """
    C = outputs.shape[1]
    c = outputs - outputs.mean(1, keepdim=True)
    n = c.norm(dim=1, keepdim=True)
    constant = (n == 0).squeeze(1)  # logits that are left as they are
    n = torch.where(n > 0, n, C**0.5)
    e, scale = c / n, (C**0.5 / n).unsqueeze(2)
    p = (C**0.5 * e).softmax(1)
    P = torch.eye(C, dtype=p.dtype, device=p.device) - 1 / C  # takes the mean away
    U = scale * (P - _outer(e, e))
    g = (p - F.one_hot(targets, C)) @ P
    along = (g * e).sum(1)[:, None, None]
    ge = _outer(g, e)
    bent = -(scale / n.unsqueeze(2)) * (ge + ge.mT + along * (P - 3 * _outer(e, e)))
    bent[constant] = 0
    # A common shift of the logits changes nothing; here not even by rounding.
    return P @ (U @ (torch.diag_embed(p) - _outer(p, p)) @ U + bent) @ P


def _outer(a: Tensor, b: Tensor) -> Tensor:
    return a.unsqueeze(2) * b.unsqueeze(1)


def _mse_second(outputs: Tensor, targets: Tensor) -> Tensor:
    n, C = outputs.shape
    return (2 / C * torch.eye(C, dtype=outputs.dtype, device=outputs.device)).expand(n, C, C)


_NAMED = {
    "cross_entropy": Loss("cross_entropy", cross_entropy, True, _cross_entropy_second),
    "mse": Loss("mse", mse, False, _mse_second),
    "normalized_cross_entropy": Loss(
        "normalized_cross_entropy", normalized_cross_entropy, True, _normalized_cross_entropy_second
    ),
}

LossLike = str | nn.Module | Callable[[Tensor, Tensor], Tensor]


def resolve(loss: LossLike) -> Loss:
    """A :class:`Loss` from a name, a torch loss module or any per-sample callable.

    A torch module keeps its options but loses its reduction: class weights then multiply each
    sample's loss, and the mean over samples is not divided by the sum of those weights.
    """
    if isinstance(loss, str):
        if loss not in _NAMED:
            near = difflib.get_close_matches(loss, _NAMED, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise InputError(f"no loss named {loss!r}; there are {', '.join(_NAMED)}{hint}")
        return _NAMED[loss]
    if isinstance(loss, nn.Module) and hasattr(loss, "reduction"):
        module = copy.copy(loss)
        setattr(module, "reduction", "none")  # noqa: B010  (a plain attribute of torch's losses)
        name = type(loss).__name__
        classes = isinstance(loss, nn.CrossEntropyLoss | nn.NLLLoss)
        return Loss(name, lambda z, y: _per_sample(module(z, y)), classes)
    if callable(loss):
        name = getattr(loss, "__name__", type(loss).__name__)
        return Loss(name, loss, classes=False)
    raise InputError(
        "loss must be a name, a torch loss module or a callable (outputs, targets) -> (N,) losses; "
        f"got {type(loss).__name__}"
    )
