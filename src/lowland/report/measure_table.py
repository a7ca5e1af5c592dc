"""The table of measures: each with where it stands among reference models, and its invariances."""

from dataclasses import dataclass

from lowland.findings import MeasureRow, Results
from lowland.reference import Standing, Zoo, zoo

# The rescalings of the registry, with the letters that stand for them.
RESCALINGS = (
    ("layers", "L", "rescaling one layer against the next"),
    ("units", "U", "rescaling each hidden unit"),
    ("outputs", "O", "multiplying the outputs"),
)
# Those that leave the function as it is: a measure should not change with them.
SAME_FUNCTION = {"layers", "units"}


@dataclass(frozen=True)
class Sign:
    """Whether a rescaling leaves a measure as it is."""

    letter: str
    holds: bool
    words: str


@dataclass(frozen=True)
class MeasureView:
    """One measure as a row of the table."""

    row: MeasureRow
    standing: Standing | None
    marks: tuple[Sign, ...]
    invariant: bool  # whether no rescaling of the same function changes it


def measure_rows(results: Results) -> list[MeasureView]:
    """Every measure, in the order of the results."""
    ranked = zoo().comparable(results)
    return [
        MeasureView(
            row,
            ranked.standing(row) if isinstance(ranked, Zoo) else None,
            tuple(
                Sign(letter, name in row.invariant, _words(name in row.invariant, words))
                for name, letter, words in RESCALINGS
            ),
            set(row.invariant) >= SAME_FUNCTION,
        )
        for row in results.measures
    ]


def _words(holds: bool, words: str) -> str:
    return f"{'unchanged' if holds else 'changed'} by {words}"
