"""Dense ReLU networks on sparse inputs, trained by a compiled loop (``descent.c``).

Four fifths of the pixels of a written digit are zero. A batched product multiplies them all the
same; the compiled loop leaves them out, and has none of the overhead of a step's operations. Its
numbers differ from those of a stack (:mod:`lowland.training.stack`) by rounding alone: the order of
the data and the masks of dropout are drawn in the same way.
"""

import ctypes
import itertools
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, get_args

import torch
from torch import Tensor, nn

from lowland.errors import InputError
from lowland.losses import Loss
from lowland.training.compiled import library
from lowland.training.loop import Data
from lowland.training.settings import Epoch, Penalty, TrainingSettings
from lowland.training.stack import Dropouts, kind_of

_SOURCE = Path(__file__).with_name("descent.c")
_LANES = 16  # floats of a vector

# Beyond these, products of torch are as fast for batches of 400 (784-100-100-10), or nearly so.
_DENSEST = 0.6  # share of inputs that are not zero; 0.19 for MNIST, 0.51 for digits
_WIDEST = 512  # outputs of a layer


def switched_off() -> bool:
    """Whether the environment variable LOWLAND_KERNEL forbids the compiled loop."""
    choice = os.environ.get("LOWLAND_KERNEL", "on")
    if choice not in ("on", "off"):
        raise InputError(f"LOWLAND_KERNEL is {choice!r}; it must be 'on' or 'off'")
    return choice == "off"


@dataclass(frozen=True)
class _Layer:
    """A dense layer and where its weights lie, (in, out) and then the bias."""

    linear: nn.Linear
    dropout: str | None  # the name of the one behind it
    rows: int
    columns: int
    place: int

    @property
    def end(self) -> int:
        return self.place + (self.rows + 1) * self.columns

    def macro(self, number: int) -> str:
        bias = int(self.linear.bias is not None)
        return f"DO({number},{self.rows},{self.columns},{bias},{self.place})"


class _Samples(ctypes.Structure):
    """``data`` of descent.c."""

    _fields_ = tuple((name, ctypes.c_void_p) for name in ("starts", "columns", "values", "labels"))


class SparseInputs:
    """Inputs row by row, without their zeros; made once for all runs that share a tensor."""

    def __init__(self) -> None:
        self._rows: dict[int, tuple[Tensor, tuple[Tensor, Tensor, Tensor] | None]] = {}

    def of(self, X: Tensor) -> tuple[Tensor, Tensor, Tensor] | None:
        """Starts of the rows, columns and values; None if too few of the inputs are zero."""
        if id(X) not in self._rows:
            self._rows[id(X)] = X, _sparse(X)  # with X itself, so that its id stays its own
        return self._rows[id(X)][1]


def _sparse(X: Tensor) -> tuple[Tensor, Tensor, Tensor] | None:
    flat = X.detach().flatten(1)
    present = flat != 0
    counts = present.sum(1)
    if counts.sum() > _DENSEST * flat.numel():
        return None
    starts = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    return starts, present.nonzero()[:, 1].int(), flat[present]


class Descent:
    """The training of one network by the compiled loop, epoch by epoch."""

    @classmethod
    def of(
        cls,
        model: nn.Module,
        data: Data,
        settings: TrainingSettings,
        loss: Loss,
        judged: int | None,
        inputs: SparseInputs,
    ) -> Self | None:
        """The training of a run, or None if the run is not one that the loop can do, or is slow at.

        The loop is trusted only after it gave the loss that the model itself has.
        """
        if switched_off() or not (_takes(settings) and loss.is_softmax):
            return None
        layers = _layers(model)
        if layers is None or not _fits(layers, data):
            return None
        rows = inputs.of(data[0])
        compiled = None if rows is None else library(_SOURCE, _macros(layers))
        if rows is None or compiled is None:
            return None
        descent = cls(model, data, settings, judged, rows, layers, compiled)
        return descent if descent._agrees(loss) else None

    def __init__(
        self,
        model: nn.Module,
        data: Data,
        settings: TrainingSettings,
        judged: int | None,
        rows: tuple[Tensor, Tensor, Tensor],
        layers: Sequence[_Layer],
        compiled: ctypes.CDLL,
    ) -> None:
        self.model, self.data, self.settings = model, data, settings
        self.judged = judged or len(data[0])
        self.layers, self.compiled = layers, compiled
        self.weights = torch.zeros(layers[-1].end)
        for layer in layers:
            W, b = self._parts(layer)
            W.copy_(layer.linear.weight.detach().T)
            if layer.linear.bias is not None:
                b.copy_(layer.linear.bias.detach())
        self.order = torch.Generator().manual_seed(settings.seed)
        self.dropouts = Dropouts([model], data[0][:1], [settings.seed])
        self.tensors = *rows, data[1].int()
        self.samples = _Samples(*(t.data_ptr() for t in self.tensors))

    def _parts(self, layer: _Layer) -> tuple[Tensor, Tensor]:
        """The weights (in, out) and the bias of a layer, as they lie in the vector of all."""
        whole = self.weights[layer.place : layer.end].view(layer.rows + 1, layer.columns)
        W, b = whole[:-1], whole[-1]
        return W[: layer.linear.in_features, : layer.linear.out_features], b[
            : layer.linear.out_features
        ]

    def epoch(self, number: int) -> Epoch:
        """Train for one epoch, counted from 1, and evaluate."""
        settings = self.settings
        n, batch = len(self.data[0]), settings.batch_size
        order = torch.randperm(n, generator=self.order)
        steps = -(-n // batch)
        rates = [settings.rate_at(number - 1 + i / steps) for i in range(steps)]
        masks = self._masks(n, batch)
        beta = settings.decay_in(number)
        penalty = 1 + get_args(Penalty).index(settings.penalty) if beta else 0
        self._call(
            self.compiled.epoch,
            self.weights,
            ctypes.byref(self.samples),
            order,
            ctypes.c_int64(n),
            ctypes.c_int64(batch),
            torch.tensor(rates, dtype=torch.float32),
            ctypes.c_int(penalty),
            ctypes.c_float(beta),
            (ctypes.c_void_p * len(masks))(*(m if m is None else m.data_ptr() for m in masks)),
        )
        return self._evaluated(self.judged)

    def _evaluated(self, n: int) -> Epoch:
        loss, wrong = ctypes.c_double(), ctypes.c_int64()
        self._call(
            self.compiled.evaluate,
            self.weights,
            ctypes.byref(self.samples),
            ctypes.c_int64(n),
            ctypes.byref(loss),
            ctypes.byref(wrong),
        )
        norm = float(self.weights.double().norm())
        return Epoch(loss.value / n, wrong.value / n, norm)

    def _masks(self, n: int, batch: int) -> list[Tensor | None]:
        """For each layer the masks of an epoch, (samples, out), where it has a dropout."""
        sizes = [min(batch, n - first) for first in range(0, n, batch)]
        drawn = [self.dropouts.draw(size) for size in sizes] if self.dropouts.shapes else []
        masks: list[Tensor | None] = []
        for layer in self.layers:
            if layer.dropout is None:
                masks.append(None)
                continue
            mask = torch.zeros(n, layer.columns)
            own = torch.cat([masks_[f"{layer.dropout}.mask"][0] for masks_ in drawn])
            mask[:, : layer.linear.out_features] = own
            masks.append(mask)
        return masks

    def _agrees(self, loss: Loss) -> bool:
        """Whether the loop has the model's own loss for the first samples."""
        few = min(8, len(self.data[0]))
        X, y = (part[:few] for part in self.data)
        modes = [(module, module.training) for module in self.model.modules()]
        try:
            with torch.no_grad():
                own = loss(self.model.eval()(X), y).double().mean()
        finally:
            for module, mode in modes:
                module.training = mode
        loops = torch.tensor(self._evaluated(few).loss, dtype=torch.float64)
        return torch.allclose(loops, own, rtol=1e-3, atol=1e-5)

    @staticmethod
    def _call(function: Any, *arguments: Any) -> None:
        """Call a function of descent.c; tensors are passed by their address."""
        passed = [ctypes.c_void_p(a.data_ptr()) if isinstance(a, Tensor) else a for a in arguments]
        if function(*passed):
            raise MemoryError("there is no memory for the activities of a batch")

    @torch.no_grad()
    def hand_over(self) -> None:
        """Give the model its weights."""
        for layer in self.layers:
            W, b = self._parts(layer)
            layer.linear.weight.copy_(W.T)
            if layer.linear.bias is not None:
                layer.linear.bias.copy_(b)


def _takes(settings: TrainingSettings) -> bool:
    return settings.optimizer == "sgd" and not settings.momentum and settings.average is None


def _layers(model: nn.Module) -> list[_Layer] | None:
    """The layers of a chain: dense, ReLU, perhaps dropout, dense, and so on; None for others."""
    if type(model) is not nn.Sequential or kind_of(model) is None:
        return None
    chain = list(model._modules.items())
    if chain and isinstance(chain[0][1], nn.Flatten):
        flatten = chain.pop(0)[1]
        if (flatten.start_dim, flatten.end_dim) != (1, -1):
            return None
    linears: list[nn.Linear] = []
    dropouts: list[str | None] = []
    expected: tuple[type, ...] = (nn.Linear,)
    for name, module in chain:
        if type(module) not in expected:
            return None
        if isinstance(module, nn.Linear):
            linears.append(module)
            dropouts.append(None)
            expected = (nn.ReLU,)
        elif isinstance(module, nn.Dropout):
            dropouts[-1] = name
            expected = (nn.Linear,)
        else:
            expected = (nn.Dropout, nn.Linear)
    if not linears or expected != (nn.ReLU,):  # the last is no dense layer
        return None
    layers: list[_Layer] = []
    rows, place = linears[0].in_features, 0
    for linear, dropout in zip(linears, dropouts, strict=True):
        columns = -(-linear.out_features // _LANES) * _LANES
        layers.append(_Layer(linear, dropout, rows, columns, place))
        rows, place = columns, layers[-1].end
    return layers


def _fits(layers: Sequence[_Layer], data: Data) -> bool:
    """Whether sizes, types and labels are those that the loop is written for."""
    X, y = data
    linears = [layer.linear for layer in layers]
    classes = linears[-1].out_features
    return (
        all(p.dtype == torch.float32 and not p.is_cuda for m in linears for p in m.parameters())
        and X.dtype == torch.float32
        and X.device.type == y.device.type == "cpu"
        and X[0].numel() == linears[0].in_features
        and all(a.out_features == b.in_features for a, b in itertools.pairwise(linears))
        and max(linear.out_features for linear in linears) <= _WIDEST
        and y.ndim == 1
        and not y.is_floating_point()
        and y.dtype != torch.bool
        and bool((y >= 0).all() and (y < classes).all())
    )


def _macros(layers: Sequence[_Layer]) -> tuple[str, ...]:
    """What descent.c is told of the layers."""
    first, *later = (layer.macro(number) for number, layer in enumerate(layers))
    numbers = {
        "CLASSES": layers[-1].linear.out_features,
        "DEPTH": len(layers),
        "WIDTHS": sum(layer.columns for layer in layers),
        "IN_TIMES_OUT": sum(layer.rows * layer.columns for layer in layers[1:]),
    }
    lists = {"FIRST": [first], "LATER": later, "BACKWARDS": later[::-1]}
    return (
        *(f"-D{name}={number}" for name, number in numbers.items()),
        *(f"-D{name}(DO)={' '.join(items)}" for name, items in lists.items()),
    )
