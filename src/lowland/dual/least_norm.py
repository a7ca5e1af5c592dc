"""Least-norm solutions of small systems of nonlinear equations, many systems at once.

Each of K systems asks for the v of least norm with ``c_k(v) = target_k``: m equations for P
numbers, m being far below P. All systems go together through three stages:

1. a flow: four steps that each take a part of what is left, along the least-norm direction;
2. steps towards the equations and, along their solution set, towards 0, until v is a combination
   of the equations' gradients (the condition of Karush, Kuhn and Tucker);
3. Levenberg and Marquardt's steps until the equations hold.

The norm that comes out is a local least one; where gradients jump, as behind ReLU, it is one to
about a percent. Nothing here knows of networks.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

# Stages 1 and 3 with these constants solved all pairs of all but the first layer of a ResNet;
# undamped steps solve 39 %.
FLOW, TOWARDS, STEPS = 4, 10, 40
_FLOW_DAMPING = 1e-4
_FIRST_DAMPING, _LEAST_DAMPING, _MOST_DAMPING = 1e-3, 1e-14, 1e8
# Systems whose residual is above this share of what it was so many steps before are given up.
_PATIENCE, _NEARER = 8, 0.9
_SHORTEST = 1e-3  # the share of |v| along the solution set at which it counts as shortest
_LEAST_LENGTH = 1e-2  # of a step, below which none is shorter: v is at an edge
_TINY = 1e-300


class Equations(Protocol):
    """K systems of m equations each."""

    def __call__(self, v: Tensor) -> tuple[Tensor, Tensor]:
        """For v (K, P): the left-hand sides (K, m), and their gradients (K, m, P).

        Points and left-hand sides are float64; gradients have the precision that they have.
        """

    def of(self, places: Tensor) -> "Equations":
        """Some of the systems."""


@dataclass(frozen=True)
class Solution:
    """The solutions of K systems; where none was found, the nearest point."""

    v: Tensor  # (K, P)
    residual: Tensor  # (K,), |c(v) - target| as a share of the scale
    along: Tensor  # (K,), the share of |v| along the solution set: 0 where v is shortest
    rank: Tensor  # (K,), how many equations are independent at v
    solved: Tensor  # (K,)

    def at(self, places: Tensor) -> "Solution":
        """Those of some systems."""
        return Solution(**{name: value[places] for name, value in vars(self).items()})

    def or_better(self, other: "Solution", places: Tensor) -> "Solution":
        """With the other's points at those ``places`` where they solve, and are shorter or new."""
        mine = self.at(places)
        shorter = other.v.norm(dim=1) < mine.v.norm(dim=1)
        nearer = ~mine.solved & ~other.solved & (other.residual < mine.residual)
        taken = (other.solved & (~mine.solved | shorter)) | nearer
        rows = {name: value.clone() for name, value in vars(self).items()}
        for name, value in rows.items():
            value[places[taken]] = getattr(other, name)[taken]
        return Solution(**rows)


def least_norm(
    equations: Equations,
    target: Tensor,
    start: Tensor,
    scale: Tensor,
    *,
    accuracy: float = 1e-9,
    flow: bool = True,
    shorten: bool = True,
) -> Solution:
    """Solve ``c_k(v) = target_k`` for v of (locally) least norm.

    Args:
        equations: the systems.
        target: right-hand sides, (K, m).
        start: where the search starts, (K, P).
        scale: what residuals are a share of, (K,).
        accuracy: the share at which a system counts as solved.
        flow: whether to begin with stage 1; without it, a start that solves its system stays near.
        shorten: whether to do stage 2.
    """
    v = start
    for left in range(FLOW if flow else 0, 0, -1):
        r, J = _missing(equations, target, v)
        v = v + _step(J, r / left, torch.full_like(scale, _FLOW_DAMPING))
    state = v, *_missing(equations, target, v)
    if shorten:
        state = _towards(equations, target, state, scale)
    state = _reach(equations, target, state, scale, accuracy)
    end = _Point.of(*state, scale)
    return Solution(end.v, end.residual, end.along, end.rank, end.residual <= accuracy)


# Points (K, P), what is missing there (K, m), and the gradients (K, m, P): what one evaluation
# gives, handed on, since an evaluation is what all of this costs.
_State = tuple[Tensor, Tensor, Tensor]


def _put(ends: _State, places: Tensor, state: _State) -> None:
    """Write the state of some systems into that of all."""
    for end, value in zip(ends, state, strict=True):
        end[places] = value


def _either(first: Tensor, state: _State, other: _State) -> _State:
    """The first state where a system is in ``first``, the other elsewhere."""
    v, r, J = zip(state, other, strict=True)
    rows = first[:, None]
    return torch.where(rows, *v), torch.where(rows, *r), torch.where(rows[..., None], *J)


def _towards(equations: Equations, target: Tensor, state: _State, scale: Tensor) -> _State:
    """Steps towards the equations and, along their solution set, towards 0.

    One is taken if ``|v|^2 / 2 + penalty |c - target|`` falls: with a penalty above the
    multipliers, its least value is a shortest solution.
    """
    v, r, J = state
    ends, places = (v.clone(), r.clone(), J.clone()), torch.arange(len(v), device=v.device)
    length, penalty = torch.full_like(scale, 0.5), torch.zeros_like(scale)
    point = _Point.of(*state, scale)
    for _ in range(TOWARDS):
        left = (point.along > _SHORTEST) & (length > _LEAST_LENGTH)
        if not left.any():
            break
        if 2 * int(left.sum()) <= len(places):  # those that are done cost as much as the others
            _put(ends, places, (point.v, point.r, J))
            places, length, penalty = places[left], length[left], penalty[left]
            target, scale, point, J = target[left], scale[left], point.at(left), J[left]
            equations, left = equations.of(left.nonzero()[:, 0]), left[left]
        trial = point.v + point.normal + length[:, None] * point.tangent
        new_r, new_J = _missing(equations, target, trial)
        new = _Point.of(trial, new_r, new_J, scale)
        penalty = torch.maximum(penalty, 2 * point.multiplier)
        falls = left & (new.merit(penalty) <= point.merit(penalty))
        length = torch.where(falls, (2 * length).clamp_max(1), length / 2)
        point, J = new.where(falls, point), torch.where(falls[:, None, None], new_J, J)
    _put(ends, places, (point.v, point.r, J))
    return ends


def _reach(
    equations: Equations, target: Tensor, state: _State, scale: Tensor, accuracy: float
) -> _State:
    """Levenberg and Marquardt's steps until the equations hold, or come no nearer."""
    v, r, J = state
    ends, places = (v.clone(), r.clone(), J.clone()), torch.arange(len(v), device=v.device)
    damping = torch.full_like(scale, _FIRST_DAMPING)
    earlier = r.norm(dim=1)
    for step in range(STEPS):
        if step and step % _PATIENCE == 0:  # those that hardly came nearer are given up
            now = r.norm(dim=1)
            damping = torch.where(now > _NEARER * earlier, torch.inf, damping)
            earlier = now
        left = (r.norm(dim=1) > accuracy * scale) & (damping <= _MOST_DAMPING)
        if not left.any():
            break
        if 2 * int(left.sum()) <= len(places):
            _put(ends, places, (v, r, J))
            places, v, r, J = places[left], v[left], r[left], J[left]
            target, scale, damping = target[left], scale[left], damping[left]
            earlier = earlier[left]
            equations, left = equations.of(left.nonzero()[:, 0]), left[left]
        trial = v + _step(J, r, damping.clamp_max(_MOST_DAMPING))
        new_r, new_J = _missing(equations, target, trial)
        ratio = new_r.norm(dim=1) / r.norm(dim=1).clamp_min(_TINY)
        falls = left & (ratio < 1)
        lower = torch.where(ratio < 0.25, damping / 20, damping / 3).clamp_min(_LEAST_DAMPING)
        damping = torch.where(falls, lower, torch.where(left, 8 * damping, damping))
        v, r, J = _either(falls, (trial, new_r, new_J), (v, r, J))
    _put(ends, places, (v, r, J))
    return ends


def _missing(equations: Equations, target: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """``target - c(v)`` and the gradients; infinity and none where they overflow: no step stays."""
    c, J = equations(v)
    finite = c.isfinite().all(1) & J.isfinite().flatten(1).all(1)
    r = torch.where(finite[:, None], target - c, torch.inf)
    return r, torch.where(finite[:, None, None], J, 0)


def _step(J: Tensor, r: Tensor, damping: Tensor) -> Tensor:
    """``J^T (J J^T + damping tr/m)^-1 r``, (K, P)."""
    gram = (J @ J.mT).double()
    mean = gram.diagonal(dim1=1, dim2=2).mean(1)
    mean = torch.where(mean > 0, mean, 1)
    unit = torch.eye(gram.shape[1], dtype=gram.dtype, device=gram.device)
    factor, failed = torch.linalg.cholesky_ex(gram + (damping * mean)[:, None, None] * unit)
    if bool(failed.any()):  # gradients that depend on each other, to rounding
        more = (damping + torch.finfo(J.dtype).eps) * mean
        factor, _ = torch.linalg.cholesky_ex(gram + more[:, None, None] * unit)
    return _back(J, torch.cholesky_solve(r.unsqueeze(-1), factor)).nan_to_num(0, 0, 0)


def _back(J: Tensor, rows: Tensor) -> Tensor:
    """``J^T rows``, (K, P), in float64."""
    return (J.mT @ rows.to(J.dtype).view(*J.shape[:2], 1)).squeeze(-1).double()


@dataclass(frozen=True)
class _Point:
    """A point of every system, and where the next step goes."""

    v: Tensor  # (K, P)
    r: Tensor  # (K, m), target - c(v)
    residual: Tensor  # (K,)
    normal: Tensor  # (K, P), the least step after which the equations hold to first order
    tangent: Tensor  # (K, P), minus what v has along the solution set
    multiplier: Tensor  # (K,), the norm of the Lagrange multipliers
    along: Tensor  # (K,)
    rank: Tensor  # (K,)

    @classmethod
    def of(cls, v: Tensor, r: Tensor, J: Tensor, scale: Tensor) -> "_Point":
        squares, U = torch.linalg.eigh((J @ J.mT).double())
        flat = squares.shape[1] * torch.finfo(J.dtype).eps
        used = squares > flat * squares.amax(1, keepdim=True).clamp_min(_TINY)
        inverse = torch.where(used, 1 / torch.where(used, squares, 1), 0)

        def solved(b: Tensor) -> Tensor:
            return (U @ (inverse.unsqueeze(-1) * (U.mT @ b.unsqueeze(-1)))).squeeze(-1)

        multipliers = solved((J @ v.to(J.dtype).unsqueeze(-1)).squeeze(-1).double())
        tangent = _back(J, multipliers) - v
        return cls(
            v=v,
            r=r,
            residual=r.norm(dim=1) / scale,
            normal=_back(J, solved(r)).nan_to_num(0, 0, 0),
            tangent=tangent,
            multiplier=multipliers.norm(dim=1),
            along=tangent.norm(dim=1) / v.norm(dim=1).clamp_min(_TINY),
            rank=used.sum(1),
        )

    def merit(self, penalty: Tensor) -> Tensor:
        return self.v.square().sum(1) / 2 + penalty * self.r.norm(dim=1)

    def at(self, places: Tensor) -> "_Point":
        return _Point(**{name: value[places] for name, value in vars(self).items()})

    def where(self, taken: Tensor, other: "_Point") -> "_Point":
        def chosen(mine: Tensor, its: Tensor) -> Tensor:
            return torch.where(taken.view(-1, *[1] * (mine.ndim - 1)), mine, its)

        return _Point(
            **{name: chosen(value, getattr(other, name)) for name, value in vars(self).items()}
        )
