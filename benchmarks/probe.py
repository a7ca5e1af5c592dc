"""What a measurement of the probe costs: `python benchmarks/probe.py`, on one thread."""

import statistics
import time

import torch
from torch import nn

import lowland as ll
from lowland_studies.residual import wrn_10_1


def row(name, model, data, size, steps, measures):
    """One line: forward passes and milliseconds of a measurement, beside a step of 32 samples."""
    inputs, targets = data
    batch = inputs[:size], targets[:size]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    probe = ll.Probe(
        model,
        "cross_entropy",
        batch,
        every=5,
        measures=measures,
        max_overhead=None,
        optimizer=optimizer,
    )
    original, passes = probe.problem.batch_losses, 0

    def counted(*args, **options):
        nonlocal passes
        passes += 1
        return original(*args, **options)

    probe.problem.batch_losses = counted
    measured, training, all_passes, numbers = [], [], [], 0
    for step in range(steps):
        rows = torch.randint(len(inputs), (32,))
        began = time.perf_counter()
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs[rows]), targets[rows]).backward()
        optimizer.step()
        training.append(time.perf_counter() - began)
        began, passes = time.perf_counter(), 0
        if scalars := probe(step):
            measured.append(time.perf_counter() - began)
            all_passes.append(passes)
            numbers += len(scalars) > 1
    print(
        f"{name}, {probe.measures[0]} on {size} samples: {1e3 * statistics.median(measured):.1f} ms"
        + (
            f", {statistics.median(all_passes):g} forward passes"
            f" ({min(all_passes)} to {max(all_passes)})"
            if measures is None
            else ""
        )
        + f"; a step of 32 samples {1e3 * statistics.median(training):.1f} ms; "
        f"a number at {numbers} of {len(measured)} measurements",
        flush=True,
    )


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    images, labels = ll.data.load("digits").train
    digits = images.flatten(1), labels
    noise = torch.randn(256, 3, 32, 32), torch.randint(0, 10, (256,))
    for measures in (None, "largest_eigenvalue"):
        layers = nn.Linear(64, 30), nn.ReLU(), nn.Linear(30, 30), nn.ReLU(), nn.Linear(30, 10)
        row("64-30-30-10", nn.Sequential(*layers), digits, 256, 200, measures)
        row("WRN-10-1", wrn_10_1(), noise, 64, 30, measures)


if __name__ == "__main__":
    main()
