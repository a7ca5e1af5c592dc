"""A number with its standard error and how it was got."""

import math
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Estimate:
    """A number found from products with a matrix.

    ``stderr`` is zero where the number is exact to rounding. ``samples`` counts the products with
    one vector. ``converged`` says that the standard error is within the tolerance asked for.
    ``parts`` holds the same number parameter by parameter, where the operator knows them.

    >>> Estimate(2.6923, 0.0213, 40, True, "XTrace")
    2.69 ± 0.02 (XTrace, 40 products)
    """

    value: float
    stderr: float
    samples: int
    converged: bool
    method: str
    parts: dict[str, "Estimate"] = field(default_factory=dict)

    def __repr__(self) -> str:
        state = "" if self.converged else ", NOT converged"
        shown = _with_error(self.value, self.stderr)
        return f"{shown} ({self.method}, {self.samples} products{state})"

    def to_dict(self) -> dict[str, Any]:
        """All fields as plain numbers and texts; ``parts`` as dictionaries of the same kind."""
        parts = {name: part.to_dict() for name, part in self.parts.items()}
        return {**vars(self), "parts": parts}


def _with_error(value: float, stderr: float) -> str:
    """Both numbers to the last digit that the error leaves meaning in."""
    if stderr == 0 or not math.isfinite(value):
        return f"{value:.6g}"
    if not math.isfinite(stderr):
        return f"{value:.3g} ± {stderr}"
    error = f"{stderr:.1g}"
    place = math.floor(math.log10(float(error)))  # of the error's leading digit
    digits = math.floor(math.log10(abs(value))) - place + 1 if value else 1
    if -4 <= place < 6:
        return f"{value:.{max(0, -place)}f} ± {float(error):.{max(0, -place)}f}"
    return f"{value:.{max(1, digits)}g} ± {error}"
