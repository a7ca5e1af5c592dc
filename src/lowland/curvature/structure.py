"""Is what follows a layer piecewise linear? The autograd graph knows.

Where it is, the loss's second derivative with respect to the layer's outputs is ``J^T (d2l/dz2) J``
with the Jacobian J of the model's outputs z, and C backward passes give it exactly. The graph is
read rather than the list of modules, so that functional calls count as well.
"""

from typing import Any

from torch import Tensor

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
# Linear in one argument while the others are constants.
_ONE_ARGUMENT = {
    "AddmmBackward0", "MmBackward0", "MvBackward0", "BmmBackward0", "BaddbmmBackward0",
    "LinearBackward0", "MulBackward0", "DotBackward0", "ConvolutionBackward0",
    "PreluKernelBackward0",
}  # fmt: skip


def piecewise_linear(z: Tensor, a: Tensor) -> bool:
    """Whether ``z`` depends on ``a`` through piecewise linear operations only.

    Unknown operations count as nonlinear, which costs time and never exactness.
    """
    reaches: dict[Any, bool] = {}

    def is_target(node: Any) -> bool:
        return node is a.grad_fn if a.grad_fn is not None else getattr(node, "variable", None) is a

    # Depth first without recursion: deep networks have longer chains than Python's stack.
    stack = [(z.grad_fn, False)]
    while stack:
        node, done = stack.pop()
        if node is None or (not done and node in reaches):
            continue
        if is_target(node):
            reaches[node] = True
        elif not done:
            reaches[node] = False
            stack.append((node, True))
            stack.extend((child, False) for child, _ in node.next_functions)
        else:
            via = [reaches.get(child, False) for child, _ in node.next_functions]
            reaches[node] = any(via)
            if reaches[node] and not _linear(node, via):
                return False
    return True


def _linear(node: Any, via: list[bool]) -> bool:
    """Whether this operation is piecewise linear in the arguments that depend on the layer."""
    name = node.name()
    if name in _JOINT:
        return True
    if name in _ONE_ARGUMENT:
        return sum(via) == 1
    if name == "DivBackward0":
        return not any(via[1:])
    if name in ("NativeBatchNormBackward0", "CudnnBatchNormBackward0"):
        return sum(via) == 1 and not node._saved_training
    return False
