"""Traces and diagonals: exact for every layer that can be seen through, estimated for the rest.

A Hessian is its Gauss-Newton part plus a remainder that the model's own curvature adds. The first
part's diagonal is exact at C backward passes wherever layers can be seen through. The remainder of
a layer vanishes if all that follows the layer is piecewise linear, and is small at a minimum of
small loss: what must be estimated is little, and so is its error.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from torch import Tensor

from lowland.curvature.block import LayerBlock
from lowland.curvature.estimate import Estimate
from lowland.curvature.exact import exact_diagonal
from lowland.curvature.factors import Kind, passes
from lowland.curvature.layers import Layer, layers
from lowland.curvature.operator import Dense, Operator
from lowland.curvature.operators import GGN, Curvature, Fisher, Hessian, Remainder
from lowland.curvature.probes import remainder_trace
from lowland.curvature.stochastic_diagonal import estimate_diagonal
from lowland.curvature.xtrace import estimate_trace
from lowland.problem import Problem

# Double backward passes up to which the remainder is exact rather than estimated. A trace takes
# some hundred products to estimate, a diagonal some thousand.
_TRACE_PASSES = 256
_DIAGONAL_PASSES = 4096


def trace(
    A: Operator, *, rtol: float = 0.01, max_matvecs: int | None = None, seed: int = 0
) -> Estimate:
    """The trace of a curvature matrix, exact where its structure allows.

    For a Hessian or GGN of a :class:`Problem`, layers that can be seen through contribute exactly
    and only the rest is estimated; ``parts`` holds each parameter's share. Any other operator is
    estimated by XTrace until the standard error is below ``rtol`` of the value.
    """
    if isinstance(A, Dense):
        return Estimate(float(A.matrix.double().trace()), 0.0, 0, True, "exact")
    if isinstance(A, LayerBlock):
        return Estimate(A.trace(), 0.0, 0, True, "exact, by layer structure")
    if isinstance(A, Fisher) or not isinstance(A, Hessian | GGN):
        return estimate_trace(A, rtol=rtol, max_matvecs=max_matvecs, seed=seed)
    return _structured_trace(A, rtol, max_matvecs, seed)


def _structured_trace(
    A: Hessian | GGN, rtol: float, max_matvecs: int | None, seed: int
) -> Estimate:
    kind: Kind = "hessian" if isinstance(A, Hessian) else "ggn"
    plan = _Plan.of(A.problem, kind, A.params)
    dear = plan.passes > _TRACE_PASSES
    diagonals = exact_diagonal(A.problem, plan.layers, "ggn" if dear else kind)
    method = "exact, by layer structure"
    parts = {
        name: Estimate(float(d.sum()), 0.0, 0, True, method)
        for name, d in diagonals.items()
        if name in A.params
    }
    exact = sum(p.value for p in parts.values())

    # What is estimated may err by as much as the whole is allowed to.
    def estimate(B: Operator) -> Estimate:
        return estimate_trace(
            B, rtol=rtol, atol=rtol * abs(exact), max_matvecs=max_matvecs, seed=seed
        )

    estimated = []
    if dear and (curved := plan.names(plan.curved, A.params)):
        target = rtol * abs(exact)
        found = remainder_trace(A.problem, plan.curved, curved, target=target, seed=seed)
        estimated.append(found)
    if plan.unseen:
        estimated.append(estimate(type(A)(A.problem, plan.unseen)))
    if not estimated:
        return Estimate(exact, 0.0, 0, True, method, parts)
    for found in estimated:
        for name, share in found.parts.items():
            known = parts[name].value if name in parts else 0.0
            parts[name] = Estimate(
                known + share.value, share.stderr, share.samples, share.converged, share.method
            )
    value = exact + sum(e.value for e in estimated)
    stderr = sum(e.stderr**2 for e in estimated) ** 0.5
    return Estimate(
        value,
        stderr,
        sum(e.samples for e in estimated),
        stderr <= rtol * abs(value),
        f"exact Gauss-Newton part, the rest by {estimated[0].method}",
        {name: parts[name] for name in A.params},
    )


class Diagonal(Mapping[str, Tensor]):
    """The diagonal by parameter name, each in the parameter's shape.

    ``stderr`` holds standard errors of those that were estimated; the others are exact.
    """

    def __init__(self, entries: dict[str, Tensor], stderr: dict[str, Tensor], samples: int) -> None:
        self._entries, self.stderr, self.samples = entries, stderr, samples

    def __getitem__(self, name: str) -> Tensor:
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __repr__(self) -> str:
        exact = len(self) - len(self.stderr)
        return f"Diagonal({exact} parameters exact, {len(self.stderr)} by {self.samples} products)"


def diagonal(
    problem: Problem, kind: Kind = "hessian", *, rtol: float = 0.1, seed: int = 0
) -> Diagonal:
    """The diagonal of the whole network's Hessian or GGN, exact wherever the layer allows it.

    Parameters of other layers, and remainders that would take too many passes, are estimated until
    their standard error is below ``rtol`` of the estimate, in norm.
    """
    plan = _Plan.of(problem, kind, problem.params)
    dear = plan.passes > _DIAGONAL_PASSES
    entries = exact_diagonal(problem, plan.layers, "ggn" if dear else kind)
    estimates: list[Curvature] = []
    if dear:
        estimates.append(Remainder(problem, plan.names(plan.curved, problem.params)))
    if plan.unseen:
        make = Hessian if kind == "hessian" else GGN
        estimates.append(make(problem, plan.unseen))
    stderr: dict[str, Tensor] = {}
    samples = 0
    for operator in estimates:
        found = estimate_diagonal(operator, rtol=rtol, seed=seed)
        samples += found.samples
        for name, at in operator.slices.items():
            p = problem.params[name]
            value = found.value[at].view_as(p)
            entries[name] = entries[name] + value if name in entries else value
            stderr[name] = found.stderr[at].view_as(p)
    return Diagonal({name: entries[name] for name in problem.params}, stderr, samples)


@dataclass(frozen=True)
class _Plan:
    """Which layers can be seen through, which of them have a remainder, and what is left."""

    layers: list[Layer]
    curved: list[Layer]
    passes: int  # that the exact remainder of all of them takes
    unseen: list[str]

    @classmethod
    def of(cls, problem: Problem, kind: str, params: Collection[str]) -> "_Plan":
        known = [at for at in layers(problem).values() if not set(cls._of(at)).isdisjoint(params)]
        need = passes(problem, known) if kind == "hessian" else {}
        curved = [at for at in known if need.get(at.name)]
        seen = {name for at in known for name in cls._of(at)}
        unseen = [name for name in params if name not in seen]
        return cls(known, curved, sum(need.values()), unseen)

    @staticmethod
    def _of(at: Layer) -> list[str]:
        return [at.weight_name, *([at.bias_name] if at.bias_name else [])]

    def names(self, chosen: list[Layer], among: Collection[str]) -> list[str]:
        return [name for at in chosen for name in self._of(at) if name in among]
