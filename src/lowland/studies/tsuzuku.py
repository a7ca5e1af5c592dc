"""The figures of Tsuzuku, Sato & Sugiyama, "Normalized flat minima" (ICML 2020).

Fig. 1, 3 and 4 show the same trained networks, so they share their runs.
"""

import functools
import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lowland.studies.claims import Test, between, correlated, on, rises, stronger, weaker
from lowland.studies.evidence import Column, Runs
from lowland.studies.panels import Against, Panel, Scatter
from lowland.studies.study import Claim, Study
from lowland.sweep.grid import Grid

Numbers = Callable[[Runs], np.ndarray]  # one for each run

SHARPNESS, TRACE = "normalized_sharpness", "trace"

_NOISES = [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0]
_ADAM: dict[str, Any] = {
    "optimizer": "adam",
    "learning_rate": 0.001,
    "stop_loss": 0.01,
    "measures": (TRACE, SHARPNESS),
}
_FEW: dict[str, Any] = {"batch_size": 32, "max_epochs": 500}  # of some hundred or thousand images
_NETWORKS = "lowland.studies.residual"


def _realisations(count: int, noises: Sequence[float], **keys: Any) -> Grid:
    """A grid of realisations, each with images and random labels of its own, as in the paper."""
    grids = [
        Grid(**{**_ADAM, "label_noise": list(noises), "seed": i, "data_seed": i, **keys})
        for i in range(count)
    ]
    return functools.reduce(operator.add, grids)


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


def _task(
    words: str,
    place: str,
    sizes: tuple[dict[str, Any], dict[str, Any], dict[str, Any]],
    seeds: tuple[int, int],
    **keys: Any,
) -> Task:
    full, quick, paper = ({**keys, **own} for own in sizes)
    return Task(
        words,
        place,
        {name: sorted({own[name] for own in (full, quick, paper)}) for name in ("network", "data")},
        _realisations(seeds[0], _NOISES, **{**_FEW, **full}),
        _realisations(seeds[1], [0.0, 0.5, 1.0], **{**_FEW, **quick, "stop_loss": 0.05}),
        _realisations(9, _NOISES, batch_size=128, max_epochs=1000, **paper),
    )


MLP = _task(
    "MLP on MNIST",
    "top left",
    (
        {"data": "mnist", "per_class": 200, "test_per_class": 200},
        {"data": "mnist5k", "per_class": 30},
        {"data": "mnist", "network": "784-1024-1024-1024-10"},
    ),
    (9, 4),
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
    (5, 2),
    network="lenet",
    bias=True,
)
LENET_CIFAR = _task(
    "LeNet on CIFAR-10",
    "bottom left",
    ({"per_class": 200, "test_per_class": 200}, {"per_class": 10, "test_per_class": 50}, {}),
    (3, 2),
    data="cifar10",
    network="lenet",
    bias=True,
)
RESNET = _task(
    "Wide ResNet on CIFAR-10",
    "bottom right",
    (
        {"per_class": 50, "test_per_class": 200, "batch_size": 50},
        {"per_class": 5, "test_per_class": 50, "batch_size": 20},
        {"network": f"{_NETWORKS}:wrn_16_4"},
    ),
    (3, 2),
    data="cifar10",
    network=f"{_NETWORKS}:wrn_10_1",
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


# --- trained networks, rescaled ------------------------------------------------------------------


def rescaled(measure: str, by: str = "as_trained") -> str:
    """The column with a measure of the network as trained, or after a rescaling.

    Both were recorded with the run, in double precision: see ``rescalings`` of a configuration.
    """
    return f"rescaled.{by}.{measure}"


def ratio(measure: str, by: str) -> Numbers:
    """A measure after a rescaling over what it was before."""

    def column(runs: Runs) -> np.ndarray:
        return runs.column(rescaled(measure, by)) / runs.column(rescaled(measure))

    column.__name__ = f"{measure} rescaled by {by} over that as trained"
    return column


# --- figures -------------------------------------------------------------------------------------


def _scatter(task: Task, column: str, label: str) -> Panel:
    axes = column, accuracy_gap, label, "accuracy gap"
    return Scatter(*axes, where=task.where, title=task.words)


def _fitted(task: Task) -> Claim:
    return Claim(
        f"{task.words}: the training accuracy is near 1.",
        "Sec. 6.1: near 1 even with random labels",
        on(task.where, on(Runs.with_left_out, between(train_accuracy, 0.99, math.inf))),
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

_SAME = (
    "Training stops when the training loss is below 0.01 (0.05 in the quick version), so that all "
    "networks fit their labels equally well; the paper trains for 50, 100 or 200 epochs.",
    "The diagonal of the Hessian is exact; the paper estimates it from differences of gradients "
    "(Eq. 61). BatchNorm is in evaluation mode, of which the paper says nothing.",
    "Every ratio of random labels occurs equally often; the paper draws it at random.",
    "Sharpness is shown as it is; the paper rescales it to [0, 1], which changes no correlation.",
)
_RESNET_SIZE = (
    "A Wide ResNet 10-1 (77,850 parameters) on 500 images stands for the 16-4 (2.7 million) on "
    "50,000: see tsuzuku:paper. 33 networks in place of 100; batches of 50 in place of 128.",
)
_SIZES = (
    "The networks learn from fewer images: 2,000 (MLP, 99 networks), 1,000 (LeNet on MNIST, 55) "
    "and 2,000 (LeNet on CIFAR-10, 33) in place of 60,000 and 50,000 (100 networks each), with "
    "batches of 32 in place of 128, and are tested on 2,000.",
    "The paper does not give the sizes of its MLP; this one has three hidden layers of 128.",
)

FIGURE1 = Study(
    name="tsuzuku:fig1",
    title="Sharpness and the accuracy gap of Wide ResNets with random labels",
    grid=RESNET.full,
    quick=RESNET.quick,
    panels=(
        _scatter(RESNET, TRACE, "trace of the Hessian"),
        _scatter(RESNET, SHARPNESS, "normalized sharpness"),
    ),
    claims=(_fitted(RESNET), *_without_normalization(RESNET), *_distinguished(RESNET)),
    differences=(*_RESNET_SIZE, *_SAME),
)
FIGURE3 = Study(
    name="tsuzuku:fig3",
    title="Normalized sharpness and the accuracy gap with random labels",
    grid=_all("full"),
    quick=_all("quick"),
    panels=_PANELS3,
    claims=_FIG3,
    differences=(*_SIZES, *_RESNET_SIZE, *_SAME),
)
FIGURE4 = Study(
    name="tsuzuku:fig4",
    title="The trace of the Hessian and the accuracy gap with random labels",
    grid=_all("full"),
    quick=_all("quick"),
    panels=_PANELS4,
    claims=_FIG4,
    differences=(*_SIZES, *_RESNET_SIZE, *_SAME),
)

# --- invariance ----------------------------------------------------------------------------------

_PLAIN = {"network": "784-128-128-128-10"}
_NORMED = {"network": f"{_NETWORKS}:wrn_10_2"}
_MATRIX, _RAO = "matrix_normalized_sharpness", "fisher_rao"


def _rescalable(seeds: int, noises: Sequence[float], per_class: int) -> Grid:
    """MLPs without biases, which a split leaves whole, and some networks with BatchNorm."""
    measures = {"measures": (TRACE, SHARPNESS, _MATRIX, _RAO)}
    rescalings = {"rescalings": ("units", "layers", "split")}
    plain = {**_FEW, **_PLAIN, **measures, **rescalings, "per_class": per_class}
    few = {"per_class": per_class // 10, "test_per_class": 10, "batch_size": 20}
    normed = {**_FEW, **_NORMED, "data": "cifar10", **few, "rescalings": "norms"}
    return _realisations(seeds, noises, **plain) + _realisations(seeds - 2, [0.0], **normed)


def _same(measure: str, by: str) -> Test:
    return on(_PLAIN, between(ratio(measure, by), 0.99, 1.01))


def _changes(measure: str, where: dict[str, Any], by: str, sign: int = 1) -> Test:
    """A rescaling makes the measure larger (sign 1) or smaller (-1): its logarithm changes so."""

    def column(runs: Runs) -> np.ndarray:
        return sign * np.log10(ratio(measure, by)(runs))

    side = "larger" if sign > 0 else "smaller"
    column.__name__ = f"powers of ten by which {measure} is {side} rescaled by {by}"
    return on(where, between(column, 0.0, math.inf))


def _before_and_after(measure: str, label: str) -> Panel:
    columns: dict[str, Column] = {
        "as trained": rescaled(measure),
        "units rescaled (Eq. 15, 16)": rescaled(measure, "units"),
        "layers in halves (Eq. 26-30)": rescaled(measure, "split"),
    }
    return Against("label_noise", columns, label, log="y", where=_PLAIN)


RESCALING = Study(
    name="tsuzuku:rescaling",
    title="Sharpness of the same functions with other weights",
    grid=_rescalable(5, [0.0, 0.5, 1.0], 100),
    quick=_rescalable(4, [0.0, 1.0], 20),
    panels=(
        _before_and_after(SHARPNESS, "normalized sharpness"),
        _before_and_after(TRACE, "trace of the Hessian"),
        _before_and_after(_MATRIX, "matrix-normalized sharpness"),
        _before_and_after(_RAO, "Fisher-Rao norm"),
    ),
    claims=(
        Claim(
            "Rescaling hidden units leaves normalized sharpness as it is.",
            "Eq. 15-17: invariant",
            _same(SHARPNESS, "units"),
        ),
        Claim(
            "Rescaling hidden units makes the trace of the Hessian larger.",
            "Sec. 5.1: arbitrarily large",
            _changes(TRACE, _PLAIN, "units"),
        ),
        Claim(
            "Rescaling whole layers leaves matrix-normalized sharpness as it is.",
            "Eq. 13: invariant",
            _same(_MATRIX, "layers"),
        ),
        Claim(
            "Rescaling hidden units makes matrix-normalized sharpness larger.",
            "Sec. 5.1: matrix-wise control is insufficient",
            _changes(_MATRIX, _PLAIN, "units"),
        ),
        Claim(
            "Layers in two equal halves have half the Fisher-Rao norm.",
            "Eq. 26-30: a factor of 2",
            on(_PLAIN, between(ratio(_RAO, "split"), 0.49, 0.51)),
        ),
        Claim(
            "Layers in two equal halves have the same normalized sharpness.",
            "Eq. 26-30: kept the same",
            _same(SHARPNESS, "split"),
        ),
        Claim(
            "Layers in two equal halves have the same matrix-normalized sharpness.",
            "Sec. 7.3: invariant as well",
            _same(_MATRIX, "split"),
        ),
        Claim(
            "Rescaling weights before BatchNorm leaves normalized sharpness as it is.",
            "Sec. 1 and 5.2: free from known scale dependence",
            on(_NORMED, between(ratio(SHARPNESS, "norms"), 0.99, 1.01)),
        ),
        Claim(
            "Larger weights before BatchNorm make the trace of the Hessian smaller.",
            "Sec. 1: scale dependence appears with normalisation layers",
            _changes(TRACE, _NORMED, "norms", -1),
        ),
    ),
    differences=(
        "The paper argues by algebra; these are its transformations of trained networks, with "
        "units' factors between 0.1 and 10, and 10 for layers and weights before BatchNorm.",
        "The halves are added before the ReLU, in Eq. 26 after it: function and derivatives are "
        "the same. The paper says that going from two halves to one matrix halves the Fisher-Rao "
        "norm; by its Eq. 25 it doubles it.",
    ),
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
        *_SAME,
    ),
)

STUDIES = (FIGURE1, FIGURE3, FIGURE4, RESCALING)
LARGE = (PAPER,)  # days on a few cores: run only when named
