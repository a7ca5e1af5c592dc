"""Path norm: all ways through a ReLU network."""

from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from lowland.curvature import (
    Layer,
    matrices,
)
from lowland.errors import InputError
from lowland.measures.registry import Value, register
from lowland.measures.sharing import FREE
from lowland.problem import Problem

# Large enough to reach where an activation that clips does so.
_FACTOR = 1e6


@register(
    title="Path norm",
    family="norms",
    formula="sqrt(sum over paths from inputs to outputs of prod w^2)",
    definition="The root of the sum, over all paths from an input or a bias to an output, of the "
    "product of squared weights on the path: the network with every parameter squared is fed ones "
    "and its outputs are added. Pooling acts on the squares as it is.",
    citation="Neyshabur, Salakhutdinov & Srebro, NeurIPS 2015; Jiang et al., ICLR 2020",
    sharper="higher",
    cost=FREE,
    invariant=("layers", "units"),
)
def path_norm(problem: Problem) -> Value:
    """The norm from one forward pass of squared weights; an error if there are no paths."""
    layers = _all_layers(problem)
    with problem.measuring():
        few = problem.first(2)
        if not all(t.is_floating_point() for t in pytree.tree_leaves(few.inputs)):
            raise InputError("the path norm is that of a network with floating-point inputs")
        weights = {**problem.params, **problem.frozen}
        tensors = [*weights.items(), *problem.model.named_buffers()]
        plain = {n: t.double() for n, t in tensors if t.is_floating_point()}
        squared = {n: t.square() if n in weights else t for n, t in plain.items()}
        inputs = pytree.tree_map(Tensor.double, few.inputs)
        ones = pytree.tree_map(lambda t: torch.ones_like(t[:1]), inputs)
        leaves = {layer.parameter: squared[layer.parameter].requires_grad_() for layer in layers}
        z = problem.outputs(ones, {**squared, **leaves})
        for layer in layers:
            if layer.curved:
                raise InputError(
                    f"what follows layer {layer.name!r} is not known to be piecewise linear (a "
                    "smooth activation, softmax or attention?), so the network is no sum over paths"
                )
        slopes = torch.autograd.grad(z.sum(), list(leaves.values()), materialize_grads=True)
        if any(bool((g < 0).any()) for g in slopes):
            raise InputError("some paths enter the outputs with a minus sign of their own")
        _check_homogeneous(problem, layers, plain, inputs)
        _check_homogeneous(problem, layers, squared, ones)
        return Value(float(z.detach().sum().sqrt()), "exact, one forward pass of squared weights")


def _all_layers(problem: Problem) -> list[Layer]:
    """The dense and convolutional layers; an error if there are parameters beside theirs."""
    layers = [layer for layer in matrices(problem).values() if layer.is_plain]
    seen = {name for layer in layers for name in (layer.parameter, layer.bias)}
    left = [name for name in problem.params if name not in seen]
    if left:
        raise InputError(
            f"{', '.join(map(repr, left[:3]))}{' and others' if len(left) > 3 else ''}: not a "
            "parameter of a dense or convolutional layer that is used once; paths through "
            "normalisation, attention, recurrent or shared layers are not products of weights"
        )
    return layers


def _check_homogeneous(
    problem: Problem, layers: list[Layer], values: dict[str, Tensor], inputs: Any
) -> None:
    """An error unless, without biases, s times the inputs give s times the outputs."""
    biases = [layer.bias for layer in layers if layer.bias is not None]
    values = {**values, **{name: torch.zeros_like(values[name]) for name in biases}}
    with torch.no_grad():
        expected = _FACTOR * problem.outputs(inputs, values)
        scaled = problem.outputs(pytree.tree_map(lambda t: _FACTOR * t, inputs), values)
    if (scaled - expected).abs().max() > 1e-9 * expected.abs().max():
        raise InputError(
            "without its biases the network is not homogeneous (a normalisation, an activation "
            "that clips, or a constant that is added?), so it is no sum over paths of weights"
        )
