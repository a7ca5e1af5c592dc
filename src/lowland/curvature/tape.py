"""Products with many columns at once: a gradient is recorded, and its tangents are played back.

Pearlmutter's pass (Neural Computation 6, 1994) for the operations that one batch really ran:
forward and backward pass are written down as torch executes them, below autograd, each operation
with the rule of its tangent (``tangents``). A product runs the rules alone, for all columns
together: k columns of weights are one matrix product, where k passes of autograd would each read
the activations anew. In gradients per column, for blocks of 16, that takes 0.64 on 784-30-30-10 and
1.34 on 784-256-256-10 (``make bench ROWS="block-mlp block-mlp256"``).

With ``r = dl/dz`` at the model's outputs z, whose tangent is ``dr = A dz``, the same tape gives

    Hessian: (r, d2l/dz2),  remainder: (r, 0),  GGN: (0, d2l/dz2),  Fisher: (0, r r^T) or (0, F)
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from lowland.curvature.tangents import RULES, NoRule, Tangent


@dataclass(frozen=True)
class Step:
    """One operation's tangents: from those of its arguments, by slot, to those of its results."""

    inputs: tuple[int | None, ...]
    outputs: tuple[int | None, ...]
    tangent: Callable[..., Any]
    last: tuple[int, ...] = ()  # slots that nothing needs behind it


class _Recorder(TorchDispatchMode):
    """Writes down every operation on values that depend on the weights.

    A value is known by its place in memory, shape and strides: what autograd saves and hands back
    is another tensor with the same of these. So nothing may be freed while the recorder is on.
    """

    def __init__(self) -> None:
        super().__init__()
        self.slots: dict[Any, int] = {}
        self.count = 0
        self.steps: list[Step] = []
        self._alive: list[Any] = []

    def slot(self, value: Any) -> int | None:
        """The number of a value's tangents; None if it has none."""
        return self.slots.get(_place(value)) if isinstance(value, Tensor) else None

    def new(self, value: Tensor) -> int:
        """A number for the tangents of a value."""
        self._alive.append(value.detach())
        self.slots[_place(value)] = self.count
        self.count += 1
        return self.count - 1

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run an operation, and write it down."""
        flat = [a for arg in args for a in (arg if isinstance(arg, list | tuple) else [arg])]
        inputs = tuple(self.slot(a) for a in flat)
        results = func(*args, **(kwargs or {}))
        each = _listed(results)
        self._alive += [t.detach() for t in (*flat, *each) if isinstance(t, Tensor)]
        if all(i is None for i in inputs):
            for t in each:  # a place in memory may have been another value's
                if isinstance(t, Tensor) and func._schema.is_mutable:
                    self.slots.pop(_place(t), None)
            return results
        rule: Tangent | None = RULES.get(func)
        if rule is None:
            raise NoRule(str(func))
        # Detached: a rule must not hold autograd's graph.
        values = pytree.tree_map_only(Tensor, Tensor.detach, (results, args))
        has = tuple(i is not None for i in inputs)
        try:
            tangent = rule(has, values[0], *values[1], **(kwargs or {}))
        except TypeError as error:  # options that the rule does not know
            raise NoRule(f"{func}: {error}") from error
        if any(isinstance(t, Tensor) and t.is_complex() for t in each):
            raise NoRule(f"{func} of complex numbers")
        if tangent is not None:
            outputs = tuple(
                self.new(t) if isinstance(t, Tensor) and t.is_floating_point() else None
                for t in each
            )
            self.steps.append(Step(inputs, outputs, tangent))
        return results


def _place(t: Tensor) -> Any:
    return t.data_ptr(), t.shape, t.stride(), t.dtype


def _listed(results: Any) -> Sequence[Any]:
    return results if isinstance(results, list | tuple) else (results,)


class Tape:
    """The matrix of one batch, summed over its samples, times columns.

    Args:
        outputs: the model's outputs as a function of the weights.
        middle: of the outputs z, the cotangent r that goes backwards and the matrices A of its
            tangents, (n, C, C).
        weights: where they are.
        curved: whether r's own tangents through the backward pass count. Not so for ``J^T A J``.
    """

    def __init__(
        self,
        outputs: Callable[[list[Tensor]], Tensor],
        middle: Callable[[Tensor], tuple[Tensor, Tensor | None]],
        weights: Sequence[Tensor],
        *,
        curved: bool,
    ) -> None:
        leaves = [w.detach().requires_grad_() for w in weights]
        recorder = _Recorder()
        self._weights = [recorder.new(leaf) for leaf in leaves]
        with recorder:
            z = outputs(leaves)
        self._outputs = recorder.slot(z)
        r, self.A = middle(z.detach())
        r = r.detach().clone()
        if not curved:
            recorder.slots.clear()
        self._cotangent = recorder.new(r)
        forward = len(recorder.steps)
        with recorder:
            gradients = torch.autograd.grad(z, leaves, r, materialize_grads=True)
        self._results = [recorder.slot(g) for g in gradients]
        needed = {s for s in (*self._results, self._outputs) if s is not None}
        back = _pruned(recorder.steps[forward:], needed)
        front = _pruned(recorder.steps[:forward], needed)
        steps = _with_last_uses(front + back, [*self._results, self._outputs])
        self._front, self._back = steps[: len(front)], steps[len(front) :]
        self._slots = recorder.count

    @property
    def nbytes(self) -> int:
        """The bytes of the values that the steps keep."""
        held = [
            cell.cell_contents
            for step in (*self._front, *self._back)
            for cell in step.tangent.__closure__ or ()
        ]
        sizes = {
            t.untyped_storage().data_ptr(): t.untyped_storage().nbytes()
            for value in (*held, self.A)
            for t in _listed(value)
            if isinstance(t, Tensor)
        }
        return sum(sizes.values())

    def held(self, V: list[Tensor]) -> list[int]:
        """The bytes of tangents that are held after each step of a product."""
        bytes_held: list[int] = []
        self(
            V, lambda tangents: bytes_held.append(sum(t.nbytes for t in tangents if t is not None))
        )
        return bytes_held

    @torch.no_grad()
    def __call__(
        self, V: list[Tensor], watch: Callable[[list[Any]], None] | None = None
    ) -> list[Tensor | None]:
        """The matrix times columns, (k, *shape) for each weight; None where it is zero."""
        tangents: list[Any] = [None] * self._slots
        for slot, v in zip(self._weights, V, strict=True):
            tangents[slot] = v
        _play(self._front, tangents, watch)
        if self.A is not None and self._outputs is not None:
            dz = tangents[self._outputs]
            tangents[self._cotangent] = None if dz is None else _middle(self.A, dz)
        _play(self._back, tangents, watch)
        return [None if slot is None else tangents[slot] for slot in self._results]


def _play(
    steps: Sequence[Step], tangents: list[Any], watch: Callable[[list[Any]], None] | None
) -> None:
    for step in steps:
        inputs = [None if s is None else tangents[s] for s in step.inputs]
        if any(t is not None for t in inputs):
            results = step.tangent(*inputs)
            for slot, t in zip(step.outputs, _listed(results), strict=True):
                if slot is not None:
                    tangents[slot] = t
        if watch is not None:
            watch(tangents)
        for slot in step.last:
            tangents[slot] = None


def _middle(A: Tensor, dz: Tensor) -> Tensor:
    """``A dz`` with A (n, C, C) and dz (k, n, ...)."""
    rows = dz.transpose(0, 1)
    n, k = rows.shape[:2]
    rows = rows.reshape(n, k, -1)
    u = rows @ A if k > 1 else (A * rows).sum(2).unsqueeze(1)  # half the time of many small ones
    return u.view(n, k, *dz.shape[2:]).transpose(0, 1)


def _pruned(steps: list[Step], needed: set[int]) -> list[Step]:
    """The steps that lead to the slots that are needed, which grow by what these steps need."""
    kept = []
    for step in reversed(steps):
        if needed & set(step.outputs):
            needed |= {s for s in step.inputs if s is not None}
            kept.append(step)
    return kept[::-1]


def _with_last_uses(steps: list[Step], results: Sequence[int | None]) -> list[Step]:
    """The steps, each with the slots that no later step needs."""
    seen = {s for s in results if s is not None}
    marked = []
    for step in reversed(steps):
        slots = {s for s in (*step.inputs, *step.outputs) if s is not None}
        marked.append(replace(step, last=tuple(sorted(slots - seen))))
        seen |= slots
    return marked[::-1]
