"""A recorded forward pass of convolutions, with less to do for each point and image.

Normalisations in eval mode go into the convolution before them, and sums and ReLUs into the
convolution that they follow, as torch's own compiler does it on a processor. What is left is close
to what the arithmetic of a convolution takes.
"""

from typing import Any

import torch
from torch import fx

from lowland.landscape.recording import Node, Recording

_ATEN = torch.ops.aten
_NORMS = {
    _ATEN.native_batch_norm.default,
    _ATEN._native_batch_norm_legit_no_training.default,
}


def fuse(recording: Recording) -> None:
    """Rewrite the graph in place; the outputs stay the same up to rounding."""
    graph = recording.module.graph
    for node in list(graph.nodes):
        if node.target in _NORMS:
            _fold(graph, node)
    graph.eliminate_dead_code()
    if not _fused_operations_exist(recording):
        return
    for node in list(graph.nodes):
        if node.target is _ATEN.relu.default:
            _fuse_relu(graph, node)
    for node in list(graph.nodes):
        if node.target is _ATEN.convolution.default and _is_plain(node):
            _replace(graph, node, node, None, "none")
    for node in recording.data:
        if _rank(node) == 4:
            _channels_last(graph, node)
    for node in graph.nodes:
        if node.target in (_ATEN.view.default, _ATEN._unsafe_view.default):
            node.target = _ATEN.reshape.default  # in another layout it may not be a view
    graph.eliminate_dead_code()
    graph.lint()


def _fold(graph: fx.Graph, norm: Node) -> None:
    """``gamma (conv(x, w) - mu) / sigma + beta`` is ``conv(x, w gamma / sigma)`` plus a bias."""
    legit = norm.target is not _ATEN.native_batch_norm.default
    x, gamma, beta, mean, variance = norm.args[:5]
    training, eps = (False, norm.args[6]) if legit else (norm.args[5], norm.args[7])
    reads = [user for user in norm.users if user.args[1] == 0]
    if (
        training
        or mean is None
        or variance is None
        or not isinstance(x, fx.Node)
        or x.target is not _ATEN.convolution.default
        or x.args[6]  # transposed: its filters lie along another dimension
        or len(x.users) != 1
        or len(reads) != 1
    ):
        return
    with graph.inserting_before(norm):
        call = graph.call_function
        scale = call(_ATEN.rsqrt.default, (call(_ATEN.add.Scalar, (variance, eps)),))
        if gamma is not None:
            scale = call(_ATEN.mul.Tensor, (scale, gamma))
        rank = _rank(x) or 4
        column = call(_ATEN.view.default, (scale, [-1] + [1] * (rank - 1)))
        weight = call(_ATEN.mul.Tensor, (x.args[1], column))
        shift = call(_ATEN.neg.default, (mean,))
        if x.args[2] is not None:
            shift = call(_ATEN.add.Tensor, (shift, x.args[2]))
        shift = call(_ATEN.mul.Tensor, (shift, scale))
        if beta is not None:
            shift = call(_ATEN.add.Tensor, (shift, beta))
        folded = call(_ATEN.convolution.default, (x.args[0], weight, shift, *x.args[3:]))
        folded.meta = dict(x.meta)
    reads[0].replace_all_uses_with(folded)


def _fused_operations_exist(recording: Recording) -> bool:
    shapes = [node.meta.get("tensor_meta") for node in recording.data]
    floats = all(m is None or m.dtype in (torch.float32, torch.int64) for m in shapes)
    here = all(p.device.type == "cpu" for p in _tensors(recording))
    there = hasattr(torch.ops.mkldnn, "_convolution_pointwise")
    single = all(p.dtype == torch.float32 for p in _tensors(recording) if p.is_floating_point())
    return floats and here and there and single and torch.backends.mkldnn.is_available()


def _tensors(recording: Recording) -> list[Any]:
    metas = [node.meta.get("val") for node in recording.module.graph.nodes]
    return [m for m in metas if isinstance(m, torch.Tensor)]


def _is_plain(node: Node) -> bool:
    """Whether it is a convolution over images that is not transposed, and of known shape."""
    return node.target is _ATEN.convolution.default and not node.args[6] and _rank(node) == 4


def _fuse_relu(graph: fx.Graph, relu: Node) -> None:
    before = relu.args[0]
    if len(before.users) != 1:
        return
    if _is_plain(before):
        _replace(graph, relu, before, None, "relu")
    elif before.target is _ATEN.add.Tensor and not before.kwargs and len(before.args) == 2:
        sides = [a for a in before.args if isinstance(a, fx.Node)]
        if len(sides) != 2 or sides[0] is sides[1]:
            return
        for convolution, other in (sides, sides[::-1]):
            alike = _shape(convolution) is not None and _shape(convolution) == _shape(other)
            if _is_plain(convolution) and len(convolution.users) == 1 and alike:
                _replace(graph, relu, convolution, other, "relu")
                return


def _replace(
    graph: fx.Graph, node: Node, convolution: Node, other: Node | None, after: str
) -> None:
    """Put one fused operation in the place of ``node``, which ends what is fused."""
    x, weight, bias, stride, padding, dilation, _, _, groups = convolution.args
    operation = torch.ops.mkldnn._convolution_pointwise
    with graph.inserting_before(node):
        weight = _laid_out(graph, weight)
        where = (padding, stride, dilation, groups)
        if other is None:
            args: tuple = (x, weight, bias, *where, after, [], "")
            fused = graph.call_function(operation.default, args)
        else:
            args = (x, other, weight, bias, *where, "add", 1.0, after, [], "")
            fused = graph.call_function(operation.binary, args)
        fused.meta = dict(node.meta)
    node.replace_all_uses_with(fused)


def _channels_last(graph: fx.Graph, node: Node) -> None:
    """Lay the images out as the fused operations want them; what follows keeps it so."""
    users = list(node.users)
    with graph.inserting_after(node):
        laid_out = _laid_out(graph, node)
    laid_out.meta = dict(node.meta)
    for user in users:
        user.replace_input_with(node, laid_out)


def _laid_out(graph: fx.Graph, node: Node) -> Node:
    kwargs: dict[str, Any] = {"memory_format": torch.channels_last}
    return graph.call_function(_ATEN.contiguous.default, (node,), kwargs)


def _shape(node: Node) -> tuple[int, ...] | None:
    meta = node.meta.get("tensor_meta")
    return tuple(meta.shape) if hasattr(meta, "shape") else None


def _rank(node: Node) -> int | None:
    shape = _shape(node)
    return None if shape is None else len(shape)
