"""Dual shifts of the output level: the change of weights that gives one sample another's outputs.

For a pair (x, x') and a layer's weight W it is the dW of least norm with

    f(W + dW, x) = f(W, x')      in all that the loss can see of the outputs f,

C - 1 equations for C class scores. A layer that all data passes through has the activity-level dual
as one solution; others have solutions wherever their outputs reach the network's.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lowland.batches import Batch
from lowland.curvature import Layer, outputs_of_a_sample, samples_within
from lowland.dual.injection import CannotShift, Shifted
from lowland.dual.least_norm import Equations, Solution, least_norm
from lowland.dual.matching import MATCHED, Matching
from lowland.dual.own_weights import OwnWeights
from lowland.dual.pairing import Pairs
from lowland.dual.replay import losses_at_own, shaped
from lowland.dual.shifts import Search, Shifts, joined
from lowland.problem import Problem

# Starts for pairs that were not solved from 0, as shares of the activity-level dual's norm.
_STARTS = (0.3, 0.6, 1.0)
# A layer through which fewer pairs are solved from 0 hardly reaches the outputs: other starts,
# which take as long each, would not make it one to trust.
_REACHABLE = 0.5
# Pairs that are solved again from random starts of half their solution's norm, and how often.
AGAIN, AGAIN_STARTS, _AGAIN_NORM = 16, 3, 0.5
# An activity-level dual that misses the outputs by less is a start that nearly solves.
_NEAR = 1e-3


def accuracy(dtype: torch.dtype) -> float:
    """The share of a pair's change of outputs to which it is solved."""
    return 1e-9 if dtype == torch.float64 else 1e-4


@dataclass(frozen=True)
class _Chunk:
    """Some pairs: the training samples, with the test samples' targets and what these matched."""

    places: Tensor
    batch: Batch
    target: Tensor  # (k, m)
    matching: Matching
    outputs: int


def output_shifts(
    problem: Problem,
    chosen: Sequence[Layer],
    pairs: Pairs,
    activity: Shifts | None,
    *,
    matched: int = MATCHED,
    seed: int = 0,
    progress: Callable[[str], None] = lambda stage: None,
) -> dict[str, Shifts]:
    """The output-level dual shifts of all pairs: of one layer, or one shift of several together.

    Args:
        problem: the model and data.
        chosen: the layers whose weights are shifted.
        pairs: of training and test samples.
        activity: the activity-level dual shifts, as starts; None where there are none.
        matched: how many numbers of a sample's outputs are matched; of more, as many random
            combinations of them.
        seed: of the random starts.
        progress: called with a text for each chunk of pairs.
    """
    generator = torch.Generator().manual_seed(seed)
    some = torch.linspace(0, len(pairs) - 1, min(AGAIN, len(pairs))).round().long()
    parts: list[list[Shifts]] = []  # for each chunk, those of each layer
    again: list[list[list[Shifts]]] = []  # for each chunk and each start
    along: list[Tensor] = []
    with problem.measuring():
        size = samples_within(problem, pair_bytes(problem, chosen, matched))
        for chunk in _chunks(problem, pairs, size, matched):
            names = ", ".join(repr(layer.name) for layer in chosen)
            first = int(chunk.places[0]) + 1
            progress(f"output-level dual of layer {names}: pair {first:,} of {len(pairs):,}")
            own = None if activity is None else activity.where(chunk.places.to(problem.device))
            solver = _Solver(problem, chosen, chunk, own, generator)
            solution = solver.solve()
            parts.append(solver.shifts(solution))
            along.append(solution.along)
            here = torch.isin(chunk.places, some).nonzero()[:, 0]
            if len(here):
                again.append(solver.again(solution, here))
    shifts = {}
    for i, layer in enumerate(chosen):
        starts = [joined([part[i] for part in each]) for each in zip(*again, strict=True)]
        search = Search(chunk.target.shape[1], chunk.outputs, torch.cat(along), starts, some)
        shifts[layer.name] = replace(joined([part[i] for part in parts]), search=search)
    return shifts


def pair_bytes(problem: Problem, chosen: Sequence[Layer], matched: int) -> int:
    """How many bytes one pair takes while its shift is sought."""
    m = min(matched, outputs_of_a_sample(problem))
    numbers = 0
    for layer in chosen:
        groups, out, inputs = layer.shape
        whole = layer.in_series or len(chosen) > 1
        free = groups * out * (inputs if whole else min(layer.positions, inputs))
        numbers += 5 * m * free + layer.positions * groups * (2 * inputs + 4 * out)
        numbers += 16 * free + 4 * groups * out * inputs  # in float64
    return problem.dtype.itemsize * numbers


def _chunks(problem: Problem, pairs: Pairs, size: int, matched: int) -> Iterator[_Chunk]:
    for places in torch.arange(len(pairs)).split(size):
        old = problem.place(problem.train.take(pairs.train[places]))
        new = problem.place(problem.test.take(pairs.test[places]))
        with torch.no_grad():
            z = problem.outputs(new.inputs)
            outputs = problem.loss.seen(z, new.targets).shape[1]
            matching = Matching.within(problem.loss, z, new.targets, matched)
            target = matching(z).double()
        yield _Chunk(places, Batch(old.inputs, new.targets), target, matching, outputs)


def _equations(problem: Problem, chosen: Sequence[Layer], chunk: _Chunk) -> Shifted | OwnWeights:
    """The equations of a chunk: by what is added to a layer's outputs, where that can be done."""
    if len(chosen) == 1:
        try:
            return Shifted(problem, chosen[0], chunk.batch, chunk.matching)
        except CannotShift:  # used in series, or copied before it is used
            pass
    return OwnWeights(problem, chosen, chunk.batch, chunk.matching)


class _Solver:
    """The shifts of one layer, or of several together, for one chunk of pairs."""

    def __init__(
        self,
        problem: Problem,
        chosen: Sequence[Layer],
        chunk: _Chunk,
        activity: Shifts | None,
        generator: torch.Generator,
    ) -> None:
        self.problem, self.chosen, self.chunk = problem, chosen, chunk
        self.activity, self.generator = activity, generator
        self.accuracy = accuracy(problem.dtype)
        self.equations = _equations(problem, chosen, chunk)
        self.size = self.equations.size
        self.base = chunk.matching(self.equations.outputs).detach().double()  # c(0)
        # What rounding makes of outputs that are equal is no change.
        change, whole = (chunk.target - self.base).norm(dim=1), chunk.target.norm(dim=1)
        self.same = change <= 4 * torch.finfo(problem.dtype).eps * whole
        self.scale = torch.where(self.same, 1, change)

    def solve(self) -> Solution:
        """The shortest solutions that were found, from 0 and where that fails from other starts."""
        zero = self.scale.new_zeros(len(self.scale), self.size)
        target = torch.where(self.same[:, None], self.base, self.chunk.target)
        solution = least_norm(self.equations, target, zero, self.scale, accuracy=self.accuracy)
        solution = self._from(solution, zero, shorten=False)
        norms = self._activity_norms()
        for share in _STARTS if solution.solved.double().mean() >= _REACHABLE else ():
            solution = self._from(solution, self._random(share * norms))
        if self.activity is not None:
            solution = self._from_activity(solution)
        farther = ~(solution.residual < 1)  # than without any shift, or not finite
        return replace(
            solution,
            v=torch.where(farther[:, None], 0, solution.v),
            residual=torch.where(farther, 1, solution.residual),
        )

    def _from(self, solution: Solution, start: Tensor, *, shorten: bool = True) -> Solution:
        """With what was not solved tried once more."""
        left = (~solution.solved).nonzero()[:, 0]
        if not len(left):
            return solution
        return solution.or_better(self._least(left, start[left], shorten=shorten), left)

    def _from_activity(self, solution: Solution) -> Solution:
        """With the activity-level dual, shortened, where that solves and nothing shorter does."""
        assert self.activity is not None
        shorter = self.activity.size.sqrt() < solution.v.norm(dim=1)
        near = (self.activity.residual < _NEAR) & (self.activity.size > 0)
        left = (near & (shorter | ~solution.solved)).nonzero()[:, 0]
        if not len(left):
            return solution
        start = self._free(next(self.activity.where(left).written_out(len(left))), left)
        for shorten in (True, False):
            retried = self._least(left, start, flow=False, shorten=shorten)
            solution = solution.or_better(retried, left)
        return solution

    def again(self, solution: Solution, places: Tensor) -> list[list[Shifts]]:
        """The shifts of some pairs from random starts; the first ones where a start fails."""
        norms = _AGAIN_NORM * solution.v.norm(dim=1)
        start = torch.cat([self._random(norms)[places] for _ in range(AGAIN_STARTS)])
        # Starts go together, as few pairs do not keep a processor busy, within a chunk's memory.
        every = places.repeat(AGAIN_STARTS)
        parts = torch.arange(len(every)).split(len(self.scale))
        others = [self._least(every[part], start[part]) for part in parts]
        v, solved = (
            torch.cat([getattr(other, name) for other in others]) for name in ("v", "solved")
        )
        few, some = solution.at(places), []
        for each, its in zip(v.split(len(places)), solved.split(len(places)), strict=True):
            usable = (its & few.solved)[:, None]
            some.append(self.shifts(replace(few, v=torch.where(usable, each, few.v)), places))
        return some

    def _least(self, places: Tensor, start: Tensor, **options: bool) -> Solution:
        """The solutions of some pairs from these starts."""
        return least_norm(
            self._of(places),
            self.chunk.target[places],
            start,
            self.scale[places],
            accuracy=self.accuracy,
            **options,
        )

    def shifts(self, solution: Solution, places: Tensor | None = None) -> list[Shifts]:
        """The solutions as shifts, with the losses of the model that they are put into."""
        problem = self.problem
        every = torch.arange(len(self.scale)) if places is None else places
        batch = self.chunk.batch.map(lambda t: t[every.to(t.device)])
        factors = self._factors(solution.v, every)
        moved = {}
        for layer, (left, right) in zip(self.chosen, factors, strict=True):
            W = layer.matrix(problem.params[layer.parameter].double().flatten())
            dW = left if right is None else left @ right
            moved[layer.parameter] = shaped(problem, layer, (W + dW).flatten(1))
        with torch.no_grad():
            dual_loss = losses_at_own(problem, batch, moved).double()
        return [
            Shifts(
                layer=layer,
                dual="output",
                left=left,
                right=right,
                size=_square(left) if right is None or len(factors) > 1 else _square(solution.v),
                whole=_square(solution.v),
                residual=solution.residual,
                solved=solution.solved,
                rank=solution.rank,
                full_rank=min(self.chunk.target.shape[1], self.size),
                positions=layer.positions,
                cut=0.0,
                dual_loss=dual_loss,
                dead=self._dead(every),
                same=self.same[every],
            )
            for layer, (left, right) in zip(self.chosen, factors, strict=True)
        ]

    def _factors(self, v: Tensor, places: Tensor) -> list[tuple[Tensor, Tensor | None]]:
        """The shift of each layer in its matrices' order, or two factors if these are smaller."""
        if isinstance(self.equations, OwnWeights):
            parts = zip(self.chosen, v.split(self.equations.sizes, dim=1), strict=True)
            return [(layer.matrix(part.T).movedim(-1, 0), None) for layer, part in parts]
        _, out, inputs = self.chosen[0].shape
        left = v.unflatten(1, self.equations.shape)
        right = self.equations.Q[places].mT  # (k, G, r, in)
        if right.shape[2] * (out + inputs) > out * inputs:
            return [(left @ right, None)]
        return [(left, right)]

    def _dead(self, places: Tensor) -> Tensor:
        """Whether the layer sees nothing but zeros, (k,)."""
        if isinstance(self.equations, OwnWeights):
            return torch.zeros_like(self.same[places])
        return torch.stack([(x[places] == 0).flatten(1).all(1) for x in self.equations.x]).all(0)

    def _of(self, places: Tensor) -> Equations:
        return self.equations.of(places)

    def _activity_norms(self) -> Tensor:
        """The norm of each activity-level dual; the weight's own where there is none."""
        weights = [self.problem.params[layer.parameter].double() for layer in self.chosen]
        own = torch.stack([weight.norm() for weight in weights]).norm()
        if self.activity is None:
            return own.expand(len(self.scale))
        norms = self.activity.size.sqrt()
        return torch.where(norms > 0, norms, own)

    def _random(self, norms: Tensor) -> Tensor:
        """Gaussian shifts of these norms, (k, P)."""
        drawn = torch.randn(len(norms), self.size, generator=self.generator, dtype=torch.float64)
        drawn = drawn.to(norms.device)
        return drawn * (norms / drawn.norm(dim=1)).unsqueeze(1)

    def _free(self, dW: Tensor, places: Tensor) -> Tensor:
        """Shifts (k, M), in the order of the layer's matrices, as V (k, P)."""
        assert isinstance(self.equations, Shifted)
        W = dW.unflatten(1, self.chosen[0].shape)
        return (W @ self.equations.Q[places]).flatten(1)


def _square(t: Tensor) -> Tensor:
    return t.flatten(1).square().sum(1)
