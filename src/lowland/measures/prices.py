"""What each kind of pass over the data takes here, measured on as few samples as will do."""

import contextlib
import math
import time
from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from lowland.budget import UNITS, at_most
from lowland.curvature import Curvature, exact_diagonal, ggn, give_back, hessian, parameters
from lowland.measures.planning import Prices
from lowland.measures.shared.spectrum import whole_hessian
from lowland.measures.sharing import work_of
from lowland.problem import Problem

# Samples are doubled until a gradient takes so long: what is shorter is mostly calls of functions.
# Passes that most measures are made of are priced on more samples than those that take many.
_LONG, _LONGER = 0.01, 0.25
_FIRST = 4
_BLOCK = 2  # columns, as the spectral pass has
_RUNS, _TOO_LONG = 5, 0.5  # of a pass, and the seconds of one that is not done again
_FLOPS = 256  # rows of the matrices that are multiplied
_PART = 0.25  # of the time, that pricing what takes many passes may take
# In gradients, where that part is over, or a model does not have the derivative: nothing that needs
# it will take long.
_USUAL = {
    "products": 3.0,
    "columns": 3.0,
    "ggn_columns": 3.0,
    "diagonals": 10.0,
    "fishers": 2.0,
}


def prices(problem: Problem, allowed: float = math.inf) -> Prices:
    """Every unit of work in seconds over all training samples, for a run of so many seconds."""
    flop = _seconds_of_a_flop()
    few, _ = _enough(problem, _LONG, _FIRST)
    many, seconds = _enough(problem, _LONGER, len(few.train))
    forward = _fastest(lambda: many.losses("train"))
    share = problem.count() / len(many.train)
    units = {"flops": flop, "sample_flops": flop}
    units |= {"gradients": seconds * share, "forwards": forward * share}
    units |= {unit: usual * units["gradients"] for unit, usual in _USUAL.items()}
    with at_most(_PART * allowed):
        for unit, passing in _passes(problem, few).items():
            give_back(problem)
            with contextlib.suppress(Exception):  # the measures that need it say why it cannot be
                units[unit] = passing() * problem.count() / len(few.train)
    give_back(problem)
    assert set(units) == set(UNITS)
    return Prices(units, cache(lambda shared: work_of(shared.cost, problem)))


def _enough(problem: Problem, long: float, count: int) -> tuple[Problem, float]:
    """As many samples, at least ``count``, as a gradient takes so long of, and its seconds."""
    N = len(problem.train)
    while True:
        count = min(count, N)
        sample = problem.subset(torch.arange(N)[:: max(1, N // count)][:count])
        seconds = _fastest(sample.gradient)
        if count == N or seconds >= long:
            return sample, seconds
        count *= 4 if seconds < long / 8 else 2


def _passes(problem: Problem, sample: Problem) -> dict[str, Callable[[], float]]:
    """The seconds of each other unit of work on some samples of a problem."""
    every = list(parameters(problem).values())
    H, whole_h = cache(lambda: hessian(sample)), cache(lambda: whole_hessian(problem))
    return {
        "diagonals": lambda: _fastest(lambda: exact_diagonal(sample, every, "ggn")),
        "fishers": lambda: _fastest(lambda: exact_diagonal(sample, every, "fisher")),
        "products": lambda: _column(H(), whole_h(), 1),
        "columns": lambda: _column(H(), whole_h(), _BLOCK),
        "ggn_columns": lambda: _column(ggn(sample), ggn(problem), 1),
    }


def _column(A: Curvature, whole: Curvature, columns: int) -> float:
    """A column of a product, with as large a share of graphs kept as of all samples."""
    V = torch.ones(A.size, columns, dtype=A.dtype, device=A.device)
    seconds = 0.0
    for kept, share in ((0.0, 1 - whole.kept), (1.0, whole.kept)):
        if share:
            A.keep(kept)
            A @ V  # makes the graphs
            seconds += share * _fastest(lambda: A @ V) / columns
    return seconds


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
