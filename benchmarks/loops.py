"""Fifty networks as one would train them without us: one after the other, or by plain vmap."""

import os
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, stack_module_state, vmap
from workloads import Workload

import lowland as ll
from lowland.training import TrainingSettings, mlp

NETWORKS, EPOCHS, RATE, BATCH = 50, 2, 0.1, 25


def fresh(count: int = NETWORKS) -> list[nn.Sequential]:
    return [mlp((784, 30, 30, 10), seed=seed) for seed in range(count)]


def ours(w: Workload) -> Callable[[], Tensor]:
    """Ours, by the compiled loop: the losses (networks,) after the last epoch."""
    settings = [
        TrainingSettings(
            learning_rate=RATE, batch_size=BATCH, stop_loss=1e-12, max_epochs=EPOCHS, seed=seed
        )
        for seed in range(NETWORKS)
    ]

    def run() -> Tensor:
        done = ll.training.train_many(fresh(), (w.X, w.y), settings)
        return torch.tensor([one.losses[-1] for one in done], dtype=torch.float64)

    return run


def stacked(w: Workload) -> Callable[[], Tensor]:
    """Ours without the compiled loop: all networks in one stack."""
    run = ours(w)

    def without() -> Tensor:
        os.environ["LOWLAND_KERNEL"] = "off"
        try:
            return run()
        finally:
            del os.environ["LOWLAND_KERNEL"]

    return without


def one_after_the_other(w: Workload) -> Callable[[], Tensor]:
    return lambda: torch.stack(
        [_train(model, w.X, w.y, seed) for seed, model in enumerate(fresh())]
    )


def _train(model: nn.Module, X: Tensor, y: Tensor, seed: int) -> Tensor:
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    order = torch.Generator().manual_seed(seed)
    loss = torch.zeros(())
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(X), generator=order).split(BATCH):
            optimizer.zero_grad()
            F.cross_entropy(model(X[rows]), y[rows]).backward()
            optimizer.step()
        with torch.no_grad():  # after each epoch, as a goal for the training loss needs it
            loss = F.cross_entropy(model(X), y)
    return loss.double()


def plain_vmap(w: Workload) -> Callable[[], Tensor]:
    """As in the tutorial on ensembles of torch.func, with gradients."""

    def run() -> Tensor:
        models = fresh()
        params, _ = stack_module_state(models)

        def loss(own: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
            return F.cross_entropy(functional_call(models[0], own, (x,)), y)

        gradients, value = vmap(grad(loss)), vmap(loss, in_dims=(0, None, None))
        orders = [torch.Generator().manual_seed(seed) for seed in range(NETWORKS)]
        losses = torch.zeros(())
        with torch.no_grad():
            for _ in range(EPOCHS):
                shuffled = torch.stack([torch.randperm(len(w.X), generator=g) for g in orders])
                for rows in shuffled.split(BATCH, dim=1):
                    step = gradients(params, w.X[rows], w.y[rows])
                    params = {name: p - RATE * step[name] for name, p in params.items()}
                losses = value(params, w.X, w.y)
        return losses.double()

    return run


def losses_error(w: Workload, result: Tensor, _: object) -> float:
    """Against the first three networks, one after the other, in float64."""
    exact = [_train(model.double(), w.X.double(), w.y, seed) for seed, model in enumerate(fresh(3))]
    return float(((result[:3] - torch.stack(exact)).abs() / torch.stack(exact)).max())
