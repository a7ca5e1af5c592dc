"""Which measure predicts the gap best, over some hundred small networks: a study of its own.

>>> from lowland_studies.league import STUDY
>>> STUDY.name
'league'
"""

from typing import Any

from lowland_studies.evidence import Runs
from lowland_studies.league.claims import picks_better, predicts
from lowland_studies.league.networks import STOP, grid, quick
from lowland_studies.panels import Scatter
from lowland_studies.study import Annex, Claim, Study

__all__ = ["STUDY"]

# What Jiang et al. 2020 endorse, with the direction in which each goes with the gap.
_ENDORSED = (
    ("gradient_variance", 1, "The larger the variance of the gradients, the larger the gap."),
    (
        "pac_bayes_magnitude",
        1,
        "The larger the magnitude-aware PAC-Bayes bound, the larger the gap (the survey's ratio is "
        "its 1/sigma^2).",
    ),
    ("path_norm", 1, "The larger the path norm, the larger the gap."),
    ("vc_dimension", -1, "The larger the VC dimension, the smaller the gap."),
)
_PICKING = ("normalized_sharpness", "sam_sharpness", "trace")
_CLAIMS = (
    *(
        Claim(text, "Jiang et al. 2020, as the survey has it: endorsed", predicts(name, sign))
        for name, sign, text in _ENDORSED
    ),
    *(
        Claim(
            f"Beside the validation error, {name} picks better networks than that error alone.",
            "asked of every measure in the table",
            picks_better(name),
            "ours",
        )
        for name in _PICKING
    ),
)


def data_set(row: dict[str, Any]) -> str:
    """The data set of a network, for the legends."""
    return str(row["data"])


def _annex(runs: Runs, command: str) -> Annex:
    """The table in Markdown, and the page on which it can be sorted and filtered."""
    from lowland_studies.league.html import render_league
    from lowland_studies.league.table import league
    from lowland_studies.league.words import told

    verdicts = {claim.text: claim.test(runs) for claim in _CLAIMS if claim.kind == "claim"}
    table = league(runs, command, verdicts)
    return Annex(told(table), {"league-table.html": render_league(table)})


STUDY = Study(
    name="league",
    title="Which measure predicts the gap",
    grid=grid(),
    quick=quick(),
    panels=tuple(
        Scatter(name, "gap", label, "gap in loss", by=data_set, log="xy", line=False)
        for name, label in (
            ("gradient_variance", "variance of gradients"),
            ("path_norm", "path norm"),
            ("normalized_sharpness", "normalized sharpness"),
        )
    ),
    claims=_CLAIMS,
    differences=(
        "Jiang et al. trained 2,187 convolutional networks, three values of seven settings, on "
        "photographs; these are dense networks on 100 or 200 samples, with two values of learning "
        "rate, batch size, width and depth, and at most one further setting changed",
        f"all are trained to a loss of {STOP:g}; learning rates are matched as low or high among "
        "those of their data and optimiser",
        "measures that train for thousands of gradients themselves are left out, and the duality "
        "is that of the last layer: each would take longer than all the rest",
        "larger networks, more samples and seeds are a change of studies/league/networks.py",
    ),
    annex=_annex,
)
