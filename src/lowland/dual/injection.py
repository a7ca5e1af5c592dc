"""A model with a shift of one layer's weight for each sample, without a copy of either.

A layer multiplies its weight with what it sees, so that a sample whose weight is shifted by dW has
``dW x`` added to the layer's outputs. That is added while the model runs, where torch computes the
product with the weight. Gradients with respect to the layer's outputs, which one backward pass
gives for all samples, are then those with respect to the shift.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge
from torch.utils._python_dispatch import TorchDispatchMode

from lowland.batches import Batch
from lowland.curvature import ForwardPass, Graph, Layer
from lowland.dual.matching import Matching
from lowland.errors import InputError
from lowland.problem import Problem

_aten = torch.ops.aten
_PRODUCTS = {
    *(_aten.mm.default, _aten.addmm.default, _aten.bmm.default, _aten.convolution.default),
    _aten.embedding.default,
}


class CannotShift(InputError):
    """No shift of this layer's weight can be run through the model sample by sample."""


class Shifted:
    """The numbers to match of k samples, as functions of a shift of one layer for each sample.

    A shift is ``dW = V Q^T`` with V (G, out, r) free and Q an orthonormal basis of what the sample
    shows to the layer: what dW does outside of it changes nothing. Make it, and call it, inside
    :meth:`Problem.measuring`.
    """

    def __init__(self, problem: Problem, layer: Layer, batch: Batch, matching: Matching) -> None:
        self.problem, self.layer, self.batch, self.matching = problem, layer, batch, matching
        name = layer.parameter
        seen = ForwardPass(problem, batch, [name])
        if name in seen.opaque:
            raise CannotShift(f"layer {layer.name!r} {seen.opaque[name]}")
        if any(use.in_series for use in seen.uses[name]):
            raise CannotShift(f"layer {layer.name!r} is used in series")
        self.seen, self.outputs = seen, seen.outputs.detach()
        self.x = inputs = seen.inputs(name)  # (k, T, G, in) for each use
        X = torch.cat(inputs, 1).transpose(1, 2)  # (k, G, T, in)
        self.Q = basis_of(X.double())  # (k, G, in, r), orthonormal to float64's rounding
        Q = self.Q.to(X.dtype)
        self.coordinates = [torch.einsum("ktgi,kgir->ktgr", x, Q) for x in inputs]
        self.shape = (layer.shape[0], layer.shape[1], self.Q.shape[-1])  # of V
        self._run(self.outputs.new_zeros(len(self.outputs), *self.shape))  # an error if it cannot

    @property
    def size(self) -> int:
        """P, how many numbers of a sample's shift are free."""
        return math.prod(self.shape)

    def of(self, places: Tensor) -> "Shifted":
        """Those of some samples."""
        part = self.batch.map(lambda t: t[places.to(t.device)])
        return Shifted(self.problem, self.layer, part, self.matching.of(places))

    def __call__(self, v: Tensor) -> tuple[Tensor, Tensor]:
        """For V (k, P): the numbers to match (k, m), and their gradients (k, m, P)."""
        name, V = self.layer.parameter, v.unflatten(1, self.shape).to(self.outputs.dtype)
        c, edges = self._run(V)
        m = c.shape[1]
        J = V.new_zeros(len(V), m, *self.shape)
        for j in range(m):
            slopes = torch.autograd.grad(
                c[:, j].sum(), edges, retain_graph=j < m - 1, allow_unused=True
            )
            for i, slope in enumerate(slopes):
                if slope is not None and slope.numel():
                    delta = self.seen.by_sample(name, i, slope.unsqueeze(0))[:, 0]
                    J[:, j] += torch.einsum("ktgo,ktgr->kgor", delta, self.coordinates[i])
        return c.detach().double(), J.flatten(2)

    def _run(self, V: Tensor) -> tuple[Tensor, list[GradientEdge]]:
        name = self.layer.parameter
        added = [self._added(i, x, V) for i, x in enumerate(self.coordinates)]
        leaf = self.problem.params[name].detach().requires_grad_()
        injection = _Injection(leaf, added)
        with injection:
            z = self.problem.outputs(self.batch.inputs, {name: leaf})
        uses = Graph(z, [leaf]).uses(leaf)
        if injection.calls != len(added) or len(uses) != len(added):
            raise CannotShift(
                f"layer {self.layer.name!r} is not computed by products with its own weight that a "
                "shift can be added to"
            )
        return self.matching(z), [GradientEdge(node, 0) for node, _ in uses]

    def _added(self, number: int, x: Tensor, V: Tensor) -> Tensor:
        """What a use's outputs change by, for what it sees in coordinates of Q."""
        shape = self.seen.uses[self.layer.parameter][number].output_shape
        if shape.numel() == 0:  # none of these samples comes here
            return x.new_zeros(shape)
        change = torch.einsum("ktgr,kgor->ktgo", x, V)
        return self.seen.as_outputs(self.layer.parameter, number, change[None])[0]


class _Injection(TorchDispatchMode):
    """While active, adds a change to what comes out of each product with one parameter, in turn."""

    def __init__(self, parameter: Tensor, changes: Sequence[Tensor]) -> None:
        super().__init__()
        self.changes, self.calls = changes, 0
        self._memory = parameter.untyped_storage().data_ptr()

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        outputs = function(*args, **(kwargs or {}))
        if function in _PRODUCTS and any(self._is_parameter(value) for value in args):
            self.calls += 1
            if self.calls <= len(self.changes):
                return outputs + self.changes[self.calls - 1].view(outputs.shape)
        return outputs

    def _is_parameter(self, value: Any) -> bool:
        return isinstance(value, Tensor) and value.untyped_storage().data_ptr() == self._memory


def basis_of(X: Tensor) -> Tensor:
    """Orthonormal columns (..., in, r) that span the rows of X (..., T, in)."""
    T, inputs = X.shape[-2:]
    if inputs <= T:
        return torch.eye(inputs, dtype=X.dtype, device=X.device).expand(*X.shape[:-2], -1, -1)
    return torch.linalg.qr(X.mT).Q
