"""Which measures can be fooled: the same function with other weights, measured again."""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Literal

from lowland.errors import InputError
from lowland.measures.measuring import Measurement, measure
from lowland.measures.registry import chosen_measures, registered
from lowland.problem import Problem, of_a_problem
from lowland.rescaling import By, rescale
from lowland.usercode import described

FACTOR = 1e3
WAYS: tuple[By, ...] = ("layers", "units", "norms", "split", "outputs")
# A sampled value has moved if it did by more than so many standard errors of the difference,
_ERRORS = 4
# and is the same if these are less than this share of it: a move by half would have been seen.
_SEEN = 0.5


@dataclass(frozen=True)
class Move:
    """What one transformation did to one measure."""

    before: float | None
    after: float | None
    verdict: Literal["moved", "same", "unknown"]
    claimed: bool  # whether the measure's own metadata says that it must not move
    reason: str | None  # why the verdict is unknown

    @property
    def moved(self) -> bool:
        """Whether the measure changed by more than its errors explain."""
        return self.verdict == "moved"

    @property
    def ratio(self) -> float | None:
        """After over before; None where either is missing or the first is zero."""
        if self.before is None or self.after is None or self.before == 0:
            return None
        return self.after / self.before


@dataclass(frozen=True)
class Stress:
    """How every measure took every transformation."""

    factor: float
    moves: dict[str, dict[str, Move]]  # by measure, by transformation
    skipped: dict[str, str]  # transformations that the model does not allow, and why

    def __repr__(self) -> str:
        """Which measures moved by which transformation, a line each."""
        ways = list(next(iter(self.moves.values()), {}))
        lines = [
            f"{by}: {', '.join(moved) or 'none'}"
            for by in ways
            for moved in [[name for name, row in self.moves.items() if row[by].moved]]
        ]
        head = f"Stress of {len(self.moves)} measures by a factor of {self.factor:g}; moved by"
        return "\n  ".join([head, *lines, *(f"{by}: {why}" for by, why in self.skipped.items())])

    def to_dict(self) -> dict[str, Any]:
        """Everything, ready for JSON."""
        moves = {
            name: {
                by: {**asdict(move), "moved": move.moved, "ratio": move.ratio}
                for by, move in row.items()
            }
            for name, row in self.moves.items()
        }
        return {"factor": self.factor, "moves": moves, "skipped": self.skipped}

    def broken(self) -> list[tuple[str, str]]:
        """Measures that moved under a transformation that they claim to be invariant to."""
        return [
            (name, by)
            for name, row in self.moves.items()
            for by, move in row.items()
            if move.moved and move.claimed
        ]


@of_a_problem
def stress(
    problem: Problem,
    names: list[str] | str | None = None,
    *,
    factor: float = FACTOR,
    progress: Callable[[str], None] = lambda stage: None,
) -> Stress:
    """Rescale the model without a change of its function, and see which measures move.

    Args:
        problem: the model and data; see :func:`lowland.rescale` for the transformations.
        names: of measures; by default all that need no training.
        factor: weights are multiplied and divided by up to this.
        progress: called with the name of each stage as it begins.
    """
    progress("measures of the model as it is")
    before = measure(problem, list(chosen_measures(names))).whole()
    moves: dict[str, dict[str, Move]] = {name: {} for name in before}
    skipped: dict[str, str] = {}
    for by in WAYS:
        progress(f"measures after rescaling by {by}")
        try:
            # a split moves most into equal halves, as in the paper's example
            other = rescale(problem, by, 2.0 if by == "split" else factor)
        except Exception as error:  # of the user's code, or a defect of ours: the others stand
            why = str(error) if isinstance(error, InputError) else f"failed: {described(error)}"
            skipped[by] = why
            continue
        after = measure(other, list(before)).whole()
        for name in before:
            moves[name][by] = _move(before[name], after[name], by)
    return Stress(factor, moves, skipped)


def _move(before: Measurement, after: Measurement, by: str) -> Move:
    claimed = by in registered()[before.measure.name].invariant
    numbers = before.value, after.value
    if before.value is None or after.value is None:
        return Move(*numbers, "unknown", claimed, before.reason or after.reason)
    # The error of an outcome is that of other test data; these are the same on both sides.
    sampled = before.measure.family not in ("outcome", "duality")
    noise = _ERRORS * math.hypot(before.stderr or 0, after.stderr or 0) if sampled else 0.0
    if abs(after.value - before.value) > max(0.01 * abs(before.value), noise):
        return Move(*numbers, "moved", claimed, None)
    if noise > _SEEN * abs(before.value):
        reason = f"known too little to say: a move by less than {noise:.2g} would not be seen"
        return Move(*numbers, "unknown", claimed, reason)
    return Move(*numbers, "same", claimed, None)
