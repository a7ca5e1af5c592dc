"""The league table in Markdown."""

import math

from lowland_studies.league.found import GAPS, Entry, Interval, League

_MARK = "&ensp;⚠"  # of measures that rescalings move
_OPEN = "&ensp;?"  # of measures of which that is not known
_FOOLED = {True: _MARK, False: "", None: _OPEN}
_TESTED = "&ensp;†"  # of measures that read test data
_LEGEND = (
    "A coefficient is 1 where the sharper of two networks always has the larger gap, -1 where it "
    "never has; of the gradient noise scale and the total size by the duality, which have no "
    "sharper side, the larger one is meant. *Granulated*: the mean over settings of Kendall's "
    "coefficient over pairs that differ in that setting alone (Jiang et al. 2020). *Worst*: its "
    "lowest value over two values of one setting (Dziugaite et al. 2020). *Information*: the "
    "share of the gaps' order that the measure tells beside any two settings. *Picks*: the change "
    "in test error, in points, where the measure chooses among networks whose validation error is "
    "within a standard error of the lowest; below 0 it helps. *Gradients*: the time that it took "
    "beside the others, in gradients of the training loss; what several share, such as the "
    "eigenvalues of the Hessian, counts with the first of them. In brackets 95 % intervals by "
    "bootstrap over networks. "
    f"Measures with{_MARK} are fooled: rescaling layers or units, which leaves the function as it "
    f"is, moved them in networks of this very table. With{_OPEN} it was too noisy to say, or not "
    f"tried. Those with{_TESTED} read test data: they describe the gap rather than predict it, and "
    "stand last."
)


def told(league: League) -> str:
    """The networks, the page, and a table for each of the two gaps."""
    models = len(next(iter(league.gaps.values())))
    data = ", ".join(dict.fromkeys(league.settings["data"]))
    varied = ", ".join(name.replace("_", " ") for name in league.settings if name != "data")
    lines = [
        "### The table",
        f"{models} networks on {data}, all trained to a loss of {league.stop_loss:g}, differing in "
        f"{varied} ({league.left_out} more did not reach it and are left out). "
        "The command below also writes `league-table.html`: there the table sorts, filters by data "
        "set and setting, and shows the scatter behind each number. It needs no network.",
        _LEGEND,
        *(f"**By the {words}**\n\n{_table(league, gap)}" for gap, words in GAPS.items()),
    ]
    return "\n\n".join(lines)


def _table(league: League, gap: str) -> str:
    head = ["measure", "granulated", "worst", "information", "Kendall", "Spearman", "Pearson"]
    head += ["picks, points", "networks", "gradients"]
    rows = [f"| {' | '.join(head)} |", f"|{' --- |' * len(head)}"]
    entries = [entry for entry in league.entries if math.isfinite(entry.ranks[gap].kendall.value)]
    entries.sort(key=lambda entry: (entry.tested, -entry.ranks[gap].granulated.value))
    return "\n".join([*rows, *(_row(entry, gap) for entry in entries)])


def _row(entry: Entry, gap: str) -> str:
    rank = entry.ranks[gap]
    worst = f"{rank.worst:.2f} ({rank.worst_where})" if rank.worst_where else "–"
    negative = " (negative)" if entry.sign < 0 else ""
    marks = (_TESTED if entry.tested else "") + _FOOLED[entry.fooled]
    cells = [
        f"{entry.title}{negative}{marks}",
        *(_shown(rank.granulated), worst, f"{rank.information:.3f}"),
        *(_shown(rank.kendall), _shown(rank.spearman), _shown(rank.pearson)),
        _shown(entry.picked, 100),
        str(rank.models),
        "–" if entry.gradients is None else f"{entry.gradients:.2g}",
    ]
    return f"| {' | '.join(cells)} |"


def _shown(interval: Interval, factor: float = 1) -> str:
    if not math.isfinite(interval.value):
        return "–"
    value, low, high = (factor * x for x in (interval.value, interval.low, interval.high))
    return f"{value:.2f} [{low:.2f}, {high:.2f}]"
