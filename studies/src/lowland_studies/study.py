"""A published figure as data: which runs, what is drawn of them, what the paper says of it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from lowland.sweep.grid import Grid

if TYPE_CHECKING:
    from lowland_studies.evidence import Runs
    from lowland_studies.panels import Panel

Verdict = Literal["holds", "does not hold", "undecided"]
# A check cannot fail where the code is right: an identity, or a rule by which trainings end. What
# is restated is judged elsewhere as well. What is ours no paper says: it backs a reason, or asks
# further. None of these is counted.
Kind = Literal["claim", "restated", "check", "ours"]
# The study as published here; a smaller one, about a minute; and with what the paper had.
Version = Literal["full", "quick", "original"]


def recording(*names: str) -> tuple[str, ...]:
    """Return the setting ``details`` of runs that record these of ``details.py``."""
    return tuple(f"lowland_studies.details:{name}" for name in names)


@dataclass(frozen=True)
class Finding:
    """What the runs say to a claim: an effect with its 95 % interval over realisations."""

    effect: float
    low: float
    high: float
    unit: str  # what the effect is, in words
    verdict: Verdict
    note: str = ""
    bottom: float | None = None  # the claim holds if the effect is not below this
    top: float | None = None  # and not above this
    percent: bool = False  # whether the effect is a share, to be told in per cent
    over: str = "seeds"  # what the interval is over

    @property
    def interval(self) -> str:
        """The effect and the ends of its interval in digits, in per cent where it is a share."""
        numbers = (self.effect, self.low, self.high)
        effect, low, high = (f"{100 * n if self.percent else n:.3g}" for n in numbers)
        return f"{effect}{' %' if self.percent else ''} [{low}, {high}]"


@dataclass(frozen=True)
class Claim:
    """A sentence of a paper, and the test that decides it."""

    text: str  # "The gap falls with the learning rate."
    paper: str  # what the paper reports, with the figure: "Fig. 3A: falls"
    test: "Callable[[Runs], Finding]"
    kind: Kind = "claim"


@dataclass(frozen=True)
class Reading:
    """One reading of a paper's settings: its runs, and how they differ from what is printed."""

    name: str  # "as printed"; empty where there is only one
    grid: Grid  # the study as it is published here
    quick: Grid  # a smaller version, about a minute on two cores
    differences: tuple[str, ...] = ()  # from the paper's settings, in words
    suffix: str = ""  # of its files
    at_limit: float | None = None  # a training error up to which networks at their limit count
    original: Grid | None = None  # the paper's networks and data, where those were scaled down

    def runs(self, version: Version) -> Grid | None:
        """The runs of a version; none where there is no original."""
        return {"full": self.grid, "quick": self.quick, "original": self.original}[version]


@dataclass(frozen=True)
class Annex:
    """What a study has beside figure and claims: Markdown for its page, files by their names."""

    text: str
    files: dict[str, str]


@dataclass(frozen=True)
class Study:
    """A figure of a paper, to be made again and judged."""

    name: str  # "feng-tu:fig3"
    title: str
    grid: Grid
    quick: Grid
    panels: "tuple[Panel, ...]"
    claims: tuple[Claim, ...]
    differences: tuple[str, ...] = ()
    reason: str = ""  # why claims do not hold in full, where it was found
    reading: str = ""  # the name of the reading whose runs these are
    others: tuple[Reading, ...] = ()  # further readings: the same claims are judged in each
    annex: "Callable[[Runs, str], Annex] | None" = None  # of the runs and the command that made it
    original: Grid | None = None  # the paper's networks and data, where those were scaled down

    @property
    def paper(self) -> str:
        """The part of the name before the colon."""
        return self.name.partition(":")[0]

    @property
    def file(self) -> str:
        """The name of its files, without the colon, which not every file system takes."""
        return self.name.replace(":", "-")

    @property
    def readings(self) -> tuple[Reading, ...]:
        """All readings, the study's own first."""
        own = Reading(self.reading, self.grid, self.quick, self.differences, original=self.original)
        return own, *self.others

    def readings_of(self, version: Version) -> tuple[Reading, ...]:
        """The readings that have runs in this version."""
        return tuple(reading for reading in self.readings if reading.runs(version) is not None)
