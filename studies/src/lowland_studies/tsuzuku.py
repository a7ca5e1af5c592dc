"""The figures of Tsuzuku, Sato & Sugiyama, "Normalized flat minima" (ICML 2020).

Fig. 1, 3 and 4 show the same trained networks, so they share their runs. What the paper argues by
algebra is in ``tsuzuku_algebra``.
"""

import functools
import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lowland.sweep.grid import Grid
from lowland_studies.claims import between, correlated, on, rises, stronger, weaker
from lowland_studies.evidence import Runs
from lowland_studies.panels import Panel, Scatter
from lowland_studies.realisations import realisations as independent
from lowland_studies.study import Claim, Reading, Study

SHARPNESS, TRACE = "normalized_sharpness", "trace"

_NOISES = [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
_QUICK_NOISES = [0.0, 0.5, 1.0]
_PAPER_NOISES = [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0]
_ADAM: dict[str, Any] = {
    "optimizer": "adam",
    "learning_rate": 0.001,
    "stop_loss": 0.01,
    "measures": (TRACE, SHARPNESS),
}
FEW: dict[str, Any] = {"batch_size": 32, "max_epochs": 500}  # of some hundred or thousand images
NETWORKS = "lowland_studies.residual"
_FEW_EPOCHS = 30  # of quick versions, by which labels are fitted
_NEVER = 1e-12  # a training loss that is not reached


def realisations(count: int, noises: Sequence[float], **keys: Any) -> Grid:
    """A grid of realisations, each with images and random labels of its own, as in the paper."""
    return independent(count, **{**_ADAM, "label_noise": list(noises), **keys})


# --- the four networks with their data -----------------------------------------------------------


@dataclass(frozen=True)
class Task:
    """A network and its data: a panel of Fig. 3 and one of Fig. 4."""

    words: str
    place: str  # of the panel
    where: dict[str, Any]  # picks its runs, of any size
    full: Grid
    quick: Grid
    paper: Grid  # for a GPU
    fixed: Grid  # trained for so many epochs as the paper does, whatever the loss
    fixed_quick: Grid


def _task(
    words: str,
    place: str,
    sizes: tuple[dict[str, Any], dict[str, Any], dict[str, Any]],
    seeds: tuple[int, int, int],
    epochs: int,
    quick_noises: Sequence[float] = _QUICK_NOISES,
    **keys: Any,
) -> Task:
    """Seeds of the networks trained to one loss, of those for fixed epochs, and of quick ones."""
    full, quick, paper = ({**keys, **own} for own in sizes)
    fixed = {"stop_loss": _NEVER, "max_epochs": epochs}
    return Task(
        words,
        place,
        {name: sorted({own[name] for own in (full, quick, paper)}) for name in ("network", "data")},
        realisations(seeds[0], _NOISES, **{**FEW, **full}),
        realisations(seeds[2], quick_noises, **{**FEW, **quick, "stop_loss": 0.05}),
        realisations(9, _PAPER_NOISES, batch_size=128, max_epochs=1000, **paper),
        realisations(seeds[1], _NOISES, **{**FEW, **full, **fixed}),
        realisations(
            seeds[2], quick_noises, **{**FEW, **quick, **fixed, "max_epochs": _FEW_EPOCHS}
        ),
    )


MLP = _task(
    "MLP on MNIST",
    "top left",
    (
        {"data": "mnist", "per_class": 200, "test_per_class": 200},
        {"data": "mnist5k", "per_class": 30},
        {"data": "mnist", "network": "784-1024-1024-1024-10"},
    ),
    (9, 9, 4),
    50,
    network="784-128-128-128-10",
    bias=True,
)
LENET = _task(
    "LeNet on MNIST",
    "top right",
    (
        {"data": "mnist", "per_class": 100, "test_per_class": 200},
        {"data": "mnist5k", "per_class": 20},
        {"data": "mnist"},
    ),
    (5, 9, 2),
    50,
    network="lenet",
    bias=True,
)
LENET_CIFAR = _task(
    "LeNet on CIFAR-10",
    "bottom left",
    ({"per_class": 100, "test_per_class": 200}, {"per_class": 10, "test_per_class": 50}, {}),
    (5, 9, 2),
    100,
    data="cifar10",
    network="lenet",
    bias=True,
)
RESNET = _task(
    "Wide ResNet on CIFAR-10",
    "bottom right",
    (
        {"per_class": 25, "test_per_class": 200, "batch_size": 25},
        {"per_class": 5, "test_per_class": 50, "batch_size": 20},
        {"network": f"{NETWORKS}:wrn_16_4"},
    ),
    (3, 9, 2),
    100,
    quick_noises=[0.0, 1.0],
    data="cifar10",
    network=f"{NETWORKS}:wrn_10_1",
)
TASKS = (MLP, LENET, LENET_CIFAR, RESNET)


def _all(size: str) -> Grid:
    return functools.reduce(operator.add, (getattr(task, size) for task in TASKS))


# --- what is looked at ---------------------------------------------------------------------------


def train_accuracy(runs: Runs) -> np.ndarray:
    """The training accuracy, on the labels that were trained with."""
    return 1 - runs.column("train_error")


def accuracy_gap(runs: Runs) -> np.ndarray:
    """Training accuracy minus test accuracy."""
    return runs.column("test_error") - runs.column("train_error")


# --- figures -------------------------------------------------------------------------------------


def _scatter(task: Task, column: str, label: str) -> Panel:
    axes = column, accuracy_gap, label, "accuracy gap"
    return Scatter(*axes, by="label_noise", where=task.where, title=task.words)


def _fitted(task: Task) -> Claim:
    return Claim(
        f"{task.words}: the training accuracy is near 1.",
        "Sec. 6.1: near 1 even with random labels",
        on(task.where, on(Runs.with_left_out, between(train_accuracy, 0.99, math.inf))),
        kind="check",  # training ends when the loss is small
    )


def _distinguished(task: Task) -> tuple[Claim, ...]:
    r = ", r = 0.911 (Fig. 1)" if task is RESNET else ""
    return (
        Claim(
            f"{task.words}: normalized sharpness is highly correlated with the accuracy gap.",
            f"Fig. 3, {task.place}: it is{r}",
            on(task.where, correlated(SHARPNESS, accuracy_gap)),
        ),
        Claim(
            f"{task.words}: normalized sharpness rises with the ratio of random labels.",
            "Sec. 6.1: larger to fit random labels",
            on(task.where, rises(SHARPNESS, "label_noise")),
        ),
    )


def _without_normalization(task: Task) -> tuple[Claim, ...]:
    r = ", r = 0.708 (Fig. 1)" if task is RESNET else ""
    return (
        Claim(
            f"{task.words}: the trace of the Hessian is correlated with the accuracy gap.",
            f"Fig. 4, {task.place}: to some extent{r}",
            on(task.where, correlated(TRACE, accuracy_gap, at_least=0.0)),
        ),
        Claim(
            f"{task.words}: normalized sharpness is correlated with the gap more closely than the "
            "trace is.",
            f"Fig. 3 and 4, {task.place}: the signal of the trace is weaker",
            on(task.where, stronger(SHARPNESS, TRACE, accuracy_gap)),
        ),
    )


_DEGRADES = Claim(
    "In the network with normalisation layers the trace goes less with the gap than in the others.",
    "Fig. 4 and Sec. 6.2: there it lost its ability to distinguish models",
    weaker(TRACE, accuracy_gap, RESNET.where, [task.where for task in TASKS[:3]]),
)
_FIG3 = tuple(claim for task in TASKS for claim in (_fitted(task), *_distinguished(task)))
_FIG4 = (*(claim for task in TASKS for claim in _without_normalization(task)), _DEGRADES)
_PANELS3 = tuple(_scatter(task, SHARPNESS, "normalized sharpness") for task in TASKS)
_PANELS4 = tuple(_scatter(task, TRACE, "trace of the Hessian") for task in TASKS)

_STOPPED = (
    "Training stops when the training loss is below 0.01 (0.05 in the quick version), so that all "
    "networks fit their labels equally well; the paper trains for 50, 100 or 200 epochs.",
)
_FIXED = (
    "Training takes 50 epochs on MNIST and 100 on CIFAR-10, as in the paper (but for its 200 of "
    "the Wide ResNet, which here fits all labels within 70), of fewer images: that is fewer steps.",
)
_SAME = (
    "The diagonal of the Hessian is exact; the paper estimates it from differences of gradients "
    "(Eq. 61). BatchNorm is in evaluation mode, of which the paper says nothing.",
    "Every ratio of random labels occurs equally often; the paper draws it at random.",
    "Sharpness is shown as it is; the paper rescales it to [0, 1], which changes no correlation.",
)
_RESNET_SIZE = (
    "A Wide ResNet 10-1 (77,850 parameters) on 250 images stands for the 16-4 (2.7 million) on "
    "50,000: see tsuzuku:paper. 54 networks (18 to one loss) in place of 100; batches of 25 in "
    "place of 128.",
)
_SIZES = (
    "The networks learn from fewer images: 2,000 (MLP) and 1,000 (LeNet) in place of 60,000 and "
    "50,000, with batches of 32 in place of 128, and are tested on 2,000. 54 networks each (LeNet "
    "to one loss: 30) in place of 100.",
    "The paper does not give the sizes of its MLP; this one has three hidden layers of 128.",
)

_TO_A_LOSS, _FOR_EPOCHS = "to one loss", "for fixed epochs"


def _for_epochs(grid: Grid, quick: Grid, *differences: str) -> Reading:
    """The reading in which networks are trained as long as the paper does, whatever their loss."""
    told = (*_FIXED, *differences, *_SAME)
    return Reading(_FOR_EPOCHS, grid, quick, told, suffix="-epochs", at_limit=1.0)


FIGURE1 = Study(
    name="tsuzuku:fig1",
    title="Sharpness and the accuracy gap of Wide ResNets with random labels",
    grid=RESNET.full,
    quick=RESNET.quick,
    panels=(
        _scatter(RESNET, TRACE, "trace of the Hessian"),
        _scatter(RESNET, SHARPNESS, "normalized sharpness"),
    ),
    claims=tuple(
        replace(claim, kind="check" if claim.kind == "check" else "restated")  # Fig. 3 and 4
        for claim in (_fitted(RESNET), *_without_normalization(RESNET), *_distinguished(RESNET))
    ),
    differences=(*_STOPPED, *_RESNET_SIZE, *_SAME),
    reading=_TO_A_LOSS,
    others=(_for_epochs(RESNET.fixed, RESNET.fixed_quick, *_RESNET_SIZE),),
)
FIGURE3 = Study(
    name="tsuzuku:fig3",
    title="Normalized sharpness and the accuracy gap with random labels",
    grid=_all("full"),
    quick=_all("quick"),
    panels=_PANELS3,
    claims=_FIG3,
    differences=(*_STOPPED, *_SIZES, *_RESNET_SIZE, *_SAME),
    reason="The Wide ResNet learns from 250 images: its normalized sharpness spreads over "
    "realisations by about as much as random labels change it.",
    reading=_TO_A_LOSS,
    others=(_for_epochs(_all("fixed"), _all("fixed_quick"), *_SIZES, *_RESNET_SIZE),),
)
FIGURE4 = Study(
    name="tsuzuku:fig4",
    title="The trace of the Hessian and the accuracy gap with random labels",
    grid=_all("full"),
    quick=_all("quick"),
    panels=_PANELS4,
    claims=_FIG4,
    differences=(*_STOPPED, *_SIZES, *_RESNET_SIZE, *_SAME),
    reason="On CIFAR-10 LeNet is the flatter by the trace the more of its labels are random, up to "
    "80 %, whichever rule ends the training; why is not known.",
    reading=_TO_A_LOSS,
    others=(_for_epochs(_all("fixed"), _all("fixed_quick"), *_SIZES, *_RESNET_SIZE),),
)

PAPER = Study(
    name="tsuzuku:paper",
    title="Fig. 3 and 4 with the paper's networks and all of the data, for LOWLAND_DEVICE=cuda",
    grid=_all("paper"),
    quick=_all("quick"),
    panels=(*_PANELS3, *_PANELS4),
    claims=(*_FIG3, *_FIG4),
    differences=(
        "The paper does not give the sizes of its MLP; this one has three hidden layers of 1,024.",
        "99 networks of each kind in place of 100.",
        *_STOPPED,
        *_SAME,
    ),
)

STUDIES = (FIGURE1, FIGURE3, FIGURE4)
LARGE = (PAPER,)  # days on a few cores: run only when named
