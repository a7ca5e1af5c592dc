"""Test error against the radius of SAM on few digits, beside the range that ``ll.rho_range`` gives.

``python benchmarks/rho_range.py`` prints the tables of docs/optimisers.md; one core, a minute.
"""

import statistics

import torch

import lowland as ll
from lowland.training import TrainingSettings, mlp, train_many

SIZES = (64, 30, 30, 10)
SEEDS = range(6)
EPOCHS, EARLY = 60, 5
RADII = {
    "sam": (0.01, 0.03, 0.1, 0.2, 0.3, 0.5, 1.0, 3.0),
    "asam": (0.1, 0.3, 1.0, 2.0, 3.0, 5.0, 10.0),
}


def settings(epochs: int, seed: int, optimizer: str = "sgd", radius: float | None = None):
    return TrainingSettings(
        optimizer, 0.1, radius=radius, max_epochs=epochs, stop_loss=1e-9, seed=seed
    )


def trained(data: ll.data.DataSet, its: list[TrainingSettings]) -> list[torch.nn.Module]:
    models = [mlp(SIZES, seed=one.seed) for one in its]
    train_many(models, data.train, its)
    return models


def error(model: torch.nn.Module, data: ll.data.DataSet) -> float:
    X, y = data.test
    with torch.no_grad():
        return float((model(X).argmax(1) != y).double().mean())


def row(name: str, errors: list[float], mark: str = "") -> None:
    deviation = statistics.stdev(errors) / len(errors) ** 0.5
    print(f"| {name} | {statistics.mean(errors):.1%} ± {deviation:.1%} | {mark} |")


def main() -> None:
    torch.set_num_threads(1)
    for noise in (0.0, 0.2):
        data = ll.data.load("digits", per_class=50, label_noise=noise)
        early, plain = (
            trained(data, [settings(epochs, seed) for seed in SEEDS]) for epochs in (EARLY, EPOCHS)
        )
        facts = {"batch_size": 25, "learning_rate": 0.1}
        for optimizer, radii in RADII.items():
            print(f"\n{optimizer}, {noise:.0%} of the labels drawn at random")
            for epochs, models in ((EARLY, early), (EPOCHS, plain)):
                ranges = [
                    ll.rho_range(
                        ll.Problem(model, train=data.train, training=facts),
                        adaptive=optimizer == "asam",
                    )
                    for model in models
                ]
                low, high = (
                    statistics.geometric_mean(getattr(r, end) for r in ranges)
                    for end in ("low", "high")
                )
                print(f"after {epochs} epochs of sgd: {low:.2g} to {high:.2g}; {ranges[0]}")
            print("| radius | test error | |\n| --- | --- | --- |")
            row("sgd", [error(model, data) for model in plain])
            for radius in radii:
                models = trained(data, [settings(EPOCHS, s, optimizer, radius) for s in SEEDS])
                mark = "in the range" if low <= radius <= high else ""
                row(f"{radius:g}", [error(model, data) for model in models], mark)


if __name__ == "__main__":
    main()
