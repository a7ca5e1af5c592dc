"""Two trainings whose data differ in one sample, and nothing else (Hardt et al., ICML 2016)."""

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from lowland.experiment import Configuration
from lowland.experiment.subject import Subject
from lowland.training import train

Data = tuple[Tensor, Tensor]

_BATCH = 25  # unless a trial says otherwise
_NEVER = 1e-12  # a training loss that is not reached


def trial(settings: dict[str, Any], seed: int) -> dict[str, Any]:
    """How far the two come apart after every epoch, in their weights and in losses of test samples.

    Initial weights and the order of samples are the same. The weights' distance is
    ``sqrt(|w - w'|^2 / (|w|^2 + |w'|^2))``, as in the paper. ``network``, ``data``, ``per_class``
    and ``batch_size`` are those of a sweep.
    """
    subject = _subject(settings, seed)
    (X, y), (X_test, y_test) = subject.train, subject.test
    test = X_test[1:], y_test[1:]
    other = torch.cat([X_test[:1], X[1:]]), torch.cat([y_test[:1], y[1:]])
    (w, loss, test_losses), (v, _, other_losses) = (
        _course(own, test, settings, seed) for own in ((X, y), other)
    )
    apart = (w - v).norm(dim=1)
    distance = apart / (w.square().sum(1) + v.square().sum(1)).sqrt()
    difference = (test_losses - other_losses).abs().mean(1)
    gap = test_losses.mean(1) - loss
    step = subject.settings.learning_rate / subject.settings.batch_size
    bounds = [convex_bound(X[0], X_test[0], n, step) for n in range(1, len(apart) + 1)]
    return {
        "distance": float(distance[-1]),
        "loss_difference": float(difference[-1]),
        "gap": float(gap[-1]),
        "distance_power": power(distance),
        "loss_power": power(difference),
        "gap_with_distance": float(torch.corrcoef(torch.stack([distance, gap]))[0, 1]),
        "share_of_bound": float((apart / torch.tensor(bounds)).max()),
        "course/distance": distance.numpy(),
        "course/difference": difference.numpy(),
        "course/gap": gap.numpy(),
    }


def _subject(settings: dict[str, Any], seed: int) -> Subject:
    """A network at its initial weights, its data, and how it is to be trained."""
    return Subject.of(
        Configuration(
            data=settings.get("data", "mnist5k"),
            network=settings["network"],
            per_class=settings["per_class"],
            test_per_class=50,
            learning_rate=settings["rate"],
            batch_size=settings.get("batch_size", _BATCH),
            stop_loss=_NEVER,
            max_epochs=settings["epochs"],
            data_seed=seed,
            seed=seed,
        )
    )


def _course(
    data: Data, test: Data, settings: dict[str, Any], seed: int
) -> tuple[Tensor, Tensor, Tensor]:
    """After every epoch: the weights, (epochs, d), the training loss, and test samples' losses."""
    subject = _subject(settings, seed)
    model = subject.model
    weights, losses, test_losses = [], [], []

    @torch.no_grad()
    def record(epoch: int, loss: float) -> None:
        weights.append(torch.cat([p.detach().double().flatten() for p in model.parameters()]))
        losses.append(loss)
        training = model.training
        outputs = model.eval()(test[0])
        model.train(training)
        test_losses.append(functional.cross_entropy(outputs, test[1], reduction="none"))

    train(model, data, subject.settings, record)
    return torch.stack(weights), torch.tensor(losses).double(), torch.stack(test_losses).double()


def power(curve: Tensor) -> float:
    """The power of the epoch, counted from 1, with which a curve grows: a fit of logarithms."""
    epochs = np.arange(1, len(curve) + 1)
    return float(np.polyfit(np.log(epochs), np.log(curve.numpy()), 1)[0])


def convex_bound(x: Tensor, other: Tensor, epochs: int, step: float) -> float:
    """How far weights can come apart by one sample where the loss is convex and steps are small.

    Steps on the same samples bring weights no farther apart, and the two that differ are met once
    in an epoch, by a ``step`` of the rate over the batch: their gradients are at most
    ``sqrt(2) |x|`` long, of softmax and no hidden layer. (Hardt et al.'s sum of the step sizes
    times 2 L / n, by the norms of these samples.)
    """
    return epochs * step * math.sqrt(2) * float(x.norm() + other.norm())
