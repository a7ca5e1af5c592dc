"""What the autograd graph of a forward pass tells: where parameters enter, and what is linear.

The graph is read rather than the list of modules, so that functional calls count as well.
"""

from collections import defaultdict
from collections.abc import Sequence
from functools import cached_property, reduce
from operator import or_
from typing import Any

from torch import Tensor
from torch.autograd.function import BackwardCFunction

# Operations that only rearrange a tensor's entries, or pick some of them.
_REARRANGING = {
    "TBackward0", "TransposeBackward0", "PermuteBackward0", "ViewBackward0", "UnsafeViewBackward0",
    "ReshapeAliasBackward0", "UnsqueezeBackward0", "SqueezeBackward0", "SqueezeBackward1",
    "SqueezeBackward2", "SplitBackward0", "SplitWithSizesBackward0", "UnbindBackward0",
    "SelectBackward0", "SliceBackward0", "CloneBackward0", "AliasBackward0", "ToCopyBackward0",
}  # fmt: skip
# Linear, or piecewise linear, in all their differentiable arguments together.
_JOINT = {
    "AddBackward0", "SubBackward0", "RsubBackward0", "RsubBackward1",
    "CatBackward0", "StackBackward0", "MaximumBackward0", "MinimumBackward0", "WhereBackward0",
    "ReluBackward0", "LeakyReluBackward0", "HardtanhBackward0", "ThresholdBackward0",
    "ClampBackward0", "ClampBackward1", "ClampMinBackward0", "ClampMaxBackward0", "AbsBackward0",
    "MaxPool2DWithIndicesBackward0", "MaxPool3DWithIndicesBackward0", "MaxBackward0",
    "AmaxBackward0", "AdaptiveMaxPool2DBackward0", "AvgPool2DBackward0", "AvgPool3DBackward0",
    "AdaptiveAvgPool2DBackward0", "AdaptiveAvgPool3DBackward0", "MeanBackward0", "MeanBackward1",
    "SumBackward0", "SumBackward1", "NegBackward0", "ViewBackward0", "UnsafeViewBackward0",
    "ReshapeAliasBackward0", "TBackward0", "TransposeBackward0", "PermuteBackward0",
    "SqueezeBackward0", "SqueezeBackward1", "SqueezeBackward2", "UnsqueezeBackward0",
    "ExpandBackward0", "RepeatBackward0", "SplitBackward0", "SplitWithSizesBackward0",
    "UnbindBackward0", "AsStridedBackward0", "SelectBackward0", "SliceBackward0", "IndexBackward0",
    "IndexSelectBackward0", "GatherBackward0", "CloneBackward0", "AliasBackward0",
    "ToCopyBackward0", "ConstantPadNdBackward0", "MaskedFillBackward0", "Im2ColBackward0",
    "UpsampleNearest2DBackward0", "UpsampleBilinear2DBackward0", "CumsumBackward0",
}  # fmt: skip
# Products: linear in each of two arguments while the other is constant, and in all others.
_PRODUCTS = {
    "AddmmBackward0": (1, 2), "BaddbmmBackward0": (1, 2), "MmBackward0": (0, 1),
    "MvBackward0": (0, 1), "BmmBackward0": (0, 1), "LinearBackward0": (0, 1),
    "MulBackward0": (0, 1), "DotBackward0": (0, 1), "ConvolutionBackward0": (0, 1),
    "PreluKernelBackward0": (0, 1),
}  # fmt: skip
# Linear in scale and shift, but not in what is normalised.
_NORMALISATIONS = {"NativeLayerNormBackward0", "NativeGroupNormBackward0"}
# Linear in their first argument while the others are constants.
_FIRST = {"DivBackward0", "EmbeddingBackward0"}


class Graph:
    """The operations between some tensors (the targets) and what was computed from them, z.

    One walk answers for all targets: which of them each operation depends on is one whole number,
    whose bit i stands for target i.
    """

    def __init__(self, z: Tensor, targets: Sequence[Tensor]) -> None:
        leaves = {id(t): i for i, t in enumerate(targets) if t.grad_fn is None}
        inner = {t.grad_fn: i for i, t in enumerate(targets) if t.grad_fn is not None}
        self._reached: dict[Any, int] = {}  # by operation: the targets that it depends on
        self._curved = 0  # targets that meet an operation which is not piecewise linear in them
        # Depth first without recursion: deep networks have longer chains than Python's stack.
        stack = [(z.grad_fn, False)]
        while stack:
            node, done = stack.pop()
            if node is None or (not done and node in self._reached):
                continue
            if not done:
                place = inner.get(node, leaves.get(id(getattr(node, "variable", None))))
                self._reached[node] = 0 if place is None else 1 << place
                if place is None:
                    stack.append((node, True))
                    stack.extend((child, False) for child, _ in node.next_functions)
            else:
                via = [self._reached.get(child, 0) for child, _ in node.next_functions]
                self._reached[node] = _union(via)
                self._curved |= _nonlinear(node, via) if any(via) else 0

    def curved(self, number: int) -> bool:
        """Whether z is not known to be piecewise linear in the target.

        If it is, the loss's second derivative with respect to the target is ``J^T (d2l/dz2) J``
        with the Jacobian J of z. Unknown operations count as curved, which costs time and never
        exactness.
        """
        return bool(self._curved >> number & 1)

    def uses(self, leaf: Tensor) -> list[tuple[Any, int]]:
        """The operations that a leaf enters, with the position of that argument.

        Operations that only rearrange the leaf's entries are passed through.
        """
        consumers = self._consumers
        entered: dict[tuple[Any, int], None] = {}
        stack = [node for node in self._reached if getattr(node, "variable", None) is leaf]
        while stack:
            for node, argument in consumers.get(stack.pop(), ()):
                if node.name() in _REARRANGING:
                    stack.append(node)
                else:
                    entered[node, argument] = None
        return sorted(entered, key=lambda use: use[0]._sequence_nr())  # as in the forward pass

    @cached_property
    def _consumers(self) -> dict[Any, list[tuple[Any, int]]]:
        consumers: dict[Any, list[tuple[Any, int]]] = defaultdict(list)
        for node in self._reached:
            for argument, (child, _) in enumerate(node.next_functions):
                if child is not None:
                    consumers[child].append((node, argument))
        return consumers

    def depends(self, node: Any, number: int, but: int) -> bool:
        """Whether an operation depends on a target by another argument than number ``but``."""
        others = (child for i, (child, _) in enumerate(node.next_functions) if i != but)
        return any(self._reached.get(child, 0) >> number & 1 for child in others)


def has_own_functions(y: Tensor) -> bool:
    """Whether y was computed by functions of the user's own (``torch.autograd.Function``)."""
    seen, stack = set(), [y.grad_fn]
    while stack:
        node = stack.pop()
        if node is None or node in seen:
            continue
        if isinstance(node, BackwardCFunction):
            return True
        seen.add(node)
        stack.extend(child for child, _ in node.next_functions)
    return False


def _nonlinear(node: Any, via: list[int]) -> int:
    """The targets, as bits, in which an operation is not piecewise linear.

    ``via`` holds, for each of its arguments, the targets that the argument depends on.
    """
    name = node.name()
    if name == "AbsBackward0" and node._saved_self.is_complex():
        return _union(via)  # a root of squares
    if name in _JOINT:
        return 0
    if name in _PRODUCTS:
        first, second = _PRODUCTS[name]
        return via[first] & via[second]
    if name in _FIRST:
        return _union(via[1:])
    if name in _NORMALISATIONS:
        return via[0]
    if name in ("NativeBatchNormBackward0", "CudnnBatchNormBackward0"):
        return _union(via) if node._saved_training else via[0] & via[1]
    return _union(via)


def _union(bits: list[int]) -> int:
    return reduce(or_, bits, 0)
