"""Traces and diagonals: exact for every parameter that can be seen through, else estimated.

A Hessian is its Gauss-Newton part plus a remainder that the model's own curvature adds. The first
part's diagonal is exact at C backward passes wherever parameters can be seen through. The remainder
vanishes for a parameter in which the outputs are piecewise linear, and is small at a minimum of
small loss: what must be estimated is little, and so is its error.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from lowland.budget import Work
from lowland.curvature.estimate import Estimate
from lowland.curvature.factored_block import LayerBlock
from lowland.curvature.layer_blocks import exact_diagonal
from lowland.curvature.layer_search import Layer, parameters, unused
from lowland.curvature.operator import Dense, Operator
from lowland.curvature.operators import GGN, Curvature, Fisher, Hessian, Remainder
from lowland.curvature.probes import remainder_trace, remainder_work
from lowland.curvature.sample_factors import Kind, check_kind, passes
from lowland.curvature.sketch import allowed
from lowland.curvature.stochastic_diagonal import estimate_diagonal
from lowland.curvature.xtrace import estimate_trace
from lowland.problem import Problem, differentiating

# Double backward passes up to which the remainder is exact rather than estimated. A trace takes
# some hundred products to estimate, a diagonal some thousand.
_TRACE_PASSES = 256
_DIAGONAL_PASSES = 4096
_UNSEEN_TRACE = Work(columns=100)  # to estimate a trace to 1 %, as a rule
_OPERATORS: dict[Kind, type[Curvature]] = {"hessian": Hessian, "ggn": GGN, "fisher": Fisher}
_EXACT = "exact, by layer structure"


@differentiating()
def trace(
    A: Operator, *, rtol: float = 0.01, max_matvecs: int | None = None, seed: int = 0
) -> Estimate:
    """The trace of a curvature matrix, exact where its structure allows.

    For a Hessian, GGN or empirical Fisher matrix of a :class:`Problem`, parameters that can be seen
    through contribute exactly and only the rest is estimated; ``parts`` holds each parameter's
    share. Any other operator is estimated by XTrace until the standard error is below ``rtol`` of
    the value.
    """
    if isinstance(A, Dense):
        return Estimate(float(A.matrix.double().trace()), 0.0, 0, True, "exact")
    if isinstance(A, LayerBlock):
        return Estimate(A.trace(), 0.0, 0, True, _EXACT)
    kinds: dict[str, Kind] = {"hessian": "hessian", "ggn": "ggn", "empirical fisher": "fisher"}
    if not isinstance(A, Curvature) or A.kind not in kinds:
        return estimate_trace(A, rtol=rtol, max_matvecs=max_matvecs, seed=seed)
    return _structured_trace(A, kinds[A.kind], rtol, max_matvecs, seed)


def _structured_trace(
    A: Curvature, kind: Kind, rtol: float, max_matvecs: int | None, seed: int
) -> Estimate:
    problem = A.problem
    plan = _Plan.of(problem, kind, A.params, _TRACE_PASSES)
    parts = {name: Estimate(float(d.sum()), 0.0, 0, True, _EXACT) for name, d in plan.exact.items()}
    exact = sum(part.value for part in parts.values())
    # What is estimated may err by as much as the whole is allowed to.
    target = rtol * abs(exact)
    operators: list[Operator] = []
    if plan.in_series:
        operators.append(Remainder(problem, plan.in_series))
    if plan.unseen:
        operators.append(type(A)(problem, plan.unseen))
    estimates = [
        estimate_trace(B, rtol=rtol, atol=target, max_matvecs=max_matvecs, seed=seed)
        for B in operators
    ]
    if plan.curved:
        remainder = remainder_trace(problem, plan.curved, target=target, seed=seed)
        # The remainder may take away from the exact part, and less error is then allowed.
        allowed = rtol * abs(exact + remainder.value)
        if remainder.stderr > allowed:
            remainder = remainder_trace(problem, plan.curved, target=allowed, seed=seed)
        estimates.insert(0, remainder)
    if not estimates:
        return Estimate(exact, 0.0, 0, True, _EXACT, {name: parts[name] for name in A.params})
    for estimate in estimates:
        for name, share in estimate.parts.items():
            known = parts[name].value if name in parts else 0.0
            parts[name] = Estimate(
                known + share.value, share.stderr, share.samples, share.converged, share.method
            )
    value = exact + sum(e.value for e in estimates)
    stderr = sum(e.stderr**2 for e in estimates) ** 0.5
    return Estimate(
        value,
        stderr,
        sum(e.samples for e in estimates),
        stderr <= rtol * abs(value),
        f"exact Gauss-Newton part, the rest by {estimates[0].method}"
        if plan.exact
        else estimates[0].method,
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


@differentiating()
def diagonal(
    problem: Problem, kind: Kind = "hessian", *, rtol: float = 0.1, seed: int = 0
) -> Diagonal:
    """The diagonal of the whole network's Hessian, GGN or empirical Fisher matrix.

    It is exact wherever a parameter can be seen through. Other parameters, and remainders that
    would take too many passes, are estimated until their standard error is below ``rtol`` of the
    estimate, in norm.
    """
    check_kind(kind)
    plan = _Plan.of(problem, kind, problem.params, _DIAGONAL_PASSES)
    entries = dict(plan.exact)
    operators: list[Curvature] = []
    if left := plan.in_series + [at.parameter for at in plan.curved]:
        operators.append(Remainder(problem, left))
    if plan.unseen:
        operators.append(_OPERATORS[kind](problem, plan.unseen))
    stderr: dict[str, Tensor] = {}
    samples = 0
    for operator in operators:
        estimate = estimate_diagonal(operator, rtol=rtol, seed=seed)
        samples += estimate.samples
        for name, place in operator.slices.items():
            p = problem.params[name]
            value = estimate.value[place].view_as(p)
            entries[name] = entries[name] + value if name in entries else value
            stderr[name] = estimate.stderr[place].view_as(p)
    return Diagonal({name: entries[name] for name in problem.params}, stderr, samples)


def trace_work(problem: Problem) -> Work:
    """What the trace of the whole Hessian takes."""
    return _work(problem, _TRACE_PASSES, _UNSEEN_TRACE, remainder_work(problem))


def diagonal_work(problem: Problem) -> Work:
    """What the diagonal of the whole Hessian takes."""
    limit = Work(columns=allowed(None, sum(p.numel() for p in problem.params.values())))
    return _work(problem, _DIAGONAL_PASSES, limit, limit)


def _work(problem: Problem, most: int, unseen: Work, curved: Work) -> Work:
    """As :meth:`_Plan.of` decides: the exact part, and estimates of what is left."""
    seen = parameters(problem)
    work = Work(diagonals=1) if seen else Work()
    through = [at for at in seen.values() if at.curved and not at.in_series]
    exactly = sum(map(passes, through))
    if through:
        work += Work(products=exactly) if exactly <= most else curved
    if any(at.in_series for at in seen.values()) or len(seen) < len(problem.params):
        work += unseen
    return work


@dataclass(frozen=True)
class _Plan:
    """What is known exactly of some parameters, and what is left to estimate."""

    exact: dict[str, Tensor]  # diagonals: of the matrix, or of its Gauss-Newton part
    curved: list[Layer]  # parameters of which only that part is known, each used in parallel
    in_series: list[str]  # the same, used in series
    unseen: list[str]  # nothing is known of these

    @classmethod
    def of(cls, problem: Problem, kind: Kind, names: Collection[str], most: int) -> "_Plan":
        """Exact remainders if all of them take at most so many double backward passes."""
        seen = [at for at in parameters(problem).values() if at.parameter in names]
        series = [at for at in seen if kind == "hessian" and at.in_series]
        curved = [at for at in seen if kind == "hessian" and at.curved and not at.in_series]
        if sum(map(passes, curved)) <= most:
            curved = []
        partly = {at.parameter for at in (*series, *curved)}
        exact = exact_diagonal(problem, [*series, *curved], "ggn")
        exact |= exact_diagonal(problem, [at for at in seen if at.parameter not in partly], kind)
        for name in unused(problem):
            if name in names:
                exact[name] = torch.zeros_like(problem.params[name], dtype=torch.float64)
        return cls(
            exact,
            [at for at in curved if at.parameter in exact],
            [at.parameter for at in series if at.parameter in exact],
            [name for name in names if name not in exact],
        )
