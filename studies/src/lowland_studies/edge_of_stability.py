"""The edge of stability, and SAM's: `python -m lowland_studies.edge_of_stability DIR [--quick]`.

Gradient descent on all data at once sharpens its minimum until the largest eigenvalue of the
Hessian is about 2 / eta, where a step just begins to overshoot, and stays there (Cohen et al., ICLR
2021, arXiv:2103.00065). SAM has an edge of its own (Long & Bartlett 2024, arXiv:2309.12488), which
falls with the gradient. Along an eigenvector of eigenvalue c, a quadratic loss has the gradient
g = c x, and SAM's step is

    x - eta c (x + rho g / |g|) = (1 - eta c - eta rho c^2 / |g|) x,

which overshoots from ``eta c + eta rho c^2 / |g| = 2`` on:

    c = |g| / (2 rho) (sqrt(1 + 8 rho / (eta |g|)) - 1).

This trains both, writes `edge-of-stability.csv` and the figure `edge-of-stability.svg` to DIR, and
prints what became of the claims. Each is a predicate of what was recorded of one training, or two.
"""

import csv
import itertools
import math
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lowland.data import load
from lowland.figures import saved
from lowland.optim import SAM
from lowland.probe import Probe

RHO = 0.1
NEAR = 0.2  # of the edge: how far the eigenvalue may be from it, at half of the steps


@dataclass(frozen=True)
class Size:
    """How much is trained on, how fast and long, and how often the eigenvalue is measured."""

    train: int  # images of each digit, of those that are otherwise trained on
    test: int  # and tested on
    rates: tuple[float, ...]
    steps: int
    every: int


FULL = Size(400, 100, (0.09, 0.12), 1600, 25)  # all 5,000 images
QUICK = Size(20, 10, (0.12,), 700, 20)


@dataclass
class Training:
    """A training by gradient descent (rho = 0) or SAM, and what was recorded of it."""

    rate: float
    rho: float
    losses: list[float] = field(default_factory=list)  # before each step
    steps: list[int] = field(default_factory=list)  # at which the following were measured
    eigenvalues: list[float] = field(default_factory=list)
    edges: list[float] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The method and its learning rate."""
        return f"{'SAM' if self.rho else 'gradient descent'}, eta = {self.rate:g}"

    def ratios(self) -> list[float]:
        """Eigenvalue over edge, at the steps from the one on that first came to 95 % of it."""
        every = [c / edge for c, edge in zip(self.eigenvalues, self.edges, strict=True)]
        begin = next((i for i, ratio in enumerate(every) if ratio >= 0.95), len(every))
        return every[begin:]


def edge(rate: float, rho: float, gradient: float) -> float:
    """The eigenvalue from which on a step overshoots so far that the next is longer.

    >>> edge(0.1, 0.0, 1.0)
    20.0
    >>> round(edge(0.1, 0.05, 1.0), 3)  # of c + 0.05 c^2 = 20
    12.361
    """
    if rho == 0:
        return 2 / rate
    return gradient / (2 * rho) * (math.sqrt(1 + 8 * rho / (rate * gradient)) - 1)


def record(training: Training, data: tuple[Tensor, Tensor], size: Size) -> None:
    """Train a new network of 784-30-30-10 tanh units, and fill in the record."""
    inputs, targets = data
    with torch.random.fork_rng():
        torch.manual_seed(0)
        hidden = nn.Linear(784, 30), nn.Tanh(), nn.Linear(30, 30), nn.Tanh()
        model = nn.Sequential(*hidden, nn.Linear(30, 10))
    descent = torch.optim.SGD(model.parameters(), lr=training.rate)
    sam = SAM(model.parameters(), torch.optim.SGD, rho=training.rho, lr=training.rate)
    probe = Probe(
        model, half_square, data, every=size.every, measures="largest_eigenvalue", max_overhead=None
    )

    def backward() -> float:
        loss = half_square(model(inputs), targets).mean()
        loss.backward()
        return float(loss.detach())

    for step in range(size.steps + 1):
        training.losses.append(backward())
        if scalars := probe(step):
            parts = [p.grad.norm() for p in model.parameters() if p.grad is not None]
            gradient = float(torch.stack(parts).norm())
            training.steps.append(step)
            training.eigenvalues.append(scalars["lowland/largest_eigenvalue"])
            training.edges.append(edge(training.rate, training.rho, gradient))
        if training.rho:
            sam.first_step()
            backward()
            sam.step()
        else:
            descent.step()
        descent.zero_grad()


def half_square(outputs: Tensor, targets: Tensor) -> Tensor:
    """Half of the squared error of each sample, (n,)."""
    return (outputs - targets).square().sum(1) / 2


def trained(size: Size, say: Callable[[str], None] = lambda text: None) -> list[Training]:
    """Gradient descent and SAM at each learning rate, on the same images and from one start."""
    splits = load("mnist5k", per_class=size.train, test_per_class=size.test)
    images, labels = (torch.cat(both) for both in zip(splits.train, splits.test, strict=True))
    data = images.flatten(1), nn.functional.one_hot(labels, 10).to(images.dtype)
    trainings = [Training(rate, rho) for rho in (0.0, RHO) for rate in size.rates]
    for training in trainings:
        say(training.name)
        record(training, data, size)
    return trainings


# --- the claims ----------------------------------------------------------------------------------


def judged(trainings: list[Training]) -> dict[str, bool]:
    """Whether each claim holds, in words, of the trainings in the order of :func:`trained`."""
    verdicts = {}
    for training in trainings:
        ratios, name = training.ratios(), training.name
        if training.rho == 0:
            begins = training.eigenvalues[0] / training.edges[0]
            text = f"{name}: the eigenvalue rises from {begins:.2f} of 2 / eta to it"
            verdicts[text] = begins < 0.75 and len(ratios) > 0
            text = f"{name}: there the loss rises in some steps, and falls over many"
            after = training.losses[training.steps[-len(ratios)] :] if ratios else [math.nan]
            rises = any(b > a for a, b in itertools.pairwise(after))
            verdicts[text] = rises and after[-1] < after[0]
        middle = statistics.median(ratios) if ratios else math.nan
        text = (
            f"{name}: once at its edge, the eigenvalue stays there, in the median at {middle:.2f}"
        )
        verdicts[text] = abs(middle - 1) < NEAR
    for descent, sam in itertools.combinations(trainings, 2):
        if descent.rate == sam.rate:
            share = sam.eigenvalues[-1] / descent.eigenvalues[-1]
            text = f"eta = {sam.rate:g}: SAM ends with {share:.2f} of gradient descent's eigenvalue"
            verdicts[text] = share < 0.5
    return verdicts


# --- the figure and the command ------------------------------------------------------------------


def draw(trainings: list[Training], ax: Any) -> None:
    """Each eigenvalue as a line, with its edge as a broken one of the same colour."""
    colours = "#0072B2", "#56B4E9", "#D55E00", "#E69F00"
    for training, colour in zip(trainings, colours, strict=False):
        ax.plot(training.steps, training.eigenvalues, color=colour, label=training.name)
        ax.plot(training.steps, training.edges, color=colour, linestyle="--", linewidth=0.8)
    ax.set_xlabel("step")
    ax.set_ylabel("largest eigenvalue (edge broken)")
    ax.set_ylim(bottom=0)
    ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2)  # above: it hides nothing


def main(directory: str, *options: str) -> None:
    """Train, write the table and the figure, and print the verdicts."""
    size = QUICK if "--quick" in options else FULL
    trainings = trained(size, lambda text: print(text, file=sys.stderr))
    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "edge-of-stability.csv").open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(["eta", "rho", "step", "loss", "eigenvalue", "edge"])
        for training in trainings:
            rows = zip(training.steps, training.eigenvalues, training.edges, strict=True)
            for step, *numbers in rows:
                loss = training.losses[step]
                shown = (f"{number:.6g}" for number in (loss, *numbers))
                table.writerow([training.rate, training.rho, step, *shown])
    (folder / "edge-of-stability.svg").write_bytes(saved(draw, trainings, "svg"))
    for claim, holds in judged(trainings).items():
        print(f"{'holds' if holds else 'does not hold'}: {claim}")


if __name__ == "__main__":
    main(*sys.argv[1:])
