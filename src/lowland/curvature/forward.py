"""One forward pass: the uses of parameters that its graph shows, and which sample each row is of.

A batch may reach a layer folded (frames or tokens as rows), transposed (sequence first), sorted or
routed. So the first dimension of what a layer sees is not taken for the sample. Every row is asked:
gradients of the outputs, each sample's multiplied by a code, carry the sample's number to each row.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from lowland.batches import Batch
from lowland.budget import check_time
from lowland.curvature.first_derivatives import check_alone
from lowland.curvature.graph import Graph
from lowland.curvature.uses import Use, product
from lowland.errors import InputError
from lowland.problem import Problem

T = TypeVar("T")

# How far a row's code may be from a whole number, and its entries from one multiple of another's.
_CODE_ERROR, _ROW_ERROR = 0.2, 1e-2
# Whole numbers below this square are exact in float32.
_DIGIT = 4096


class ForwardPass:
    """The model's outputs for a batch, with the chosen parameters as leaves of their graph.

    Make it inside :meth:`Problem.measuring`. ``uses`` holds, by parameter, the uses that can be
    seen through, with ``arrangements`` of their rows by sample; ``opaque`` says in words why other
    parameters cannot. Parameters without any use take no part in the forward pass. ``curved`` are
    those in which the outputs are not known to be piecewise linear.

    What is seen is verified on every sample of this batch: the sum over samples of their gradients
    by structure, each times a random number, must be autograd's.
    """

    def __init__(self, problem: Problem, batch: Batch, names: Iterable[str]) -> None:
        problem.check_whole()
        self.batch, self.count = batch, len(batch)
        if self.count == 1:
            check_alone(problem, batch)
        params = problem.params
        self.leaves = {name: params[name].detach().requires_grad_() for name in names}
        self.outputs = problem.outputs(batch.inputs, self.leaves)
        self.uses: dict[str, list[Use]] = {}
        self.arrangements: dict[str, list[Arrangement]] = {}
        self.opaque: dict[str, str] = {}
        graph = Graph(self.outputs, list(self.leaves.values()))
        self.curved = {name for i, name in enumerate(self.leaves) if graph.curved(i)}
        for i, (name, leaf) in enumerate(self.leaves.items()):
            try:
                self.uses[name] = [
                    _use(leaf, node, argument, graph.depends(node, i, argument))
                    for node, argument in graph.uses(leaf)
                ]
            except _Opaque as reason:
                self.opaque[name] = str(reason)
        self._arrange()
        self.uses = {name: uses for name, uses in self.uses.items() if name not in self.opaque}

    def _arrange(self) -> None:
        """Group every use's rows by sample, and verify what comes of it."""
        every = [use for uses in self.uses.values() for use in uses]
        if not every:
            return
        z, n = self.outputs, self.count
        generator = torch.Generator(device=z.device).manual_seed(0)
        u = torch.randn(z.shape, generator=generator, dtype=z.dtype, device=z.device)
        codes = _codes(n, z).view(3, n, *[1] * (z.ndim - 1))
        marked = dict(zip(map(id, every), jacobian(z, every, codes * u), strict=True))
        weights = torch.randn(n, generator=generator, dtype=z.dtype, device=z.device)
        leaves = [self.leaves[name] for name in self.uses]
        expected = torch.autograd.grad(
            z,
            leaves,
            u * weights.view(n, *[1] * (z.ndim - 1)),
            retain_graph=True,
            materialize_grads=True,
        )
        for (name, uses), gradient in zip(self.uses.items(), expected, strict=True):
            rows = [use.rows(marked[id(use)]) for use in uses]
            arrangements = [_arrangement(marks, n) for marks in rows]
            sums = torch.zeros_like(gradient).flatten()
            terms = 0.0  # what the sum could be at most, which its rounding goes with
            for use, marks, arrangement in zip(uses, rows, arrangements, strict=True):
                if arrangement is not None:
                    x, delta = arrangement(use.x), arrangement(marks[0])
                    delta = delta * weights.view(n, *[1] * (delta.ndim - 1))
                    sums[use.places.flatten()] += summed(use.places, x, delta)
                    terms += float(x.norm() * delta.norm())
            eps = torch.finfo(sums.dtype).eps
            limit = eps**0.5 * max(gradient.norm(), sums.norm()) + 16 * eps * terms
            if any(arrangement is None for arrangement in arrangements):
                self.opaque[name] = (
                    "sees rows that several samples have a part in, or whose gradients are lost in "
                    "rounding (Problem(dtype=torch.float64) tells which)"
                )
            elif (sums - gradient.flatten()).norm() > limit:
                self.opaque[name] = "has gradients that do not follow from what it multiplies"
            else:
                self.arrangements[name] = [a for a in arrangements if a is not None]

    def reached(self, chosen: dict[str, T]) -> dict[str, T]:
        """Those of some parameters that the batch reaches, with what goes with each."""
        return {name: value for name, value in chosen.items() if self.uses[name]}

    def inputs(self, name: str) -> list[Tensor]:
        """What multiplies the parameter in each of its uses, (n, T, G, in) or (n, T, m).

        An error if the batch does not reach it.
        """
        if not self.uses[name]:
            raise InputError(
                f"none of {self.count} samples that were taken together comes to parameter "
                f"{name!r}, so that nothing is known of its inputs there"
            )
        return [
            arrangement(use.x).to(self.outputs.dtype)
            for use, arrangement in zip(self.uses[name], self.arrangements[name], strict=True)
        ]

    def by_sample(self, name: str, number: int, gradient: Tensor) -> Tensor:
        """Gradients (C, *outputs) with respect to a use's outputs, as (n, C, T, ...)."""
        rows = self.uses[name][number].rows(gradient.to(self.outputs.dtype))
        return self.arrangements[name][number](rows, axis=1).transpose(0, 1)

    def as_outputs(self, name: str, number: int, values: Tensor) -> Tensor:
        """Return values (b, n, T, ...) in the shape of the use's outputs, (b, *outputs).

        Grouping rows by sample is linear and moves every number to one place, so that its
        transpose takes it back. The outcome is contiguous: torch's backward pass of BatchNorm
        misreads a single sample whose strides are in another order.
        """
        use, arrangement = self.uses[name][number], self.arrangements[name][number]
        with torch.enable_grad():
            outputs = values.new_zeros(len(values), *use.output_shape, requires_grad=True)
            arranged = arrangement(use.rows(outputs), axis=1)
        (back,) = torch.autograd.grad(arranged, outputs, values)
        return back.contiguous()


def _use(leaf: Tensor, node: Any, argument: int, in_series: bool) -> Use:
    """What an operation does with the leaf."""
    operation = node.name().removesuffix("Backward0")
    if node._input_metadata[0].dtype.is_complex:
        raise _Opaque(f"enters {operation} of complex numbers, which cannot be seen through")
    index = _index(GradientEdge(*node.next_functions[argument]), leaf)
    if index is None:
        raise _Opaque(f"enters {operation} with entries that occur more than once")
    try:
        role = product(node, argument, index.shape)
    except RuntimeError as error:  # a saved tensor that is gone, or was changed in place
        why = str(error).splitlines()[0]
        raise _Opaque(f"enters {operation}, whose inputs are not kept ({why})") from error
    if role is None:
        raise _Opaque(f"enters {operation}, which cannot be seen through")
    in_series = in_series and not role.constant
    x = role.x.detach().to(node._input_metadata[0].dtype)  # masks and counts multiply as well
    return Use(role.operation, node, x, role.rows, role.entries(index), in_series)


def summed(places: Tensor, x: Tensor, delta: Tensor) -> Tensor:
    """Return the sum over samples of the gradients with respect to a use's own weights, (m,)."""
    if places.ndim == 3:
        return torch.einsum("ntgo,ntgi->goi", delta, x).flatten()
    return (delta * x).sum((0, 1))


class _Opaque(Exception):
    """Why a parameter cannot be seen through."""


def jacobian(z: Tensor, uses: Sequence[Use], rows: Tensor) -> list[Tensor]:
    """For each use, the gradients of ``sum(row * z)`` with respect to its outputs, (r, *outputs).

    ``rows`` are (r, *z.shape); all of them go through one vectorised pass.
    """
    check_time()
    slopes = torch.autograd.grad(
        z, _edges(uses), rows, retain_graph=True, allow_unused=True, is_grads_batched=True
    )
    return [
        rows.new_zeros(len(rows), *use.output_shape) if g is None else g
        for use, g in zip(uses, slopes, strict=True)
    ]


def gradients(
    y: Tensor, uses: Sequence[Use], row: Tensor | None = None, *, create_graph: bool = False
) -> list[Tensor]:
    """For each use, the gradient of ``sum(row * y)`` with respect to its outputs; row 1 if None."""
    row = torch.ones_like(y) if row is None else row
    slopes = torch.autograd.grad(
        y, _edges(uses), row, retain_graph=True, create_graph=create_graph, allow_unused=True
    )
    return [
        row.new_zeros(use.output_shape) if g is None else g
        for use, g in zip(uses, slopes, strict=True)
    ]


def _edges(uses: Sequence[Use]) -> list[GradientEdge]:
    return [GradientEdge(use.node, 0) for use in uses]


@dataclass(frozen=True)
class Arrangement:
    """How rows are grouped by sample: in blocks, in turn, or by an index (n, q), -1 for none."""

    count: int  # n
    index: Tensor | None
    blocks: bool

    def __call__(self, t: Tensor, axis: int = 0) -> Tensor:
        """The rows along ``axis`` by sample: (..., R, T, ...) becomes (..., n, q T, ...)."""
        n = self.count
        if self.index is not None:
            kept = (self.index >= 0).view(n, -1, *[1] * (t.ndim - axis - 1))
            if t.shape[axis] == 0:
                t = t.new_zeros(*t.shape[:axis], 1, *t.shape[axis + 1 :])
            t = t.index_select(axis, self.index.clamp_min(0).flatten())
            t = t.unflatten(axis, self.index.shape) * kept
        elif self.blocks:
            t = t.unflatten(axis, (n, -1))
        else:
            t = t.unflatten(axis, (-1, n)).transpose(axis, axis + 1)
        return t.flatten(axis + 1, axis + 2)


def _codes(n: int, like: Tensor) -> Tensor:
    """Factors for each sample, (3, n), between 1 and 2: a plain 1, and two digits of its number."""
    k = torch.arange(n, device=like.device)
    base = math.isqrt(n - 1) + 1
    return 1 + torch.stack([torch.zeros_like(k), k % base, k // base]).to(like.dtype) / base


def _arrangement(marked: Tensor, n: int) -> Arrangement | None:
    """Which sample each of R rows belongs to; None where a row mixes samples.

    ``marked`` has the rows' gradients, (3, R, ...), of outputs that are multiplied by the codes.
    """
    R = marked.shape[1]
    if R == 0:  # no sample came here
        return Arrangement(n, marked.new_full((n, 1), -1, dtype=torch.long), True)
    plain, *coded = marked.flatten(2).double()  # (R, numbers of a row)
    squares = plain.square().sum(1)
    alive = squares > 0
    base = math.isqrt(n - 1) + 1
    sample = torch.zeros(R, dtype=torch.long, device=marked.device)
    for place, row in zip((1, base), coded, strict=True):
        ratio = (row * plain).sum(1) / torch.where(alive, squares, 1)
        missed = (row - ratio.unsqueeze(1) * plain).norm(dim=1)
        digit = (ratio - 1) * base
        wrong = (missed > _ROW_ERROR * squares.sqrt()) | (
            (digit - digit.round()).abs() > _CODE_ERROR
        )
        if (wrong & alive).any():
            return None
        sample += place * digit.round().long()
    if R % n == 0:
        order = torch.arange(R, device=marked.device)
        if bool(((sample == order // (R // n)) | ~alive).all()):
            return Arrangement(n, None, True)
        if bool(((sample == order % n) | ~alive).all()):
            return Arrangement(n, None, False)
    return Arrangement(n, _listed(torch.where(alive, sample, -1), n), True)


def _listed(sample: Tensor, n: int) -> Tensor:
    """The rows of each sample, (n, q), filled up with -1."""
    rows = [(sample == k).nonzero()[:, 0] for k in range(n)]
    index = sample.new_full((n, max(1, max(len(r) for r in rows))), -1)
    for k, row in enumerate(rows):
        index[k, : len(row)] = row
    return index


def _index(argument: GradientEdge, leaf: Tensor) -> Tensor | None:
    """Which entry of the flat leaf stands at each place of an operation's argument.

    The argument is the leaf rearranged; a gradient that numbers its entries, carried back to the
    leaf, tells how. None where an entry of the leaf stands at several places.
    """
    whole = torch.arange(leaf.numel(), device=leaf.device)
    node = argument.node
    if getattr(node, "variable", None) is leaf:
        return whole.view(leaf.shape)
    if node.name() == "TBackward0" and getattr(node.next_functions[0][0], "variable", None) is leaf:
        return whole.view(leaf.shape).T  # the usual case, without a pass
    meta = node._input_metadata[argument.output_nr]
    count = math.prod(meta.shape)
    k = torch.arange(count, device=leaf.device).view(meta.shape)
    low, high, times = (
        torch.autograd.grad([argument], [leaf], [digit.to(meta.dtype)], retain_graph=True)[0]
        for digit in (k % _DIGIT, k // _DIGIT, torch.ones_like(k))
    )
    used = times.flatten() == 1
    if (times > 1).any() or int(used.sum()) != count:
        return None
    place = (low.double() + _DIGIT * high.double()).flatten()[used].long()
    index = torch.empty_like(k).flatten()
    index[place] = whole[used]
    return index.view(meta.shape)
