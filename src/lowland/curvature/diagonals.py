"""Traces and diagonals: exact for every parameter that can be seen through, else estimated.

A Hessian is its Gauss-Newton part plus a remainder that the model's own curvature adds. The first
part's diagonal is exact at C backward passes wherever parameters can be seen through. The remainder
vanishes for a parameter in which the outputs are piecewise linear, and is small at a minimum of
small loss: what must be estimated is little, and so is its error.
"""

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lowland.budget import Work
from lowland.curvature.estimate import Estimate
from lowland.curvature.factored_block import LayerBlock
from lowland.curvature.layer_blocks import exact_diagonal
from lowland.curvature.layer_search import Layer, outputs_of_a_sample, parameters, unused
from lowland.curvature.operator import Dense, Operator
from lowland.curvature.operators import (
    GGN,
    Curvature,
    Fisher,
    Hessian,
    Remainder,
    of_an_operator,
)
from lowland.curvature.precision import rounding
from lowland.curvature.probes import (
    SHIFT,
    first_passes,
    remainder_diagonal,
    remainder_trace,
    widened_by_passes,
)
from lowland.curvature.sample_factors import Kind, check_kind, passes
from lowland.curvature.second_derivatives import twice_backwards
from lowland.curvature.shared_jacobians import few_outputs
from lowland.curvature.stochastic_diagonal import estimate_diagonal
from lowland.curvature.xtrace import estimate_trace
from lowland.problem import Problem, differentiating, of_a_problem

# Double backward passes up to which the remainder is exact rather than estimated. A trace takes
# some hundred products to estimate, a diagonal some thousand.
_TRACE_PASSES = 256
_DIAGONAL_PASSES = 4096
_PRODUCTS = 3  # that take as long as one draw of random shifts
_BLOCK = 64  # of them at once
_OPERATORS: dict[Kind, type[Curvature]] = {"hessian": Hessian, "ggn": GGN, "fisher": Fisher}
# Passes of random shifts for a diagonal's remainder: every sample has draws of its own.
_SHIFTS = 16
# A trace's first look at its draws takes a tenth of what is exact at most; estimates from products
# take so many, as a rule.
_LOOKS, _TRACE_PRODUCTS, _DIAGONAL_PRODUCTS = 10, 64, 500
_EXACT = "exact, by layer structure"


@of_an_operator
@differentiating()
def trace(
    A: Operator,
    *,
    rtol: float = 0.01,
    max_matvecs: int | None = None,
    gauss_newton: Mapping[str, Tensor] | None = None,
    seed: int = 0,
) -> Estimate:
    """The trace of a curvature matrix, exact where its structure allows.

    For a Hessian, GGN or empirical Fisher matrix of a :class:`Problem`, parameters that can be seen
    through contribute exactly and only the rest is estimated; ``parts`` holds each parameter's
    share. Any other operator is estimated by XTrace until the standard error is below ``rtol`` of
    the value.

    Args:
        A: the matrix; a problem stands for its Hessian.
        rtol: the standard error, relative to the trace, that ends an estimate,
        max_matvecs: or so many products, or passes over the data, do.
        gauss_newton: of a Hessian, the exact diagonal of the GGN, where it is known already.
        seed: of the random vectors.
    """
    if isinstance(A, Dense):
        return Estimate(float(A.matrix.double().trace()), 0.0, 0, True, "exact")
    if isinstance(A, LayerBlock):
        return Estimate(A.trace(), 0.0, 0, True, _EXACT)
    kinds: dict[str, Kind] = {"hessian": "hessian", "ggn": "ggn", "empirical fisher": "fisher"}
    if not isinstance(A, Curvature) or A.kind not in kinds or A.problem.sharded:
        return estimate_trace(A, rtol=rtol, max_matvecs=max_matvecs, seed=seed)
    usual = _Estimates(_TRACE_PASSES, _LOOKS * first_passes(len(A.problem.train)), _TRACE_PRODUCTS)
    with A.problem.measuring():
        A.check_parameters()
        plan = _Plan.of(A.problem, kinds[A.kind], A.params, usual, max_matvecs, gauss_newton)
        return _structured_trace(A, plan, kinds[A.kind], rtol, max_matvecs, seed)


def _structured_trace(
    A: Curvature, plan: "_Plan", kind: Kind, rtol: float, max_matvecs: int | None, seed: int
) -> Estimate:
    problem, estimates = A.problem, []
    if plan.curved:
        size = sum(problem.params[layer.parameter].numel() for layer in plan.curved)
        remainder = remainder_trace(
            problem,
            plan.curved,
            rtol=rtol,
            beside=sum(float(d.sum()) for d in plan.exact.values()),
            max_passes=max_matvecs,
            worth=math.inf if max_matvecs else size / _PRODUCTS,
            whole=plan.whole,
            seed=seed,
        )
        if remainder.converged or max_matvecs:
            estimates.append(remainder)
        else:
            plan = plan.by_products(problem, kind)
            if plan.curved:  # products are not exact either
                estimates.append(remainder)
    how = _EXACT if not plan.products else f"{_EXACT} or a product for each weight"
    parts = {
        name: Estimate(float(d.sum()), 0.0, plan.products, True, how)
        for name, d in plan.exact.items()
    }
    exact = sum(part.value for part in parts.values())
    # What is estimated may err by as much as the whole is allowed to.
    target = rtol * abs(exact)
    operators: list[Operator] = []
    if plan.in_series:
        operators.append(Remainder(problem, plan.in_series))
    if plan.unseen:
        operators.append(type(A)(problem, plan.unseen))
    estimates += [
        estimate_trace(
            B, rtol=rtol, atol=target, max_matvecs=max_matvecs and _products(max_matvecs), seed=seed
        )
        for B in operators
    ]
    if not estimates:
        shares = {name: parts[name] for name in A.params}
        return Estimate(exact, 0.0, plan.products, True, how, shares)
    for estimate in estimates:
        for name, share in estimate.parts.items():
            previous = parts[name].value if name in parts else 0.0
            parts[name] = Estimate(
                previous + share.value,
                share.stderr,
                share.samples,
                share.converged,
                share.method,
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

    ``stderr`` holds standard errors of those that were estimated; the others are exact. They are
    NaN where the passes were too few to tell. ``spread`` holds them before they were widened for
    the number of passes.
    """

    def __init__(
        self,
        entries: dict[str, Tensor],
        spread: dict[str, Tensor],
        samples: int,
        wider: Mapping[str, float] | None = None,
    ) -> None:
        self._entries, self.spread, self.samples = entries, spread, samples
        self.stderr = {name: s * (wider or {}).get(name, 1.0) for name, s in spread.items()}

    def __getitem__(self, name: str) -> Tensor:
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __repr__(self) -> str:
        exact = len(self) - len(self.stderr)
        unknown = any(bool(error.isnan().any()) for error in self.stderr.values())
        state = ", too few for an error" if unknown else ""
        estimated = f"{len(self.stderr)} by {self.samples} products{state}"
        return f"Diagonal({exact} parameters exact, {estimated})"


@of_a_problem
def diagonal(
    problem: Problem,
    kind: Kind = "hessian",
    *,
    rtol: float = 0.1,
    max_matvecs: int | None = None,
    gauss_newton: Mapping[str, Tensor] | None = None,
    seed: int = 0,
) -> Diagonal:
    """The diagonal of the whole network's Hessian, GGN or empirical Fisher matrix.

    It is exact wherever a parameter can be seen through. Other parameters, and remainders that
    would take too many passes, are estimated: by random shifts of the layers' outputs, or by
    products until their standard error is below ``rtol`` of the estimate, in norm, or there were
    ``max_matvecs``. ``gauss_newton`` is that of the GGN, where it is known already.
    """
    check_kind(kind)
    usual = _Estimates(_DIAGONAL_PASSES, _SHIFTS, _DIAGONAL_PRODUCTS)
    plan = _Plan.of(problem, kind, problem.params, usual, max_matvecs, gauss_newton)
    entries = dict(plan.exact)
    operators: list[Curvature] = []
    if plan.in_series:
        operators.append(Remainder(problem, plan.in_series))
    if plan.unseen:
        operators.append(_OPERATORS[kind](problem, plan.unseen))
    spread: dict[str, Tensor] = {}
    wider: dict[str, float] = {}
    samples = 0
    if plan.curved:
        samples = max_matvecs or _SHIFTS
        more, spread = remainder_diagonal(
            problem, plan.curved, passes=samples, whole=plan.whole, seed=seed
        )
        wider = dict.fromkeys(spread, widened_by_passes(samples, problem.count()))
        entries |= {n: entries[n] + v if n in entries else v for n, v in more.items()}
    for operator in operators:
        estimate = estimate_diagonal(
            operator, rtol=rtol, max_matvecs=max_matvecs and _products(max_matvecs), seed=seed
        )
        samples += estimate.samples
        for name, place in operator.slices.items():
            p = problem.params[name]
            value = estimate.value[place].view_as(p)
            entries[name] = entries[name] + value if name in entries else value
            spread[name] = estimate.stderr[place].view_as(p)
    return Diagonal({name: entries[name] for name in problem.params}, spread, samples, wider)


def remainder_work(problem: Problem, limit: int) -> Work:
    """What a trace or diagonal of the Hessian takes beside the exact one of the GGN.

    With ``limit`` as the most passes or products, and as :meth:`_Plan.of` decides.
    """
    seen = list(parameters(problem).values())
    curved = [layer for layer in seen if layer.curved and not layer.in_series]
    work = Work()
    if not few_outputs(problem):
        work += SHIFT.times(limit)
    elif curved:
        exactly = sum(map(passes, curved))
        work += Work(products=exactly) if exactly <= _TRACE_PASSES else SHIFT.times(limit)
    if any(layer.in_series for layer in seen) or len(seen) < len(problem.params):
        work += Work(columns=_products(limit))
    return work


def seen_through(problem: Problem) -> bool:
    """Whether the trace of the Hessian is exact by structure, with no part that is estimated."""
    rest = remainder_work(problem, 1)
    return not (rest.gradients or rest.columns)  # of random shifts, and of random vectors


@dataclass(frozen=True)
class _Estimates:
    """What is spent where nobody limits it."""

    passes: int  # double backward passes up to which a remainder is exact
    draws: int  # of random shifts, up to which a product for each weight is no dearer
    products: int  # with random vectors


@dataclass(frozen=True)
class _Plan:
    """What is known exactly of some parameters, and what is left to estimate."""

    exact: dict[str, Tensor]  # diagonals: of the matrix, or of its Gauss-Newton part
    curved: list[Layer]  # parameters of which only that part is known, each used in parallel
    in_series: list[str]  # the same, used in series
    unseen: list[str]  # nothing is known of these
    whole: bool = False  # not even the Gauss-Newton part is known of those that are curved
    products: int = 0  # that some of the exact ones took, one for each weight

    @classmethod
    def of(
        cls,
        problem: Problem,
        kind: Kind,
        names: Collection[str],
        estimate: "_Estimates",
        limit: int | None,
        gauss_newton: Mapping[str, Tensor] | None,
    ) -> "_Plan":
        """The plan; remainders are exact if all take few enough double backward passes."""
        most = estimate.passes if limit is None else min(estimate.passes, _TRACE_PASSES)
        seen = [layer for layer in parameters(problem).values() if layer.parameter in names]
        if kind == "hessian" and gauss_newton is None and not few_outputs(problem):
            # Where torch's second derivatives are not right, nothing is known apart from products.
            right = twice_backwards(problem)
            curved = [layer for layer in seen if layer.parameter in right and not layer.in_series]
            taken = {layer.parameter for layer in curved} | set(unused(problem))
            zeros = {n: _zeros(problem, n) for n in unused(problem) if n in names}
            plan = cls(zeros, curved, [], [n for n in names if n not in taken], True)
            return plan._by_products(problem, kind, estimate, limit)
        series = [layer for layer in seen if kind == "hessian" and layer.in_series]
        curved = [
            layer for layer in seen if kind == "hessian" and layer.curved and not layer.in_series
        ]
        if series or curved:
            right = twice_backwards(problem)
            wrong = [layer for layer in (*series, *curved) if layer.parameter not in right]
            seen, series, curved = (
                [layer for layer in group if layer not in wrong] for group in (seen, series, curved)
            )
        exactly = sum(map(passes, curved))
        affordable = exactly if exactly <= most else 0
        size = sum(problem.params[layer.parameter].numel() for layer in curved)
        if exactly <= min(most, size):
            twice, curved = curved, []
        else:
            twice = []
        found = {layer.parameter for layer in seen} | set(unused(problem))
        left = cls({}, curved, [layer.parameter for layer in series], [])
        left = replace(left, unseen=[name for name in names if name not in found])
        known = left._by_products(problem, kind, estimate, limit, affordable)
        if known.products:  # the Gauss-Newton part of these is not needed
            seen = [layer for layer in seen if layer.parameter not in known.exact]
            series, curved = [], []
            few = cls({}, [], [], [layer.parameter for layer in seen])
            outputs = outputs_of_a_sample(problem)  # passes that their exact diagonal takes
            if seen and kind != "fisher" and few.size(problem) <= outputs and not gauss_newton:
                more = few.by_products(problem, kind)
                known = replace(known, exact=known.exact | more.exact)
                seen = [layer for layer in seen if layer.parameter not in more.exact]
        if kind == "hessian" and gauss_newton is not None:
            straight = [layer for layer in seen if layer not in twice]
            exact = {
                layer.parameter: gauss_newton[layer.parameter]
                for layer in straight
                if layer.parameter in gauss_newton
            }
            exact |= exact_diagonal(problem, twice, kind) if twice else {}
        else:
            partly = {layer.parameter for layer in (*series, *curved)}
            rest = [layer for layer in seen if layer.parameter not in partly]
            exact = exact_diagonal(problem, [*series, *curved], "ggn") if partly else {}
            exact |= exact_diagonal(problem, rest, kind) if rest else {}
        exact |= known.exact
        for name in unused(problem):
            if name in names:
                exact[name] = _zeros(problem, name)
        return cls(
            exact,
            [layer for layer in curved if layer.parameter in exact],
            [layer.parameter for layer in series if layer.parameter in exact],
            [name for name in names if name not in exact],
            products=known.products,
        )

    def _by_products(
        self,
        problem: Problem,
        kind: Kind,
        estimate: "_Estimates",
        limit: int | None,
        affordable: int = 0,
    ) -> "_Plan":
        """Return the plan with nothing left to estimate, if a product for each weight is no dearer.

        ``affordable`` is what is spent on exactness where nothing else is said, in products.
        """
        dearer = _PRODUCTS * (limit or estimate.draws) if self.curved else 0
        for names in (self.in_series, self.unseen):
            if names:
                dearer += _products(limit) if limit else estimate.products
        if self.size(problem) > max(affordable, dearer):
            return self
        return self.by_products(problem, kind)

    @property
    def left(self) -> list[str]:
        """The parameters of which something is left to estimate."""
        return [*(layer.parameter for layer in self.curved), *self.in_series, *self.unseen]

    def size(self, problem: Problem) -> int:
        """Return how many weights these have."""
        return sum(problem.params[name].numel() for name in self.left)

    def by_products(self, problem: Problem, kind: Kind) -> "_Plan":
        """Return the plan with all that was left found by a product for each weight."""
        left, size = self.left, self.size(problem)
        if not left:
            return self
        A = _OPERATORS[kind](problem, left)
        if A.precision > rounding(A.dtype):  # products by differences are not exact
            return self
        columns = torch.eye(size, dtype=A.dtype, device=A.device).split(_BLOCK, 1)
        parts = [(A @ E).diagonal(-i * _BLOCK).double() for i, E in enumerate(columns)]
        diagonal = torch.cat(parts)
        entries = {n: diagonal[place].view_as(problem.params[n]) for n, place in A.slices.items()}
        exact = {**self.exact, **entries}
        return replace(self, exact=exact, curved=[], in_series=[], unseen=[], products=size)


def _zeros(problem: Problem, name: str) -> Tensor:
    return torch.zeros_like(problem.params[name], dtype=torch.float64)


def _products(limit: int) -> int:
    """The products to estimate with: as many as passes are allowed, and enough for a spread."""
    return max(limit, 16)
