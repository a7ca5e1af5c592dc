"""The optimised PAC-Bayes bound on binary MNIST: digits 0 to 4 against 5 to 9."""

from typing import Any

import torch
from torch import Tensor

from lowland.data import load
from lowland.measures import measure
from lowland.problem import Problem
from lowland.training import TrainingSettings, mlp, train_many

Data = tuple[Tensor, Tensor]

_MEASURES = ["pac_bayes_optimised", "pac_bayes", "vc_dimension", "train_error", "test_error"]


def trial(settings: dict[str, Any], seed: int) -> dict[str, Any]:
    """Train ``784-width-2`` until it fits its labels, and bound the error of its posterior.

    ``data`` are images of digits of 28 x 28 pixels, by default ``mnist5k``.
    """
    data = settings.get("data", "mnist5k")
    train, test = labelled(data, settings["per_class"], settings["labels"], seed)
    model = mlp((784, settings["width"], 2), bias=True, seed=seed)
    initial = {name: p.detach().clone() for name, p in model.named_parameters()}
    goal = TrainingSettings(stop_loss=0.05, max_epochs=2000, seed=seed)
    (training,) = train_many([model], train, [goal])
    problem = Problem(model, "cross_entropy", train=train, test=test, initial=initial)
    rows = measure(problem, _MEASURES).whole()
    optimised = rows["pac_bayes_optimised"]
    return {
        **{name: row.value for name, row in rows.items()},
        "posterior_train_error": optimised.parts["train_error_of_Q"],
        "kl": optimised.parts["kl"],
        "relaxed": optimised.parts["relaxed"],
        "prior_variance": optimised.parts["lambda"],
        "samples": problem.count(),
        "converged": training.converged,
    }


def labelled(data: str, per_class: int | None, labels: str, seed: int) -> tuple[Data, Data]:
    """Images with two classes to train on and to test with; ``random`` labels are fair coins."""
    digits = load(data, per_class=per_class, seed=seed)
    train, test = ((X, (y >= 5).long()) for X, y in (digits.train, digits.test))
    if labels == "random":
        coins = torch.Generator().manual_seed(seed)
        train = train[0], torch.randint(2, train[1].shape, generator=coins)
    return train, test
