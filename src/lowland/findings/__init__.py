"""What is found, as types: plain numbers, texts and arrays that every other room reads.

A number has one name and one meaning from where it is computed to where it is drawn. Nothing here
computes, and nothing needs torch.
"""

from lowland.findings.change import Change, Differences, Part, Solution
from lowland.findings.convergence import Convergence, State
from lowland.findings.document import (
    FORMAT,
    Check,
    Course,
    MeasureRow,
    Origin,
    Outcome,
    Results,
    Scalar,
    Subject,
    TrainingRecord,
    from_json,
    to_json,
)
from lowland.findings.encoding import encode
from lowland.findings.split import (
    TRUSTED,
    Approximations,
    BasisKind,
    Decomposition,
    Decompositions,
    Directions,
    Fit,
    Gauge,
    Intervals,
    LayerRow,
    PairValues,
    Setting,
    SharpRule,
    Totals,
    Widths,
)

__all__ = [
    "FORMAT",
    "TRUSTED",
    "Approximations",
    "BasisKind",
    "Change",
    "Check",
    "Convergence",
    "Course",
    "Decomposition",
    "Decompositions",
    "Differences",
    "Directions",
    "Fit",
    "Gauge",
    "Intervals",
    "LayerRow",
    "MeasureRow",
    "Origin",
    "Outcome",
    "PairValues",
    "Part",
    "Results",
    "Scalar",
    "Setting",
    "SharpRule",
    "Solution",
    "State",
    "Subject",
    "Totals",
    "TrainingRecord",
    "Widths",
    "encode",
    "from_json",
    "to_json",
]
