"""Which hidden units of a model may change places without a change of its function.

A forward pass is recorded with all parameters and buffers, and the units are followed through it: a
dimension of a tensor carries a group of units if permuting it, together with every other dimension
of that group, changes nothing. Products, convolutions, normalisations, pointwise operations, sums,
joined and split dimensions are known; whatever meets another operation stays where it is. What
comes out is verified: after random permutations the outputs must be the same.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from lowland.errors import InputError
from lowland.landscape.models import state_of
from lowland.landscape.recording import Node, Recording
from lowland.landscape.transposing import POINTWISE
from lowland.problem import Problem

_ATEN = torch.ops.aten
_SAMPLES = 4
_CLOSE = {torch.float32: 1e-4, torch.float64: 1e-9}

Carried = tuple["_Group | None", int]  # a group, and how many numbers each of its units has


class _Group:
    """Units that move together; groups that meet become one."""

    def __init__(self, size: int) -> None:
        self.size, self._parent, self._fixed = size, self, False

    @property
    def root(self) -> "_Group":
        return self if self._parent is self else self._parent.root

    @property
    def fixed(self) -> bool:
        return self.root._fixed

    def fix(self) -> None:
        self.root._fixed = True

    def join(self, other: "_Group") -> None:
        a, b = self.root, other.root
        if a is b:
            return
        if a.size != b.size:
            a.fix()
            b.fix()
            return
        b._parent = a
        a._fixed |= b._fixed


@dataclass(frozen=True)
class Place:
    """A dimension of a parameter or buffer along which a group of units lies."""

    name: str
    dimension: int
    block: int  # numbers of each unit, one after the other


@dataclass(frozen=True)
class Units:
    """A group of units that may be permuted, and everywhere that it lies."""

    size: int
    places: tuple[Place, ...]

    def __str__(self) -> str:
        first = next((p for p in self.places if p.dimension == 0), self.places[0])
        return f"{self.size} units of {first.name!r}"


def permuted(
    state: Mapping[str, Tensor], groups: tuple[Units, ...], orders: list[Tensor]
) -> dict[str, Tensor]:
    """The state with the units of each group in another order."""
    new = dict(state)
    for group, order in zip(groups, orders, strict=True):
        for place in group.places:
            t = new[place.name]
            blocks = torch.arange(place.block, device=order.device)
            index = (order[:, None] * place.block + blocks).flatten().to(t.device)
            new[place.name] = t.index_select(place.dimension, index)
    return new


def units(problem: Problem) -> tuple[Units, ...]:
    """All groups of hidden units that may be permuted; an error where none can be derived."""
    problem.check_whole()
    if problem.loss.needs_model:
        raise InputError("alignment needs a loss of the model's outputs, not one that runs it")
    with problem.measuring(), torch.no_grad():
        batch = problem.first(_SAMPLES)
        state = state_of(problem)
        try:
            recording = Recording(problem, batch, state)
        except InputError:
            raise
        except Exception as error:
            raise InputError(
                "the permutations of hidden units cannot be derived: the forward pass cannot be "
                f"recorded ({type(error).__name__}); align the models yourself and pass them"
            ) from error
        groups = _Followed(recording, state).groups()
        if not groups:
            raise InputError(
                "no hidden units of this architecture are known to be permutable (an operation "
                "that mixes units lies on every way); align the models yourself and pass them"
            )
        _verify(problem, state, groups)
    return groups


def _verify(problem: Problem, state: dict[str, Tensor], groups: tuple[Units, ...]) -> None:
    batch = problem.first(_SAMPLES)
    generator = torch.Generator().manual_seed(0)
    orders = [torch.randperm(group.size, generator=generator) for group in groups]
    before = problem.outputs(batch.inputs, state)
    after = problem.outputs(batch.inputs, permuted(state, groups, orders))
    close = _CLOSE.get(before.dtype, 1e-2)
    if not torch.allclose(before, after, close, close * float(before.abs().max())):
        raise InputError(
            "the permutations that were derived for this architecture change its function, so the "
            "models cannot be aligned by them; align them yourself and pass them"
        )


class _Followed:
    """Units followed through a recording."""

    def __init__(self, recording: Recording, state: Mapping[str, Tensor]) -> None:
        self.state = state
        self.names = dict(zip(recording.weights, recording.names, strict=True))
        self.own: dict[Node, list[_Group]] = {}
        self.carried: dict[Node, list[Carried]] = {}
        for node, name in self.names.items():
            self.own[node] = [_Group(size) for size in state[name].shape]
            self.carried[node] = [(group, 1) for group in self.own[node]]
        for node in recording.module.graph.nodes:
            if node.op == "call_function":
                self._follow(node)
            elif node.op == "output":
                for result in node.all_input_nodes:
                    self._fix(result)

    def groups(self) -> tuple[Units, ...]:
        places: dict[_Group, list[Place]] = {}
        for node, own in self.own.items():
            for dimension, group in enumerate(own):
                if not group.fixed and group.root.size > 1 and node.users:
                    block = group.size // group.root.size
                    places.setdefault(group.root, []).append(
                        Place(self.names[node], dimension, block)
                    )
        ordered = sorted(places.items(), key=lambda item: list(self.state).index(item[1][0].name))
        return tuple(Units(root.size, tuple(listed)) for root, listed in ordered)

    # Dimensions ----------------------------------------------------------------------------------

    def _of(self, node: Any) -> list[Carried]:
        """What each dimension of a value carries; data carries nothing."""
        if node in self.carried:
            return self.carried[node]
        return [(None, 1)] * len(_shape(node) or ())

    def _fix(self, node: Any) -> None:
        if isinstance(node, fx.Node):
            for group, _ in self._of(node):
                if group is not None:
                    group.fix()

    def _meet(self, a: Carried, b: Carried) -> Carried:
        """Two dimensions that are summed over, or added, number by number."""
        (first, one), (second, other) = a, b
        if first is None or second is None:
            for group in (first, second):
                if group is not None:
                    group.fix()
            return None, 1
        if first.root is second.root:
            return first, max(one, other)
        if one == other:
            first.join(second)
            return first, one
        # A plain dimension of weights, (units * block): its blocks are the units.
        if other == 1 and second.root.size == first.root.size * one:
            return self._nested(first, second, one)
        if one == 1 and first.root.size == second.root.size * other:
            return self._nested(second, first, other)
        first.fix()
        second.fix()
        return None, 1

    def _nested(self, units: "_Group", plain: "_Group", block: int) -> Carried:
        root = plain.root
        root._parent = units.root
        units.root._fixed |= root._fixed
        return units, block

    # Operations ----------------------------------------------------------------------------------

    def _follow(self, node: Node) -> None:
        follow = {
            _ATEN.t.default: self._turned,
            _ATEN.mm.default: self._product,
            _ATEN.addmm.default: self._dense,
            _ATEN.convolution.default: self._convolution,
            _ATEN.native_batch_norm.default: self._norm,
            _ATEN._native_batch_norm_legit_no_training.default: self._norm,
            _ATEN.native_layer_norm.default: self._layer_norm,
            _ATEN.view.default: self._viewed,
            _ATEN._unsafe_view.default: self._viewed,
            _ATEN.mean.dim: self._averaged,
            _ATEN.add.Tensor: self._together,
            _ATEN.mul.Tensor: self._together,
            _ATEN.sub.Tensor: self._together,
        }.get(node.target)
        shape = _shape(node)
        if str(node.target) == "<built-in function getitem>":
            if node.args[1] == 0 and node.args[0] in self.carried:
                self.carried[node] = self.carried[node.args[0]]
            return
        if node.target in POINTWISE or node.target in _SAME:
            self.carried[node] = self._of(node.args[0])
        elif node.target in _POOLING:
            self.carried[node] = [*self._of(node.args[0])[:2], (None, 1), (None, 1)][
                : len(shape or ()) or 4
            ]
        elif follow is None or not _followed(follow, node):
            for argument in node.all_input_nodes:
                self._fix(argument)

    def _turned(self, node: Node) -> bool:
        self.carried[node] = self._of(node.args[0])[::-1]
        return True

    def _product(self, node: Node) -> bool:
        a, b = (self._of(argument) for argument in node.args[:2])
        self._meet(a[1], b[0])
        self.carried[node] = [a[0], b[1]]
        return True

    def _dense(self, node: Node) -> bool:
        bias, x, weight = (self._of(argument) for argument in node.args[:3])
        self._meet(x[1], weight[0])
        if len(bias) != 1:
            return False
        self.carried[node] = [x[0], self._meet(bias[0], weight[1])]
        return True

    def _convolution(self, node: Node) -> bool:
        x, weight, bias, *_, transposed, _, groups = node.args
        images, kernel = self._of(x), self._of(weight)
        channels, kernels = _shape(x), _shape(weight)
        if channels is None or kernels is None or transposed:
            return False
        if groups == 1:
            self._meet(images[1], kernel[1])
            out = kernel[0]
        elif groups == channels[1] == kernels[0]:  # each channel by itself
            out = self._meet(images[1], kernel[0])
        else:
            return False
        if bias is not None:
            out = self._meet(out, self._of(bias)[0])
        for group, _ in kernel[2:]:
            assert group is not None
            group.fix()
        self.carried[node] = [images[0], out, *[(None, 1)] * (len(kernel) - 2)]
        return True

    def _layer_norm(self, node: Node) -> bool:
        x, normalised, *vectors, _ = node.args
        carried = list(self._of(x))
        if len(normalised) != 1:
            return False
        for vector in vectors:
            if vector is not None:
                carried[-1] = self._meet(carried[-1], self._of(vector)[0])
        self.carried[node] = carried
        return True

    def _norm(self, node: Node) -> bool:
        x, *vectors = node.args[:5]
        carried = list(self._of(x))
        for vector in vectors:
            if vector is not None:
                carried[1] = self._meet(carried[1], self._of(vector)[0])
        self.carried[node] = carried
        return True

    def _viewed(self, node: Node) -> bool:
        """Dimensions joined or split: joined, the units' numbers lie one after the other."""
        before, after = _shape(node.args[0]), _shape(node)
        if before is None or after is None:
            return False
        old = self._of(node.args[0])
        viewed: list[Carried] = [(None, 1)] * len(after)
        for rows, columns in _regrouped(before, after):
            units = [i for i in rows if old[i][0] is not None]
            if not units:
                continue
            group, block = old[units[0]]
            if len(units) > 1 or units[0] != rows[0] or len(columns) != 1:
                return False
            inner = torch.Size(before[i] for i in rows[1:]).numel()
            viewed[columns[0]] = (group, block * inner)
        self.carried[node] = viewed
        return True

    def _averaged(self, node: Node) -> bool:
        shape = _shape(node.args[0])
        if shape is None:
            return False
        gone = {d % len(shape) for d in node.args[1]}
        keep = len(node.args) > 2 and node.args[2]
        carried = self._of(node.args[0])
        if any(carried[d][0] is not None for d in gone):
            return False
        rest = [(None, 1) if i in gone else c for i, c in enumerate(carried)]
        self.carried[node] = [c for i, c in enumerate(rest) if keep or i not in gone]
        return True

    def _together(self, node: Node) -> bool:
        a, b = node.args[:2]
        if not isinstance(b, fx.Node):
            self.carried[node] = self._of(a)
            return True
        if not isinstance(a, fx.Node) or _shape(a) != _shape(b) or _shape(a) is None:
            return False
        pairs = zip(self._of(a), self._of(b), _shape(a) or (), strict=True)
        # Samples and positions carry nothing on both sides.
        self.carried[node] = [
            (None, 1) if p[0] is None and q[0] is None else self._meet(p, q) for p, q, _ in pairs
        ]
        return True


_SAME = {
    _ATEN.clone.default,
    _ATEN.detach.default,
    _ATEN.alias.default,
    _ATEN.add.Scalar,
    _ATEN.mul.Scalar,
    _ATEN.div.Scalar,
    _ATEN.neg.default,
}
_POOLING = {
    _ATEN.max_pool2d_with_indices.default,
    _ATEN.avg_pool2d.default,
    _ATEN._adaptive_avg_pool2d.default,
}


def _regrouped(
    before: tuple[int, ...], after: tuple[int, ...]
) -> Iterator[tuple[list[int], list[int]]]:
    """The smallest runs of dimensions that hold the same numbers; those of size 1 are left out."""
    rows = iter([i for i, size in enumerate(before) if size > 1])
    columns = iter([i for i, size in enumerate(after) if size > 1])
    for row in rows:
        old, new = [row], [next(columns)]
        while (held := _numel(before, old)) != (wanted := _numel(after, new)):
            if held < wanted:
                old.append(next(rows))
            else:
                new.append(next(columns))
        yield old, new


def _numel(shape: tuple[int, ...], dimensions: list[int]) -> int:
    return torch.Size(shape[i] for i in dimensions).numel()


def _followed(follow: Callable[[Node], bool], node: Node) -> bool:
    try:
        return follow(node)
    except (IndexError, ValueError, AssertionError):  # of dimensions that are not as usual
        return False


def _shape(node: Any) -> tuple[int, ...] | None:
    meta: Any = node.meta.get("tensor_meta") if isinstance(node, fx.Node) else None
    return tuple(meta.shape) if hasattr(meta, "shape") else None
