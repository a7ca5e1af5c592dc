"""Published figures, made again and judged: each one is data, and so are its claims.

>>> from lowland_studies import find
>>> [study.name for study in find("feng-tu:fig3")]
['feng-tu:fig3']
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lowland_studies.catalogue import PAPERS, STUDIES, find, of_the_field
    from lowland_studies.pages import page
    from lowland_studies.reproduction import Outcome, outcomes, reproduce, reproduce_all
    from lowland_studies.study import Claim, Finding, Reading, Study

__all__ = [
    "PAPERS",
    "STUDIES",
    "Claim",
    "Finding",
    "Outcome",
    "Reading",
    "Study",
    "find",
    "of_the_field",
    "outcomes",
    "page",
    "reproduce",
    "reproduce_all",
]

_PLACES = {
    "catalogue": ("PAPERS", "STUDIES", "find", "of_the_field"),
    "pages": ("page",),
    "reproduction": ("Outcome", "outcomes", "reproduce", "reproduce_all"),
    "study": ("Claim", "Finding", "Reading", "Study"),
}


def __getattr__(name: str) -> Any:
    # Late: a worker comes for one network or trial, and needs no other study.
    for place, names in _PLACES.items():
        if name in names:
            found = getattr(importlib.import_module(f"lowland_studies.{place}"), name)
            globals()[name] = found
            return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
