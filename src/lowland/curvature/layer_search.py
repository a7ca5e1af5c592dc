"""Layers by parameter: which parameters can be seen through, and what the model does with them."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from lowland.batches import Batch
from lowland.curvature.first_derivatives import wrong_gradients
from lowland.curvature.forward import ForwardPass
from lowland.curvature.uses import Use
from lowland.errors import InputError
from lowland.problem import Problem

# Samples on which layers are found. What is computed from them is verified on all data.
_FEW, _MANY = 4, 64


@dataclass(frozen=True)
class Layer:
    """A parameter whose gradients follow from what multiplies it and what comes out."""

    name: str  # that of the module whose weight it is, or else the parameter's own
    parameter: str
    operation: str  # dense, convolution, embedding, normalisation, scale or shift
    size: int  # entries of the parameter
    places: Tensor | None  # (G, out, in) in the flat parameter, if it is one matrix in every use
    positions: int  # T, how many a sample shows to it, in all uses together
    outputs: int  # numbers that come out for one sample
    uses: int
    curved: bool  # whether what follows is not known to be piecewise linear
    in_series: bool  # whether one use sees the outcome of another
    order: int  # of the first use in the forward pass
    bias: str | None  # the parameter that is added to what comes out

    @property
    def is_matrix(self) -> bool:
        """Whether the parameter is one matrix (one for each group), and all of it is used."""
        return self.places is not None

    @property
    def is_plain(self) -> bool:
        """Whether it is a dense layer or a convolution that is used once."""
        return self.is_matrix and self.uses == 1 and self.operation in ("dense", "convolution")

    @property
    def shape(self) -> tuple[int, int, int]:
        """(groups, outputs per group, inputs per group), kernel positions counted as inputs."""
        assert self.places is not None
        groups, out, inputs = self.places.shape
        return groups, out, inputs

    @cached_property
    def in_order(self) -> bool:
        """Whether the matrix's entries stand in the parameter's own order."""
        assert self.places is not None
        order = self.places.flatten()
        return bool((order[1:] > order[:-1]).all())

    def matrix(self, values: Tensor) -> Tensor:
        """Values in the parameter's own order, (size, ...), as (G, out, in, ...)."""
        assert self.places is not None
        return values.unflatten(0, self.shape) if self.in_order else values[self.places]

    def flat(self, matrix: Tensor) -> Tensor:
        """Undo :meth:`matrix`: from (G, out, in, ...) to the parameter's own order."""
        assert self.places is not None
        if self.in_order:
            return matrix.flatten(0, 2)
        flat = torch.empty_like(matrix.flatten(0, 2))
        flat[self.places.flatten()] = matrix.flatten(0, 2)
        return flat


class _Sight:
    """What is known of a problem's parameters."""

    def __init__(self, problem: Problem) -> None:
        self.layers: dict[str, Layer] = {}
        self.opaque: dict[str, str] = {}
        self.outputs = 0
        self.unused: list[str] = []
        if problem.loss.needs_model:
            loss = f"loss {problem.loss.name!r}, which is computed from the model itself"
            self.opaque = dict.fromkeys(problem.params, f"may be run more than once by {loss}")
            return
        with problem.measuring():
            seen = ForwardPass(problem, problem.first(_FEW), problem.params)
            self.outputs = seen.outputs[0].numel()
            self.unused = self._note(problem, seen)
            if problem.stored is None:
                self.opaque |= wrong_gradients(problem)
            # A routed part may be reached by later samples only.
            batches = problem.batches("train", _MANY) if self.unused else iter(())
            while self.unused and (batch := next(batches, None)) is not None:
                if reached := _reached(problem, batch, self.unused):
                    self._note(problem, ForwardPass(problem, batch, reached))
                    self.unused = [name for name in self.unused if name not in reached]
            for name in self.opaque:
                self.layers.pop(name, None)

    def _note(self, problem: Problem, seen: ForwardPass) -> list[str]:
        """Take note of the parameters of a forward pass; those that take no part come back."""
        self.opaque.update(seen.opaque)
        for name, uses in seen.uses.items():
            if uses:
                self.layers[name] = _layer(problem, seen, name, uses)
        return [name for name, uses in seen.uses.items() if not uses]


def _reached(problem: Problem, batch: Batch, names: list[str]) -> list[str]:
    """Those parameters that the outputs of a batch depend on."""
    params = problem.params
    leaves = {name: params[name].detach().requires_grad_() for name in names}
    z = problem.outputs(batch.inputs, leaves)
    if not z.requires_grad:
        return []
    slopes = torch.autograd.grad(z.sum(), list(leaves.values()), allow_unused=True)
    return [name for name, slope in zip(names, slopes, strict=True) if slope is not None]


def _sight(problem: Problem) -> _Sight:
    base = problem.base
    if problem.loss.needs_model == base.loss.needs_model:
        problem = base  # what the model does with its parameters is the same for any loss
    return problem.found(_Sight, lambda: _Sight(problem))


def parameters(problem: Problem) -> dict[str, Layer]:
    """Every parameter that can be seen through, by its own name, biases included."""
    return dict(_sight(problem).layers)


def layers(problem: Problem) -> dict[str, Layer]:
    """The weights that can be seen through, by the name of their layer, in the model's order.

    An error for a loss that runs the model itself: what it does with a layer is not known.
    """
    if problem.loss.needs_model:
        raise InputError(
            f"loss {problem.loss.name!r} is computed from the model itself and not from its "
            "outputs, so that nothing is known of single layers"
        )
    seen = _sight(problem).layers.values()
    return {layer.name: layer for layer in seen if layer.operation != "shift"}


def matrices(problem: Problem) -> dict[str, Layer]:
    """Those of :func:`layers` that are matrices: dense, convolutional, embedding and recurrent."""
    return {name: layer for name, layer in layers(problem).items() if layer.is_matrix}


def unused(problem: Problem) -> list[str]:
    """The parameters that take no part in the forward pass: they have no curvature."""
    return list(_sight(problem).unused)


def opaque(problem: Problem) -> dict[str, str]:
    """The parameters that cannot be seen through, and why."""
    return dict(_sight(problem).opaque)


def outputs_of_a_sample(problem: Problem) -> int:
    """C, how many numbers the model returns for one sample."""
    return _sight(problem).outputs


def give_up(problem: Problem, reasons: dict[str, str]) -> None:
    """Take note that parameters cannot be seen through on some of the data."""
    sight = _sight(problem)
    sight.opaque.update(reasons)
    for name in reasons:
        sight.layers.pop(name, None)


def layer(problem: Problem, name: str) -> Layer:
    """The layer called ``name``, or an error that says why not and lists those there are.

    A layer goes by the name of its module, or by that of its parameter.
    """
    sight = _sight(problem)
    for parameter in (_joined(name, "weight"), name):
        if parameter in sight.layers:
            return sight.layers[parameter]
    listed = ", ".join(map(repr, layers(problem))) or "none"
    for parameter in (_joined(name, "weight"), name):
        if parameter in sight.opaque:
            raise InputError(
                f"layer {name!r} {sight.opaque[parameter]}; layers that can be used: {listed}"
            )
        if parameter in sight.unused:
            raise InputError(
                f"layer {name!r} takes no part in the forward pass; layers that can be used: "
                f"{listed}"
            )
        if parameter in problem.frozen:
            raise InputError(
                f"layer {name!r} is frozen (Problem(params='all') measures it all the same); "
                f"layers that can be used: {listed}"
            )
    modules = dict(problem.model.named_modules())
    if name not in modules:
        raise InputError(f"there is no layer {name!r}; layers with a weight: {listed}")
    kind = type(modules[name]).__name__
    own = [p for p, _ in modules[name].named_parameters(name, recurse=False)]
    if not own:
        raise InputError(f"layer {name!r} is {kind} and has no weight; layers with one: {listed}")
    raise InputError(
        f"layer {name!r} is {kind}; name one of its parameters: {', '.join(map(repr, own))}"
    )


def _joined(module: str, parameter: str) -> str:
    return f"{module}.{parameter}" if module else parameter


def _layer(problem: Problem, seen: ForwardPass, name: str, uses: list[Use]) -> Layer:
    first, *others = uses
    size = problem.params[name].numel()
    one_matrix = (
        first.places.ndim == 3
        and first.places.numel() == size
        and all(torch.equal(first.places, use.places) for use in others)
    )
    module, _, last = name.rpartition(".")
    inputs = seen.inputs(name)
    return Layer(
        name=module if last == "weight" else name,
        parameter=name,
        operation=first.operation,
        size=size,
        places=first.places if one_matrix else None,
        positions=sum(x.shape[1] for x in inputs),
        outputs=sum(use.output_shape.numel() for use in uses) // seen.count,
        uses=len(uses),
        curved=name in seen.curved,
        in_series=any(use.in_series for use in uses),
        order=first.node._sequence_nr(),
        bias=None if first.operation == "shift" else _bias(seen, first.node),
    )


def _bias(seen: ForwardPass, node: Any) -> str | None:
    """The parameter that is added to an operation's outputs, there or right behind it."""
    for name, uses in seen.uses.items():
        if any(use.operation == "shift" and _adds_to(use.node, node) for use in uses):
            return name
    return None


def _adds_to(addition: Any, node: Any) -> bool:
    if addition is node:
        return True
    if addition.name() != "AddBackward0":
        return False
    added = [child for child, _ in addition.next_functions]
    views = ("ViewBackward0", "UnsafeViewBackward0", "ReshapeAliasBackward0")
    return any(
        child is node
        or (child is not None and child.name() in views and child.next_functions[0][0] is node)
        for child in added
    )
