"""Tests of what is said of measures, over all networks of the league. No torch."""

from dataclasses import replace

from lowland_studies.claims import Test
from lowland_studies.evidence import Runs
from lowland_studies.intervals import Region, above, below, finding, nothing
from lowland_studies.league.found import Interval
from lowland_studies.study import Finding


def predicts(name: str, direction: int) -> Test:
    """The measure (-1: its negative) is the larger, the larger the gap in loss.

    The effect is the granulated Kendall coefficient, with its bootstrap interval over networks.
    """

    def test(runs: Runs) -> Finding:
        from lowland_studies.league.ranking import Models
        from lowland_studies.league.table import gap_of, settings_of

        unit = "granulated Kendall coefficient"
        if len(runs) < 2:
            return nothing(unit, f"{len(runs)} networks reached their training loss")
        models = Models(gap_of(runs, "gap"), settings_of(runs))
        rank = models.rank(direction * runs.column(name))
        return _finding(rank.granulated, unit, above(0.0), f"{rank.models} networks")

    return test


def picks_better(name: str) -> Test:
    """The flattest of the best networks by validation error has a lower test error than the best.

    See :class:`lowland_studies.league.picking.Choices`.
    """

    def test(runs: Runs) -> Finding:
        from lowland_studies.league.picking import CANDIDATES
        from lowland_studies.league.table import choices_of

        unit = "of the test samples: change in test error"
        if len(runs) < 2:
            return nothing(unit, f"{len(runs)} networks reached their training loss")
        picked = choices_of(runs).judge(runs.column(name))
        note = f"{CANDIDATES} candidates of one data set"
        return _finding(picked, unit, below(0.0), note, percent=True)

    return test


def _finding(
    effect: Interval, unit: str, region: Region, note: str, *, percent: bool = False
) -> Finding:
    judged = finding(effect.value, effect.low, effect.high, unit, region, note, percent=percent)
    return replace(judged, over="networks")
