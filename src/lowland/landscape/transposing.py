"""A recorded forward pass of dense layers, with the samples last.

``(W h^T)`` in place of ``h W^T``: where layers are narrow, the products and the loss then go along
the many samples and not along the few units. Measured for 784-30-30-10 on 1,000 images: products of
30 x 30 take 50 us a point in place of 89, those of 10 x 30 22 in place of 88, and the cross-entropy
30 in place of 307.
"""

import torch

from lowland.landscape.recording import Node, Recording, dependents

_ATEN = torch.ops.aten
POINTWISE = {
    _ATEN.relu.default,
    _ATEN.tanh.default,
    _ATEN.sigmoid.default,
    _ATEN.gelu.default,
    _ATEN.silu.default,
    _ATEN.elu.default,
    _ATEN.softplus.default,
    _ATEN.leaky_relu.default,
    _ATEN.hardtanh.default,
}


def transpose(recording: Recording) -> None:
    """Rewrite the graph in place, if it is made of dense layers and pointwise operations alone."""
    graph = recording.module.graph
    by_weights = dependents(graph, recording.weights)
    both = by_weights & dependents(graph, recording.data)
    (result,) = graph.find_nodes(op="output")
    nodes = [node for node in graph.nodes if node in both]
    if not nodes or not all(_known(node, both) for node in nodes):
        return
    columns: dict[Node, Node] = {}  # each with its samples last
    call = graph.call_function
    for node in nodes:
        with graph.inserting_before(node):
            if node.target in POINTWISE:
                new = call(node.target, (columns[node.args[0]], *node.args[1:]), node.kwargs)
            elif node.target is _ATEN.add.Tensor:
                new = call(node.target, (columns[node.args[0]], columns[node.args[1]]))
            else:
                *bias, h, weight = node.args
                if h not in columns:  # data
                    turned = call(_ATEN.t.default, (h,))
                    columns[h] = call(_ATEN.contiguous.default, (turned,))
                new = call(_ATEN.mm.default, (weight.args[0], columns[h]))
                if bias:
                    column = call(_ATEN.unsqueeze.default, (bias[0], 1))
                    new.meta = dict(node.meta)
                    new = call(_ATEN.add.Tensor, (new, column))
            new.meta = dict(node.meta)
            columns[node] = new
    for node in list(result.all_input_nodes):
        with graph.inserting_before(result):
            result.replace_input_with(node, call(_ATEN.t.default, (columns[node],)))
    graph.eliminate_dead_code()
    graph.lint()


def _known(node: Node, both: set[Node]) -> bool:
    """Whether it is a dense layer of rows, a sum of two, or a pointwise operation."""
    args = node.args
    if node.target in POINTWISE:
        return args[0] in both
    if node.target is _ATEN.add.Tensor:
        same = len(args) == 2 and not node.kwargs and all(a in both for a in args)
        return same and _shape(args[0]) == _shape(args[1])
    if node.target is _ATEN.addmm.default:
        layer = len(args) == 3 and not node.kwargs and _is_vector(args[0])
        return layer and args[0] not in both and _is_dense(args[1], args[2], both)
    return node.target is _ATEN.mm.default and _is_dense(args[0], args[1], both)


def _is_dense(h: Node, weight: Node, both: set[Node]) -> bool:
    return weight.target is _ATEN.t.default and weight not in both


def _is_vector(node: Node) -> bool:
    shape = _shape(node)
    return shape is not None and len(shape) == 1


def _shape(node: Node) -> tuple[int, ...] | None:
    meta = node.meta.get("tensor_meta")
    return tuple(meta.shape) if hasattr(meta, "shape") else None
