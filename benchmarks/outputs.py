"""Output-level dual shifts of every layer, and the same of ten pairs by SciPy."""

import sys
import time
from collections.abc import Callable

import numpy as np
import torch
from peers import Contestant
from scipy.optimize import NonlinearConstraint, minimize
from torch import Tensor
from workloads import Workload

import lowland as ll
from lowland.curvature import layer
from lowland.dual.injection import Shifted
from lowland.dual.matching import MATCHED, Matching
from lowland.dual.output_shifts import output_shifts
from lowland.dual.pairing import Pairs
from lowland.dual.shifts import dual_shifts, layers_with_dual

LAYER, TEN = "5.skip", 10  # what SciPy is asked for

Found = dict[str, Tensor]  # by layer: the norm of each pair's shift, infinite if it has none


def ours(w: Workload) -> Callable[[], Found]:
    p = w.problem()
    pairs = ll.pair(p)

    def run() -> Found:
        found = {}
        for name, each in layers_with_dual(p).items():
            began = time.perf_counter()
            activity = dual_shifts(p, [each], pairs).shifts[name]
            shifts = output_shifts(p, [each], pairs, activity)[name]
            found[name] = torch.where(shifts.solved, shifts.size.sqrt(), torch.inf)
            seconds, solved = time.perf_counter() - began, float(shifts.solved.double().mean())
            print(f"    {name}: {seconds:.1f} s, {solved:.1%} solved", file=sys.stderr, flush=True)
        return found

    return run


def trust_constr(**options: float) -> Contestant:
    """SciPy's trust-constr with exact gradients, pair by pair, in one layer."""

    def prepare(w: Workload) -> Callable[[], Found]:
        p = w.problem()
        every = ll.pair(p)
        pairs = Pairs(every.train[:TEN], every.test[:TEN], 0, every.rule)

        def run() -> Found:
            with p.measuring():
                return {LAYER: torch.tensor([_norm(p, pairs, k, options) for k in range(TEN)])}

        return run

    return prepare


def _norm(p: ll.Problem, pairs: Pairs, k: int, options: dict[str, float]) -> float:
    old = p.place(p.train.take(pairs.train[k : k + 1]))
    new = p.place(p.test.take(pairs.test[k : k + 1]))
    z = p.outputs(new.inputs).detach()
    matching = Matching.within(p.loss, z, new.targets, MATCHED)
    equations = Shifted(p, layer(p, LAYER), old, matching)
    target = matching(z)[0].double().numpy()
    size = int(np.prod(equations.shape))
    seen: dict[bytes, tuple[np.ndarray, np.ndarray]] = {}

    def at(v: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if v.tobytes() not in seen:
            seen.clear()
            c, J = equations(torch.from_numpy(v.copy()).unsqueeze(0))
            seen[v.tobytes()] = c[0].numpy(), J[0].double().numpy()
        return seen[v.tobytes()]

    result = minimize(
        lambda v: (v @ v / 2, v),
        np.zeros(size),
        jac=True,
        hessp=lambda v, direction: direction,
        method="trust-constr",
        constraints=NonlinearConstraint(
            lambda v: at(v)[0],
            target,
            target,
            jac=lambda v: at(v)[1],
            hess=lambda v, multipliers: np.zeros((size, size)),
        ),
        options={"maxiter": 300, **options},
    )
    before = np.linalg.norm(at(np.zeros(size))[0] - target)
    missed = np.linalg.norm(at(result.x)[0] - target) / before
    return float(np.linalg.norm(result.x)) if missed < 1e-3 else float("inf")


def unsolved(w: Workload, result: Found, _: Found | None) -> float:
    """The share of pairs without a solution, of all but the first layer."""
    later = [norms for name, norms in result.items() if name != "0"]
    return float(torch.cat(later).isinf().double().mean())
