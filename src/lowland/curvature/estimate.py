"""A number with its standard error and how it was got."""

import math
from dataclasses import dataclass, field
from typing import Any

from scipy.special import stdtrit

_TWO_SIGMA = 0.97725  # of a normal distribution is below two standard deviations


@dataclass(frozen=True)
class Estimate:
    """A number found from products with a matrix.

    ``stderr`` is zero where the number is exact to rounding, and NaN where the products were too
    few to tell. ``samples`` counts the products with
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


def widened(samples: int) -> float:
    """Return by how much Student's distribution widens the spread of so many samples.

    Two such errors hold what two of a normal distribution do.
    """
    return float(stdtrit(samples - 1, _TWO_SIGMA)) / 2 if samples > 1 else 1.0


def _with_error(value: float, stderr: float) -> str:
    """Value and error as text, without the digits of the value that its error leaves unknown."""
    if math.isnan(stderr):
        return f"{value:.3g}, error unknown"
    if not math.isfinite(value) or stderr <= 1e-6 * abs(value):
        return f"{value:.6g}" + (f" ± {stderr:.1g}" if stderr and math.isfinite(value) else "")
    if not math.isfinite(stderr):
        return f"{value:.3g} ± {stderr}"
    place = math.floor(math.log10(float(f"{stderr:.1g}")))  # of the error's leading digit
    if abs(value) < stderr:
        place -= 1  # or nothing would be left of the value
    rounded = round(value, -place) + 0.0  # no minus in front of zero
    if -4 <= place < 6:
        decimals = max(0, -place)
        return f"{rounded:.{decimals}f} ± {float(f'{stderr:.1g}'):.{decimals}f}"
    digits = math.floor(math.log10(abs(rounded))) - place + 1 if rounded else 1
    return f"{rounded:.{digits}g} ± {stderr:.1g}"
