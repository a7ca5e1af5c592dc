"""The league table of measures as a page: it sorts, filters, and shows what is behind a number."""

import json
from dataclasses import asdict
from typing import Any

from lowland import __version__
from lowland.report import show
from lowland_studies.league.found import GAPS, League

# Statistics of each measure: the first five the page computes anew for the networks chosen.
_COLUMNS = ("granulated", "kendall", "spearman", "pearson", "worst", "information", "picks")


def render_league(league: League) -> str:
    """Make one self-contained HTML page of the league table."""
    choices = {name: _values(values) for name, values in league.settings.items()}
    return show(
        "league.html.j2",
        [],
        [],
        __version__,
        script="league.js",
        package=__package__,
        league=league,
        document=_document(league, choices),
        choices=choices,
        gaps=GAPS,
        models=len(league.settings["data"]),
        columns=_COLUMNS,
        families=sorted({entry.family for entry in league.entries}),
    )


def _values(values: list[Any]) -> list[Any]:
    """The different values of a setting: numbers by size, names as they come."""
    different = list(dict.fromkeys(values))
    return sorted(different) if all(isinstance(v, int | float) for v in different) else different


def _document(league: League, choices: dict[str, list[Any]]) -> dict[str, Any]:
    """What the script of the page reads: models by numbers of their values, and every statistic."""
    document = {
        "settings": {
            name: [choices[name].index(value) for value in values]
            for name, values in league.settings.items()
        },
        "choices": choices,
        "gaps": league.gaps,
        "titles": GAPS,
        "values": league.values,
        "entries": [asdict(entry) for entry in league.entries],
    }
    return json.loads(json.dumps(document), parse_constant=lambda name: None)
