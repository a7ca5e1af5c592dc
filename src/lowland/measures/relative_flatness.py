"""Relative flatness of the last dense layer."""

import torch

from lowland.budget import Work
from lowland.curvature import (
    Layer,
    factors,
    matrices,
)
from lowland.curvature import layer as layer_named
from lowland.distributed import total
from lowland.errors import InputError
from lowland.measures.registry import Value, register
from lowland.problem import Problem


@register(
    title="Relative flatness",
    family="norms",
    formula="sum_{s,s'} <w_s, w_s'> tr H_{s,s'}",
    definition="For the last dense layer before the outputs: the inner products of the rows w_s of "
    "its weight, each times the trace of the block of the Hessian that belongs to the two rows.",
    citation="Petzka et al., NeurIPS 2021",
    sampled=True,
    sharper="higher",
    cost=Work(forwards=2),
    invariant=("layers",),
)
def relative_flatness(problem: Problem) -> Value:
    """The exact value, ``mean_k |x_k|^2 tr(S_k W W^T)``, as ``H = mean_k S_k kron x_k x_k^T``."""
    layer = _last_dense(problem)
    if layer.positions > 1:
        raise InputError(_several(layer, layer.positions))
    W = layer.matrix(problem.params[layer.parameter].double().flatten())[0]
    overlaps = W @ W.T  # (out, out)
    value = torch.zeros((), dtype=torch.float64, device=problem.device)
    for part in (part for parts in factors(problem, [layer]) for part in parts.values()):
        term = part.terms[0]
        if not part.is_outer:
            raise InputError(_several(layer, term.x.shape[1]))
        x, J = term.x[:, 0, 0].double(), term.J[:, :, 0, 0].double()  # (n, in), (n, C, out)
        traces = ((part.A.double() @ J) * (J @ overlaps)).sum((1, 2))  # tr(J^T A J W W^T)
        value += (x.square().sum(1) * traces).sum().detach()
    layer_named(problem, layer.name)  # an error if it could not be seen through on all data
    return Value(float(total(value) / problem.count()), f"exact, layer {layer.name!r}")


def _several(layer: Layer, positions: int) -> str:
    return (
        f"the last dense layer {layer.name!r} sees {positions} positions of a sample; relative "
        "flatness is that of a layer which sees one vector"
    )


def _last_dense(problem: Problem) -> Layer:
    """The dense layer that a forward pass meets last."""
    dense = [layer for layer in matrices(problem).values() if layer.operation == "dense"]
    if not dense:
        raise InputError("the model has no dense layer")
    return max(dense, key=lambda layer: layer.order)
