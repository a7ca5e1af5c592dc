"""An upper bound on the VC dimension, which knows only the architecture."""

import math

from lowland.curvature import (
    layers,
    matrices,
)
from lowland.errors import InputError
from lowland.measures.registry import Value, register
from lowland.measures.sharing import FREE
from lowland.problem import Problem


@register(
    title="VC dimension (order of its bound)",
    family="bounds",
    formula="W L log2 W",
    definition="The order in which the VC dimension of piecewise-linear networks with W parameters "
    "in L layers can grow; constants are left out, and neither weights nor data enter.",
    citation="Bartlett, Harvey, Liaw & Mehrabian, JMLR 2019",
    sharper="higher",
    cost=FREE,
    invariant=("layers", "units", "outputs"),
)
def vc_dimension(problem: Problem) -> Value:
    """Counts of parameters and layers; the part ``W U`` is the bound by the hidden units U."""
    single_use = [layer for layer in layers(problem).values() if layer.uses == 1]
    seen = {name for layer in single_use for name in (layer.parameter, layer.bias)}
    unseen = [name for name in problem.params if name not in seen]
    if unseen:
        raise InputError(
            f"counting needs dense, convolutional and normalisation layers only; "
            f"{', '.join(map(repr, unseen[:3]))} belongs to something else or is shared"
        )
    curved = [layer.name for layer in single_use if layer.curved]
    if curved:
        raise InputError(
            f"the bound is for piecewise-linear networks (ReLU); what follows layer {curved[0]!r} "
            "is not"
        )
    every = sorted(matrices(problem).values(), key=lambda layer: layer.order)
    if not every:
        raise InputError("the model has no dense layer or convolution")
    *hidden, _ = every  # in the order of the forward pass; the last gives the outputs
    W = sum(p.numel() for p in problem.params.values())
    L, U = len(every), sum(layer.outputs for layer in hidden)
    parts = {"parameters": float(W), "layers": float(L), "units": float(U), "W U": float(W * U)}
    return Value(W * L * math.log2(W), "counted", parts=parts)
