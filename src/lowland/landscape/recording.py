"""A forward pass as a list of operations, in three parts by what they depend on.

The same model runs on the same data at thousands of points of weight space. Recorded once, what
depends on the weights alone is done once for a point, what depends on the data alone once for a
batch, and what is linear in the weights (the first layer: its inputs are data) once for each
direction: at ``w + a d1 + b d2`` it is ``F(w) + a F(d1) + b F(d2)``.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch.func import functionalize
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from lowland.batches import Batch
from lowland.problem import Problem

_ATEN = torch.ops.aten
Node = Any  # an fx.Node: by its own types an argument could be any of twenty
# Whose value is linear in the weights where one of the arguments is, and the others are data.
_SHAPES = {
    _ATEN.t.default,
    _ATEN.view.default,
    _ATEN._unsafe_view.default,
    _ATEN.permute.default,
    _ATEN.transpose.int,
    _ATEN.expand.default,
    _ATEN.unsqueeze.default,
    _ATEN.squeeze.dim,
    _ATEN.detach.default,
    _ATEN.alias.default,
}


class Recording:
    """The operations of one forward pass over a batch, for other weights and other data."""

    def __init__(self, problem: Problem, batch: Batch, values: Mapping[str, Tensor]) -> None:
        """Record with these weights; call inside :meth:`Problem.measuring`, without gradients."""
        self.names = tuple(values)
        leaves, self._form = pytree.tree_flatten(batch.inputs)

        def forward(weights: list[Tensor], data: list[Tensor]) -> Tensor:
            inputs = pytree.tree_unflatten(data, self._form)
            return problem.outputs(inputs, dict(zip(self.names, weights, strict=True)))

        weights = list(values.values())
        self.module = _recorded(forward, weights, leaves)
        graph = self.module.graph
        graph.eliminate_dead_code()
        places = list(graph.find_nodes(op="placeholder"))
        self.weights, self.data = places[: len(weights)], places[len(weights) :]

    @property
    def operations(self) -> set[Any]:
        """All operations that it is made of."""
        return {node.target for node in self.module.graph.nodes if node.op == "call_function"}

    def parts(self) -> "Parts":
        """The operations by what they depend on; to be asked after the graph was rewritten."""
        return Parts(self)


class Parts:
    """The three parts of a recording, each as a function.

    ``of_weights(weights) -> values`` is what the rest reads of the weights, ``of_data(data)`` what
    it reads of the data, and ``linear(weights, data)`` what is linear in the weights. ``rest``
    takes the three lists, one after the other, and returns the outputs.
    """

    def __init__(self, recording: Recording) -> None:
        graph = recording.module.graph
        by_weights = dependents(graph, recording.weights)
        by_data = dependents(graph, recording.data)
        (result,) = graph.find_nodes(op="output")
        both = by_weights & by_data
        linear = _linear(graph, by_weights, by_data)
        rest = [node for node in graph.nodes if node in both and node not in linear]
        read = {argument for node in rest for argument in node.all_input_nodes}
        # Outputs of a linear model, or of one that does not look at its data, are read as they are.
        read |= set(result.all_input_nodes)
        ordered = [node for node in graph.nodes if node in read and node not in rest]
        self._linear = [n for n in ordered if n in linear and n in both]
        self._weights = [n for n in ordered if n in by_weights and n not in by_data]
        self._data = [n for n in ordered if n not in by_weights]
        self.of_weights = _function(recording, [recording.weights], self._weights)
        self.of_data = _function(recording, [recording.data], self._data)
        self.linear = _function(recording, [recording.weights, recording.data], self._linear)
        self.rest = _function(
            recording,
            [self._weights, self._data, self._linear],
            list(result.all_input_nodes),
        )
        used = _sources(self._weights) & set(recording.weights)
        places = {node: i for i, node in enumerate(recording.weights)}
        self.read_weights = sorted(places[node] for node in used)  # beside those of linear parts
        self.widest = max((_numbers(n) for n in [*rest, *self._linear]), default=1)


def _recorded(
    forward: Callable[[list[Tensor], list[Tensor]], Tensor], *lists: list[Tensor]
) -> fx.GraphModule:
    """The operations, none of which writes in place.

    A tensor that is made once for all points would be written again at each of them. Operations in
    place become others that return what they wrote.
    """
    recorded = make_fx(functionalize(forward))(*lists)
    if any(map(_writes, recorded.graph.nodes)):  # those inside of torch's own LSTM
        recorded = make_fx(functionalize(recorded))(*lists)
    if any(map(_writes, recorded.graph.nodes)):
        raise RuntimeError("the forward pass writes into tensors of the model")
    return recorded


def _writes(node: Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return schema is not None and schema.is_mutable


def dependents(graph: fx.Graph, sources: Sequence[Node]) -> set[Node]:
    """All that is computed from some nodes, with themselves."""
    reached = set(sources)
    for node in graph.nodes:
        if node.op == "call_function" and any(a in reached for a in node.all_input_nodes):
            reached.add(node)
    return reached


def _sources(nodes: Sequence[Node]) -> set[Node]:
    """All that the nodes are computed from, with themselves."""
    seen: set[Node] = set()
    left = list(nodes)
    while left:
        node = left.pop()
        if node not in seen:
            seen.add(node)
            left.extend(node.all_input_nodes)
    return seen


def _linear(graph: fx.Graph, by_weights: set[Node], by_data: set[Node]) -> set[Node]:
    """The nodes that are linear in all weights together, and 0 where all of these are."""
    linear = {n for n in graph.nodes if n in by_weights and n.op == "placeholder"}

    def is_constant(argument: Any) -> bool:
        return not isinstance(argument, fx.Node) or argument not in by_weights

    def is_linear(argument: Any) -> bool:
        return isinstance(argument, fx.Node) and argument in linear

    for node in graph.nodes:
        if node.op != "call_function":
            continue
        args = node.args
        if node.target in _SHAPES:
            holds = is_linear(args[0])
        elif node.target in (_ATEN.mm.default, _ATEN.bmm.default):
            sides = args[:2]
            holds = any(is_constant(a) and is_linear(b) for a, b in (sides, sides[::-1]))
        elif node.target is _ATEN.addmm.default:
            scaled = bool(node.kwargs) or len(args) > 3
            holds = is_linear(args[0]) and is_constant(args[1]) and is_linear(args[2])
            holds = holds and not scaled
        elif node.target is _ATEN.convolution.default:
            bias = args[2] is None or is_linear(args[2])
            holds = is_constant(args[0]) and is_linear(args[1]) and bias
        elif node.target is _ATEN.add.Tensor:
            holds = all(map(is_linear, args[:2])) and not node.kwargs
        else:
            holds = False
        if holds:
            linear.add(node)
    return linear


def _shape(node: Node) -> tuple[int, ...] | None:
    value = node.meta.get("tensor_meta")
    return tuple(value.shape) if hasattr(value, "shape") else None


def _numbers(node: Node) -> int:
    shape = _shape(node)
    return torch.Size(shape).numel() if shape is not None else 0


def _function(
    recording: Recording, groups: Sequence[Sequence[Node]], results: Sequence[Node]
) -> Callable[..., list[Any]]:
    """A function of lists of values, for each group of nodes, that computes the results."""
    graph = fx.Graph()
    copies: dict[Node, Node] = {}
    for group in groups:
        for node in group:
            copies[node] = graph.placeholder(f"given_{len(copies)}")
    wanted, left = set(), [node for node in results if node not in copies]
    while left:
        node = left.pop()
        if node not in wanted and node not in copies:
            wanted.add(node)
            left.extend(node.all_input_nodes)
    for node in recording.module.graph.nodes:
        if node in wanted:
            copies[node] = graph.node_copy(node, lambda n: copies[n])
    graph.output([copies[node] for node in results])
    module = fx.GraphModule(recording.module, graph)
    sizes = [len(group) for group in groups]

    def call(*lists: Sequence[Any]) -> list[Any]:
        assert [len(values) for values in lists] == sizes
        return module(*(value for values in lists for value in values))

    return call
