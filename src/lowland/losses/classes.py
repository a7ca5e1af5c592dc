"""Losses of class labels: one label for each sample, or one for each of its positions."""

import copy
from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from lowland.distributed import total
from lowland.errors import InputError
from lowland.losses.loss import Loss, summed_fisher

IGNORED = -100  # the label that torch and Transformers give to positions that do not count
_SHARES = 1e-3  # how far the shares of a sample's classes may be from adding up to 1


class ClassLoss(Loss):
    """A loss of scores (m, C) and labels (m,), or shares of classes (m, C).

    Scores of several positions have the classes last, (n, T, C) as Transformers has them, or beside
    the samples, (n, C, T) as torch has them: the labels' shape (n, T) tells which. A sample's loss
    is the mean over those of its positions whose label counts. Scores of the next token, (n, T, C),
    are compared with the label of the position that follows.

    Args:
        name: what it is called.
        rows: from scores and labels to losses, (m,).
        weight: of each class. The losses are divided by the mean weight of the training labels, so
            that their mean over the training data is torch's.
        ignored: the label of positions that do not count.
        unit: what it is counted in.
        second: ``d2l/dz2`` (n, C, C) of scores (n, C) and labels (n,).
        columns: the same as ``rows`` for scores with the classes in the middle, (k, C, n), and
            labels (k, n): losses (k, n). It is several times faster where classes are few.
        shift_free: whether a common shift of a position's scores changes nothing.
        is_softmax: whether it is softmax cross-entropy, with nothing added to it.
    """

    classes = True

    def __init__(
        self,
        name: str,
        rows: Callable[[Tensor, Tensor], Tensor],
        *,
        weight: Tensor | None = None,
        ignored: int = IGNORED,
        unit: str | None = None,
        second: Callable[[Tensor, Tensor], Tensor] | None = None,
        columns: Callable[[Tensor, Tensor], Tensor] | None = None,
        shift_free: bool = True,
        is_softmax: bool = False,
    ) -> None:
        self.name, self.rows, self.unit, self._columns = name, rows, unit, columns
        self.shift_free, self.is_softmax = shift_free, is_softmax
        self.weight, self.ignored, self._second = weight, ignored, second
        self.mean_weight = 1.0
        self.weighted = weight is not None
        self.classes_last: bool | None = None  # of several positions' scores, if that is known
        self.next_token = False

    def placed(self, *, classes_last: bool = True, next_token: bool = False) -> "ClassLoss":
        """The same loss where it is known how scores of several positions are to be read."""
        other = copy.copy(self)
        other.classes_last, other.next_token = classes_last, next_token
        other.is_softmax = self.is_softmax and not next_token
        if next_token and not self.next_token:
            other.name = (
                "next_token" if self.name == "cross_entropy" else f"{self.name}, next token"
            )
        return other

    def on(self, targets: Tensor) -> Loss:
        """The same loss, divided by the mean weight of these labels."""
        if self.weight is None or targets.is_floating_point():
            return self  # torch divides a loss of shares by the number of samples
        if self.next_token:
            targets = targets[:, 1:]
        counted = self.counted(targets)
        weights = self.weight.double().cpu()[
            self._labels(targets, counted).cpu() % len(self.weight)
        ]
        weights = (weights * counted.cpu()).view(len(targets), -1).sum(1)
        weights = weights / counted.cpu().view(len(targets), -1).sum(1)
        sums = total(torch.stack([weights.sum(), torch.tensor(float(len(weights))).double()]))
        other = copy.copy(self)
        other.mean_weight = float(sums[0] / sums[1])
        if other.mean_weight == 0:
            raise InputError(f"loss {self.name!r} gives weight 0 to every label of the data")
        return other

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The mean over a sample's counted positions, over the mean weight of a label."""
        outputs, targets, axis = self._compared(outputs, targets)
        n, C = len(outputs), outputs.shape[axis]
        scores = outputs if outputs.ndim == 2 else outputs.movedim(axis, -1).reshape(-1, C)
        if targets.is_floating_point():
            losses = self.rows(scores, targets.movedim(1, -1).reshape(-1, C))
            losses = losses.view(n, -1).mean(1)
        elif targets.ndim == 1:
            losses = self.rows(scores, targets.long())
        else:
            counted = self.counted(targets)
            losses = self.rows(scores, self._labels(targets, counted).flatten())
            losses = losses.view(n, -1).where(counted.view(n, -1), 0).sum(1)
            losses = losses / counted.view(n, -1).sum(1)
        return losses if self.mean_weight == 1 else losses / self.mean_weight

    def _compared(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, int]:
        """Scores and the labels at the same places, and the dimension along which classes lie."""
        if self.next_token:
            if outputs.ndim != 3 or targets.shape != outputs.shape[:2] or targets.shape[1] < 2:
                raise ValueError(
                    "the next token needs scores (n, positions, classes) and labels (n, positions) "
                    "of two positions or more"
                )
            return outputs[:, :-1], targets[:, 1:], 2
        return outputs, targets, class_axis(outputs, targets, self.classes_last)

    def seen(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The scores of the positions that count, but for a common shift: C - 1 numbers each."""
        outputs, targets, axis = self._compared(outputs, targets)
        scores = outputs.movedim(axis, -1)  # (n, ..., C)
        if self.shift_free:
            scores = scores @ _helmert(scores.shape[-1]).to(scores)
        if not targets.is_floating_point():
            scores = scores * self.counted(targets).unsqueeze(-1)
        return scores.reshape(len(scores), -1)

    def counted(self, targets: Tensor) -> Tensor:
        """A mask of the labels that count: those that are not the ignored one."""
        return (targets != self.ignored) & (targets != IGNORED)  # the latter pads

    def _labels(self, targets: Tensor, counted: Tensor) -> Tensor:
        """The labels, with any class in place of those that do not count."""
        return targets.long().where(counted, 0)

    def constant_shape(self, outputs: Tensor, targets: Tensor) -> tuple[int, ...]:
        """One score for each class, at all positions."""
        _, _, axis = self._compared(outputs, targets)
        return tuple(size if i == axis else 1 for i, size in enumerate(outputs.shape[1:], start=1))

    def check(self, outputs: Tensor, targets: Tensor, every: Mapping[str, Tensor]) -> None:
        """An error unless labels are the model's classes, shares add to 1, and samples count."""
        if outputs.ndim == 1 or outputs.shape[1:].numel() == 1:
            raise InputError(
                f"loss {self.name!r} compares the scores of two classes or more, but the model has "
                "one output",
                advice="pass loss='mse' for a regression, or torch.nn.BCEWithLogitsLoss() for two "
                "classes",
            )
        for split, all_targets in every.items():
            if all_targets.is_floating_point():
                self._check_shares(outputs, all_targets, split)
            elif not targets.is_floating_point():
                try:
                    scores, _, axis = self._compared(outputs, targets)
                except ValueError:
                    break  # the loss itself says so
                later = all_targets[:, 1:] if self.next_token else all_targets
                self._check_labels(scores.shape[axis], later, split)
        super().check(outputs, targets, every)

    def _check_labels(self, classes: int, targets: Tensor, split: str) -> None:
        counted = self.counted(targets)
        empty = int((~counted.view(len(targets), -1).any(1)).sum())
        if empty:
            raise InputError(
                f"{empty} of {len(targets)} {split} samples have no label that counts (all are "
                f"{self.ignored}{', or the first' if self.next_token else ''}), and so no loss; "
                "leave them out of the data"
            )
        low, high = int(targets[counted].min()), int(targets[counted].max())
        if low < 0 or high >= classes:
            raise InputError(
                f"{split} labels run from {low} to {high}, but the model has {classes} outputs; "
                f"labels must be 0 to {classes - 1}"
            )

    def _check_shares(self, outputs: Tensor, targets: Tensor, split: str) -> None:
        if targets.shape[1:] != outputs.shape[1:]:
            raise InputError(
                f"the {split} targets are real numbers of shape {tuple(targets.shape)}, which loss "
                f"{self.name!r} cannot compare with outputs of shape {tuple(outputs.shape)}",
                advice="pass loss='mse' for a regression, or whole numbers (targets.long()) for "
                "class labels",
            )
        sums = targets.sum(1)
        if targets.min() < 0 or (sums - 1).abs().max() > _SHARES:
            raise InputError(
                f"the {split} targets are real numbers, but no shares of classes, which are not "
                f"negative and add up to 1 (they run from {float(targets.min()):.3g} to "
                f"{float(targets.max()):.3g}, sums from {float(sums.min()):.3g} to "
                f"{float(sums.max()):.3g})",
                advice="pass loss='mse' for a regression, or torch.nn.BCEWithLogitsLoss() for "
                "labels that do not exclude each other",
            )

    def second(self, outputs: Tensor, targets: Tensor) -> Tensor | None:
        """``d2l/dz2`` in closed form for one label per sample, otherwise None."""
        if self._second is None or outputs.ndim != 2 or targets.is_floating_point():
            return None
        return self._second(outputs, targets.long())

    def fisher(self, outputs: Tensor) -> Tensor:
        """``E[g g^T]`` as the sum over all classes, not from a sample of them."""
        if outputs.ndim != 2:
            raise InputError(
                "the true Fisher matrix needs one label per sample; the mean over the positions of "
                f"outputs {tuple(outputs.shape)} is not minus the log of a probability"
            )
        n, C = outputs.shape
        labels = torch.arange(C, device=outputs.device)
        return summed_fisher(self, outputs, [c.expand(n) for c in labels])

    def has_errors(self, targets: Tensor) -> bool:
        """Labels are right or wrong; shares of classes are not."""
        return not targets.is_floating_point()

    def wrong(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The share of a sample's counted positions whose largest score is another class's."""
        if not self.has_errors(targets):
            raise InputError(
                "a classification error needs class labels; the targets are real numbers, and the "
                f"loss is {self.name!r}"
            )
        outputs, targets, axis = self._compared(outputs, targets)
        missed = outputs.argmax(axis) != targets
        if targets.ndim == 1:
            return missed.double()
        counted = self.counted(targets).view(len(targets), -1)
        return (missed.view(len(targets), -1) & counted).sum(1).double() / counted.sum(1)

    def totals(
        self, outputs: Tensor, targets: Tensor, errors: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Sums over the samples, with the classes in the middle where that is known to be the same.

        Torch's softmax goes along the samples then, and not along a few classes.
        """
        plain = outputs.ndim == 3 and targets.ndim == 1 and not targets.is_floating_point()
        if self._columns is None or not plain or self.next_token or self.mean_weight != 1:
            return super().totals(outputs, targets, errors)
        scores = outputs.mT.contiguous()  # (k, C, n)
        labels = targets.long().expand(len(scores), -1)
        losses = self._columns(scores, labels).double().sum(1)
        if not errors:
            return losses, None
        largest = scores.amax(1, keepdim=True)
        right = scores.gather(1, labels.unsqueeze(1)) == largest
        if (scores == largest).sum() == largest.numel():  # one class each has the largest score
            return losses, (~right).sum((1, 2)).double()
        return losses, (outputs.argmax(2) != targets).sum(1).double()


class NormalizedCrossEntropy(ClassLoss):
    """Cross-entropy of logits divided by their own standard deviation (Tsuzuku et al., Eq. 20-22).

    It does not change when the last layer is scaled, so it measures the decision and not its
    confidence. The mean is subtracted as well: softmax ignores it. Constant logits are left
    as they are, which gives the uniform distribution.
    """

    def __init__(self) -> None:
        super().__init__(
            "normalized_cross_entropy",
            lambda scores, labels: F.cross_entropy(_normalized(scores), labels, reduction="none"),
            unit="nats",
            second=_normalized_cross_entropy_second,
        )

    def flat(self, outputs: Tensor) -> str | None:
        """A reason for two logits, of which the loss is a step function; otherwise None."""
        if outputs.shape[1] > 2:
            return None
        return (
            "two logits divided by their standard deviation are always +1 and -1, so the loss of "
            "Eq. 20 has no curvature; it needs three classes or more"
        )


def cross_entropy() -> ClassLoss:
    """Softmax cross-entropy, ``torch.nn.CrossEntropyLoss()``."""
    return ClassLoss(
        "cross_entropy",
        lambda scores, labels: F.cross_entropy(scores, labels, reduction="none"),
        unit="nats",
        second=_cross_entropy_second,
        columns=lambda scores, labels: F.cross_entropy(scores, labels, reduction="none"),
        is_softmax=True,
    )


def class_axis(outputs: Tensor, targets: Tensor, known_last: bool | None = None) -> int:
    """Along which dimension of the outputs the classes lie; both may fit, and one be known."""
    shape, places = outputs.shape, targets.shape
    if targets.is_floating_point():
        if places != shape:
            raise ValueError("shares of classes must have the outputs' shape")
        return 1
    beside = len(shape) > 1 and places == shape[:1] + shape[2:]
    last = len(shape) > 1 and places == shape[:-1]
    if beside and last and len(shape) > 2:
        if known_last is not None:
            return len(shape) - 1 if known_last else 1
        raise ValueError(
            "the classes can lie along the second dimension, as torch has them, or along the last, "
            "as Transformers has them, for there are as many classes as positions; pass a function "
            "(outputs, targets) -> (n,) of your own, or data with another number of positions"
        )
    if not (beside or last):
        raise ValueError(
            "labels must have the outputs' shape without that of the classes: (n,) for (n, "
            "classes), (n, positions) for (n, positions, classes) or (n, classes, positions)"
        )
    return 1 if beside else len(shape) - 1


def _helmert(C: int) -> Tensor:
    """Orthonormal columns (C, C - 1) whose entries add up to 0: column j sets j + 1 against j."""
    columns = torch.ones(C, C - 1, dtype=torch.float64).triu()
    j = torch.arange(1, C, dtype=torch.float64)
    columns[range(1, C), range(C - 1)] = -j
    return columns / (j * (j + 1)).sqrt()


def _normalized(scores: Tensor) -> Tensor:
    centred = scores - scores.mean(1, keepdim=True)
    variance = centred.square().mean(1, keepdim=True)
    return centred / torch.where(variance > 0, variance, 1).sqrt()


def _cross_entropy_second(outputs: Tensor, targets: Tensor) -> Tensor:
    """``diag(p) - p p^T``, whatever the label."""
    p = outputs.softmax(1)
    return torch.diag_embed(p) - _outer(p, p)


def _normalized_cross_entropy_second(outputs: Tensor, targets: Tensor) -> Tensor:
    """``d2l/dz2`` by the chain rule: ``u = sqrt(C) c / n``, centred logits c of length n.

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
