"""A published figure as data: which runs, what is drawn of them, what the paper says of it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from lowland.sweep.grid import Grid

if TYPE_CHECKING:
    from lowland.studies.evidence import Runs
    from lowland.studies.panels import Panel

Verdict = Literal["holds", "does not hold", "undecided"]


@dataclass(frozen=True)
class Finding:
    """What the runs say to a claim: an effect with its 95 % interval over realisations."""

    effect: float
    low: float
    high: float
    unit: str  # what the effect is, in words
    verdict: Verdict
    note: str = ""


@dataclass(frozen=True)
class Claim:
    """A sentence of a paper, and the test that decides it."""

    text: str  # "The gap falls with the learning rate."
    paper: str  # what the paper reports, with the figure: "Fig. 3A: falls"
    test: "Callable[[Runs], Finding]"


@dataclass(frozen=True)
class Study:
    """A figure of a paper, to be made again and judged."""

    name: str  # "feng-tu:fig3"
    title: str
    grid: Grid  # the paper's settings, ten realisations
    quick: Grid  # a smaller version, about a minute on two cores
    panels: "tuple[Panel, ...]"
    claims: tuple[Claim, ...]
    differences: tuple[str, ...] = ()  # from the paper's settings, in words
    reason: str = ""  # why claims do not hold in full, where it was found

    @property
    def paper(self) -> str:
        """The part of the name before the colon."""
        return self.name.partition(":")[0]

    @property
    def file(self) -> str:
        """The name of its files, without the colon, which not every file system takes."""
        return self.name.replace(":", "-")
