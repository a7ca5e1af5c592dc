"""What each kind of pass over the data takes here, measured on as few samples as will do."""

import time
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import torch

from lowland.budget import UNITS
from lowland.curvature import Curvature, exact_diagonal, ggn, hessian, parameters
from lowland.measures.planning import Prices
from lowland.measures.shared.spectrum import whole_hessian
from lowland.measures.sharing import work_of
from lowland.problem import Problem

# Samples are doubled until a gradient takes so long: what is shorter is mostly calls of functions.
_LONG = 0.1
_FIRST = 16
_BLOCK = 4  # columns
_RUNS, _TOO_LONG = 5, 0.5  # of a pass, and the seconds of one that is not done again
_FLOPS = 256  # rows of the matrices that are multiplied
# In gradients, where a model does not have the derivative: nothing that needs it will take long.
_USUAL = {
    "forwards": 0.4,
    "gradients": 1.0,
    "products": 3.0,
    "columns": 3.0,
    "ggn_columns": 3.0,
    "diagonals": 10.0,
    "fishers": 2.0,
}


def prices(problem: Problem) -> Prices:
    """Every unit of work in seconds over all training samples."""
    sample, gradient = _sample(problem)
    scale = problem.count() / len(sample.train)
    flop = _seconds_of_a_flop()
    units = {"gradients": scale * gradient, "flops": flop, "sample_flops": flop}
    for unit, measured in _passes(sample, problem):
        try:
            units[unit] = scale * measured()
        except Exception:  # the measures that need it say why it cannot be
            units[unit] = _USUAL[unit] * units["gradients"]
    assert set(units) == set(UNITS)
    return Prices(units, lambda shared: work_of(shared.cost, problem))  # type: ignore[attr-defined]


def _sample(problem: Problem) -> tuple[Problem, float]:
    """Some training samples, and the seconds of one gradient over them."""
    count, N = _FIRST, len(problem.train)
    while True:
        count = min(count, N)
        sample = problem.subset(torch.arange(N)[:: max(1, N // count)][:count])
        seconds = _fastest(sample.gradient)
        if count == N or seconds >= _LONG:
            return sample, seconds
        count *= 4 if seconds < _LONG / 8 else 2


def _passes(sample: Problem, problem: Problem) -> Iterator[tuple[str, Callable[[], float]]]:
    """What measures each unit that is no gradient, on the sample."""
    every = list(parameters(sample).values())
    yield "forwards", lambda: _fastest(lambda: sample.losses("train"))
    yield "diagonals", lambda: _fastest(lambda: exact_diagonal(sample, every, "ggn"))
    yield "fishers", lambda: _fastest(lambda: exact_diagonal(sample, every, "fisher"))
    own = cache(lambda: hessian(sample))
    yield "products", lambda: _column(own(), whole_hessian(problem), 1)
    yield "columns", lambda: _column(own(), whole_hessian(problem), _BLOCK)
    yield "ggn_columns", lambda: _column(ggn(sample), ggn(problem), _BLOCK)


def _column(A: Curvature, whole: Curvature, columns: int) -> float:
    """A column of a product, on kept graphs only if those of all samples are kept."""
    V = torch.ones(A.size, columns, dtype=A.dtype, device=A.device)
    A.kept = whole.kept
    if A.kept:
        A @ V  # makes the graphs
    return _fastest(lambda: A @ V) / columns


def _seconds_of_a_flop() -> float:
    a = torch.ones(_FLOPS, _FLOPS, dtype=torch.float64)
    return _fastest(lambda: a @ a) / (2 * _FLOPS**3)


def _fastest(run: Callable[[], Any]) -> float:
    """The seconds of the fastest of a few runs: others were disturbed, or the first of their kind.

    Two that take long, more that do not.
    """
    times: list[float] = []
    while len(times) < 2 or (len(times) < _RUNS and sum(times) < _LONG):
        began = time.perf_counter()
        run()
        times.append(time.perf_counter() - began)
        if times[0] > _TOO_LONG:
            break
    return max(min(times), 1e-9)
