"""Losses and errors at many points of weight space, with as little work for each as will do.

A forward pass is recorded (see :mod:`lowland.landscape.recording`) and played back for many points
together, or for convolutions one by one with fused operations. Played back it must give, on every
batch, what the model itself gives; where it does not, or cannot be recorded, the model runs in a
plain loop. The values are the same up to rounding.
"""

from collections.abc import Callable, Iterator
from functools import cached_property

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap
from torch.utils import _pytree as pytree

from lowland.batches import Batch
from lowland.distributed import ranks
from lowland.errors import InputError
from lowland.landscape.fusing import fuse
from lowland.landscape.points import Frame, Values, Weights
from lowland.landscape.recording import Parts, Recording
from lowland.landscape.threads import side_by_side, threads_kept
from lowland.landscape.transposing import POINTWISE, transpose
from lowland.problem import Problem, differentiating

# Numbers of the widest activity that are in flight at once, for the cache: for many points together
# 4 MiB of float32.
_TOGETHER, _ALONE = 1 << 20, 1 << 20
_MOST_SAMPLES = 4096
_RECORDINGS = 4  # of batches of different shapes; beyond that the model runs by itself
_TOLERANCE = {torch.float32: 2e-4, torch.float64: 1e-8}  # of outputs, as a share of the largest
_ATEN = torch.ops.aten
# Operations that vmap does for many points at once in little more than the time of one.
_BATCHED = {
    *(_ATEN.t.default, _ATEN.mm.default, _ATEN.addmm.default, _ATEN.bmm.default),
    *POINTWISE,
    *(_ATEN.add.Tensor, _ATEN.sub.Tensor, _ATEN.mul.Tensor, _ATEN.div.Tensor, _ATEN.neg.default),
    *(_ATEN.view.default, _ATEN._unsafe_view.default, _ATEN.expand.default, _ATEN.clone.default),
    *(_ATEN.permute.default, _ATEN.transpose.int, _ATEN.unsqueeze.default, _ATEN.detach.default),
    _ATEN.contiguous.default,
    *(_ATEN._softmax.default, _ATEN._log_softmax.default, _ATEN.mean.dim, _ATEN.sum.dim_IntList),
    *(_ATEN.add.Scalar, _ATEN.mul.Scalar, _ATEN.div.Scalar, _ATEN.pow.Tensor_Scalar),
    *(_ATEN.clamp.default, _ATEN.exp.default, _ATEN.select.int),
}

Progress = Callable[[float], None]  # called with the share that is done


class Evaluator:
    """Mean loss and error of each split at a frame's points.

    ``recorded=False`` runs the model itself, for a few points or as the oracle.
    """

    def __init__(
        self, problem: Problem, frame: Frame, *, test: bool = True, recorded: bool = True
    ) -> None:
        check_measurable(problem)
        self.problem = problem
        self.splits = ["train", "test"] if test and problem.has_test else ["train"]
        self._players = _Players(problem, frame, recorded)

    @property
    def route(self) -> str:
        """How the points were evaluated, in words."""
        return self._players.route

    @differentiating()
    def values(self, coefficients: np.ndarray, progress: Progress | None = None) -> Values:
        """Values at points of these coefficients (points, k).

        A point whose loss is not finite is a hole: NaN, its error as well.
        """
        problem, players = self.problem, self._players
        every = torch.as_tensor(np.asarray(coefficients, dtype=np.float64))
        counts = {split: len(problem.data(split)) for split in self.splits}
        sums = {split: torch.zeros(2, len(every), dtype=torch.float64) for split in self.splits}
        total, done = len(every) * sum(counts.values()), 0
        with problem.measuring(), torch.no_grad(), threads_kept():
            errors = _has_errors(problem)
            start = 0
            for c in every.split(players.points):
                for split in self.splits:
                    here = sums[split][:, start : start + len(c)]
                    for number, batch in enumerate(problem.batches(split, players.samples)):
                        place = split, number
                        for where, losses, wrong in players.play(batch, place, c, errors):
                            here[0, where] += losses
                            if wrong is not None:
                                here[1, where] += wrong
                            if progress is not None:
                                progress((done + len(batch) * where.stop) / total)
                        done += len(batch) * len(c)
                start += len(c)
        means = {split: _means(sums[split], counts[split], errors) for split in self.splits}
        train, test = means["train"], means.get("test", (None, None))
        return Values(train[0], test[0], train[1], test[1])


def evaluate(
    problem: Problem, frame: Frame, coefficients: np.ndarray, *, recorded: bool = True
) -> Values:
    """Values at points of a frame (see :class:`Evaluator`)."""
    return Evaluator(problem, frame, recorded=recorded).values(coefficients)


def own_values(problem: Problem, state: Weights) -> Values:
    """Values at one point of weight space, by the model itself."""
    return evaluate(problem, Frame(state, ()), np.zeros((1, 0)), recorded=False)


def check_measurable(problem: Problem) -> None:
    """An error where weights cannot be replaced as a whole, or data lies with several processes."""
    problem.check_whole()
    if ranks() > 1:
        raise InputError("a landscape is drawn by one process, from all of the data")
    if problem.stored is not None:
        raise InputError(
            "a landscape needs directions as large as the model in its measured precision, for "
            "which the memory budget is too small; pass Problem(memory=...) with more bytes"
        )


def _has_errors(problem: Problem) -> bool:
    loss = problem.loss
    return not loss.needs_model and loss.has_errors(problem.first(1).targets)


def _means(sums: Tensor, count: int, errors: bool) -> tuple[np.ndarray, np.ndarray | None]:
    losses, wrong = (sums / count).numpy()
    hole = ~np.isfinite(losses)
    losses, wrong = np.where(hole, np.nan, losses), np.where(hole, np.nan, wrong)
    return losses, wrong if errors else None


class _Players:
    """The ways to run batches: a recording for each shape of batch, or the model itself."""

    def __init__(self, problem: Problem, frame: Frame, recorded: bool) -> None:
        self.problem, self.frame = problem, frame
        self._by_shape: dict[tuple, _Player | None] = {}
        self._refused = problem.loss.needs_model or not recorded
        self._routes: set[str] = set()
        self._agreed: set[tuple[str, int]] = set()  # batches on which the recording was confirmed

    @property
    def route(self) -> str:
        """In words."""
        return " and ".join(sorted(self._routes))

    @cached_property
    def _tried(self) -> "_Player | None":
        """A recording of two samples."""
        return None if self._refused else self._recorded(self.problem.first(2))

    @cached_property
    def samples(self) -> int:
        """How many samples to take at once, by what a recording of two has in flight."""
        player = self._tried
        if player is None:
            return 256
        each = max(1, player.parts.widest // len(self.problem.first(2)))
        limit = _TOGETHER if player.together else _ALONE
        return int(min(_MOST_SAMPLES, max(16, limit // each)))

    @cached_property
    def points(self) -> int:
        """How many points to go through all data with: as many as have room for their weights."""
        each = sum(self.frame.centre[name].nbytes for name in self.frame.names)
        return int(max(64, self.problem.memory // 16 // max(each, 1)))

    def play(
        self, batch: Batch, place: tuple[str, int], c: Tensor, errors: bool
    ) -> Iterator[tuple[slice, Tensor, Tensor | None]]:
        """Sums over the batch of losses and errors, for one range of points after the other.

        ``place`` is the batch's split and number.
        """
        player = None if self._refused else self._of(batch)
        if player is not None and self._agrees(player, batch, place, c):
            self._routes.add(player.route)
            yield from self._scores(player.play(batch, c), batch, errors)
            return
        self._routes.add("the model itself, point by point")
        yield from self._plainly(batch, c, errors)

    def _of(self, batch: Batch) -> "_Player | None":
        key = tuple((t.shape, t.dtype) for t in pytree.tree_leaves(batch.inputs))
        if key not in self._by_shape:
            full = len(self._by_shape) >= _RECORDINGS
            self._by_shape[key] = None if full else self._recorded(batch)
        return self._by_shape[key]

    def _recorded(self, batch: Batch) -> "_Player | None":
        try:
            return _Player(self.problem, self.frame, batch)
        except InputError:
            raise
        except Exception:  # a model that decides by its data, or an operation without a recording
            return None

    def _agrees(self, player: "_Player", batch: Batch, place: tuple[str, int], c: Tensor) -> bool:
        """Whether it gives what the model does on this batch, at one of the points."""
        if place in self._agreed:
            return True
        point = c[len(c) // 2].unsqueeze(0)
        try:
            ((_, played),) = player.play(batch, point)
        except Exception:  # whatever a rewritten graph may raise, the model itself will do
            return False
        expected = self.problem.outputs(batch.inputs, self.frame.point(point[0].tolist()))
        finite = bool(expected.isfinite().all())
        scale = expected[expected.isfinite()].abs().max().item() if finite else 1.0
        close = _TOLERANCE.get(expected.dtype, 1e-2)
        agrees = torch.allclose(played[0], expected, close, close * scale, equal_nan=True)
        if agrees and finite:  # where it overflows nothing is confirmed for other points
            self._agreed.add(place)
        return agrees

    def _scores(
        self, played: Iterator[tuple[slice, Tensor]], batch: Batch, errors: bool
    ) -> Iterator[tuple[slice, Tensor, Tensor | None]]:
        loss = self.problem.loss
        for where, outputs in played:  # (points, samples, ...)
            losses, wrong = loss.totals(outputs, batch.targets, errors)
            yield where, losses.cpu(), None if wrong is None else wrong.cpu()

    def _plainly(
        self, batch: Batch, c: Tensor, errors: bool
    ) -> Iterator[tuple[slice, Tensor, Tensor | None]]:
        problem = self.problem
        for i, x in enumerate(c.tolist()):
            params = self.frame.point(x)
            wrong = None
            if problem.loss.needs_model:
                losses = problem.batch_losses(batch, params)
            else:
                outputs = problem.outputs(batch.inputs, params)
                losses = problem.loss(outputs, batch.targets)
                if errors:
                    wrong = problem.loss.wrong(outputs, batch.targets).sum().cpu().view(1)
            yield slice(i, i + 1), losses.double().sum().cpu().view(1), wrong


class _Player:
    """A recorded forward pass that is played back at the points of a frame."""

    def __init__(self, problem: Problem, frame: Frame, batch: Batch) -> None:
        self.frame, self.memory = frame, problem.memory
        weights = {name: frame.centre[name] for name in frame.names}
        recording = Recording(problem, batch, weights)
        if any("convolution" in str(operation) for operation in recording.operations):
            fuse(recording)
        else:
            transpose(recording)
        self.together = recording.operations <= _BATCHED
        self.parts: Parts = recording.parts()
        self.names = recording.names
        self._of_weights: dict[int, list[Tensor]] = {}  # by point, of the points that are played
        self._played: Tensor | None = None

    @property
    def route(self) -> str:
        """In words."""
        how = "many points at once" if self.together else "point by point"
        return f"a recorded forward pass, {how}"

    def play(self, batch: Batch, c: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """Outputs (points, samples, ...) for one range of points after the other."""
        parts, frame = self.parts, self.frame
        data = pytree.tree_leaves(batch.inputs)
        of_data = parts.of_data(data)
        bases = [[frame.centre[name] for name in self.names]]
        for direction in frame.directions:
            zeros = (torch.zeros_like(frame.centre[n]) for n in self.names)
            bases.append(
                [direction[n].to(z) if n in direction else z
                 for n, z in zip(self.names, zeros, strict=True)]
            )  # fmt: skip
        linear = [parts.linear(weights, data) for weights in bases]  # at centre and directions

        def outputs(where: slice) -> Tensor:
            some = c[where]
            lines = [_combined(values, some) for values in zip(*linear, strict=True)]
            if self.together:
                return self._many(self._weights(some), of_data, lines, len(some))
            # Once for all batches: folding weights is many short operations.
            of_weights = kept.get(where.start)
            if of_weights is None:
                alone = [w[0] if w.numel() else w for w in self._weights(some)]
                of_weights = kept[where.start] = parts.of_weights(alone)
            (found,) = parts.rest(of_weights, of_data, [value[0] for value in lines])
            return found.unsqueeze(0)

        kept: dict[int, list[Tensor]] = {}
        if len(c) > 1:  # one point alone is played to confirm the recording
            if self._played is not c:
                self._of_weights, self._played = {}, c
            kept = self._of_weights
        ranges = list(self._ranges(len(c)))
        if self.together or len(ranges) == 1:
            yield from ((where, outputs(where)) for where in ranges)
        else:
            yield from zip(ranges, side_by_side(outputs, ranges), strict=True)

    def _weights(self, c: Tensor) -> list[Tensor]:
        """The parameters that are read at points, (points, *shape); an empty one for the others."""
        weights: list[Tensor] = [torch.empty(0)] * len(self.names)
        for i in self.parts.read_weights:
            weights[i] = self.frame.stack(self.names[i], c)
        return weights

    def _many(
        self, weights: list[Tensor], of_data: list, lines: list[Tensor], count: int
    ) -> Tensor:
        parts, read = self.parts, self.parts.read_weights

        def one_point(chosen: list[Tensor], lines: list[Tensor]) -> Tensor:
            own = list(weights)
            for i, weight in zip(read, chosen, strict=True):
                own[i] = weight
            (outputs,) = parts.rest(parts.of_weights(own), of_data, lines)
            return outputs

        chosen = [weights[i] for i in read]
        if not chosen and not lines:  # the outputs do not depend on the weights
            outputs = one_point([], [])
            return outputs.expand(count, *outputs.shape)
        return vmap(one_point)(chosen, lines)

    def _ranges(self, count: int) -> Iterator[slice]:
        """Points that are done together, as the cache and the memory budget allow."""
        size = 1
        if self.together:
            params = sum(self.frame.centre[self.names[i]].numel() for i in self.parts.read_weights)
            each = max(1, self.parts.widest)
            size = max(1, min(_TOGETHER // each, self.memory // (32 * (each + params + 1))))
        for start in range(0, count, size):
            yield slice(start, min(start + size, count))


def _combined(values: tuple[Tensor, ...], c: Tensor) -> Tensor:
    """``F(w) + sum_k c_k F(d_k)`` at many points, (points, ...)."""
    centre, *along = values
    total = centre.expand(len(c), *centre.shape)
    for k, value in enumerate(along):
        column = c[:, k].to(value).view(-1, *[1] * value.ndim)
        total = torch.addcmul(total, column, value)
    return total
