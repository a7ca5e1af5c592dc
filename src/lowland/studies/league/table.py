"""Which measure predicts the gap best: `python -m lowland.studies.league DIR`.

Trains and measures some hundred small networks as a sweep in DIR, which can be interrupted and
started again, and writes the league table of all measures there, for readers (`league.md`) and for
programs (`league.json`).
"""

import json
import math
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any, Literal

import numpy as np

from lowland.atomic import write_file
from lowland.data import load as load_data
from lowland.errors import InputError
from lowland.measures import Measure, registered
from lowland.results import load
from lowland.studies.evidence import Runs
from lowland.studies.ranking import Interval, Models, Rank
from lowland.sweep import Grid, run

STOP = 0.01  # the training loss that all of them reach
# Settings that models differ in, and are matched by.
SETTINGS = (
    *("data", "network", "learning_rate", "batch_size", "decay", "optimizer", "init_scale"),
    *("dropout", "label_noise", "seed"),
)
# What Jiang et al. 2020 endorse, with the direction in which each goes with the gap.
ENDORSED = {
    "gradient_variance": 1,
    "pac_bayes_magnitude": 1,
    "path_norm": 1,
    "vc_dimension": -1,
}
GAPS = {"gap": "gap in loss", "error_gap": "gap in error"}


@dataclass(frozen=True)
class Entry:
    """One measure in the table."""

    name: str
    title: str
    sign: Literal[1, -1]  # -1 where a lower value is the sharper one: ranks are of its negative
    fooled: bool  # whether a rescaling of layers or units, which leaves the function, moves it
    gradients: float | None  # what it costs, in the median
    ranks: dict[str, Rank]  # by the gap that is predicted


def grid(*, cifar: bool) -> Grid:
    """The networks: full grids of the settings, and others one at a time about a middle one."""
    fixed = {
        "stop_loss": STOP,
        "max_epochs": 600,
        "measures": [name for name, its in registered().items() if not its.trains],
    }
    digits = {"data": "digits", **fixed}
    images = {"data": "mnist5k", "per_class": 100, **fixed}
    rates = {"learning_rate": [0.05, 0.2], "batch_size": [10, 50], "decay": [0.0, 0.0005]}
    both = {"optimizer": ["sgd", "sam"], "seed": [0, 1]}
    whole = Grid(network=_networks(64), **rates, **both, **digits)
    whole += Grid(network=_networks(784), **rates, **both, **images)
    for settings, network in ((digits, "64-30-30-10"), (images, "784-30-30-10")):
        middle = {"network": network, "learning_rate": 0.05, "seed": [0, 1], **settings}
        whole += Grid(init_scale=[0.5, 1.0, 2.0], **middle)
        whole += Grid(dropout=[0.1, 0.2], **middle)
        whole += Grid(label_noise=[0.1, 0.2], **middle)
        whole += Grid(optimizer=["asam", "look_sam", "friendly_sam"], **middle)
        whole += Grid(optimizer=["adam", "rmsprop"], **{**middle, "learning_rate": 0.001})
    if cifar:
        colours = {"data": "cifar10", "per_class": 50, "test_per_class": 100, **fixed}
        slow = {"learning_rate": [0.02, 0.05], "batch_size": [10, 50]}
        whole += Grid(network=_networks(3072), **slow, **colours)
    return whole


def _networks(inputs: int) -> list[str]:
    """Narrow and wide, shallow and deep."""
    return [f"{inputs}-{hidden}-10" for hidden in ("20", "80", "20-20", "80-80")]


def table(runs: Runs) -> list[Entry]:
    """Every recorded measure but outcomes, the best one first by its granulated coefficient."""
    if len(runs) < 2:
        raise InputError(f"{len(runs)} networks reached their training loss; a rank needs two")
    settings = {name: [row[name] for row in runs.rows] for name in SETTINGS}
    gaps = {"gap": runs.column("gap"), "error_gap": _error_gap(runs)}
    models = {name: Models(gap, settings) for name, gap in gaps.items()}
    costs = _costs(runs)
    entries = []
    for name, measure in registered().items():
        if measure.family == "outcome" or name not in runs.rows[0]:
            continue
        sign: Literal[1, -1] = -1 if measure.sharper == "lower" else 1
        values = sign * runs.column(name)
        ranks = {gap: chosen.rank(values) for gap, chosen in models.items()}
        entries.append(
            Entry(name, measure.title, sign, _is_fooled(measure), costs.get(name), ranks)
        )
    entries.sort(key=lambda entry: -_number(entry.ranks["gap"].granulated.value))
    return entries


def _error_gap(runs: Runs) -> np.ndarray:
    return runs.column("test_error") - runs.column("train_error")


def _is_fooled(measure: Measure) -> bool:
    return not {"layers", "units"} <= set(measure.invariant)


def _costs(runs: Runs) -> dict[str, float]:
    """The median cost of each measure in gradients, where it was told."""
    costs: dict[str, list[float]] = {}
    for row in runs.rows:
        for measured in load(runs.folder / row["key"]).results.measures:
            if measured.gradients is not None:
                costs.setdefault(measured.name, []).append(measured.gradients)
    return {name: median(numbers) for name, numbers in costs.items()}


def _number(value: float) -> float:
    return value if math.isfinite(value) else -math.inf


# --- in words ------------------------------------------------------------------------------------


def page(entries: list[Entry], runs: Runs) -> str:
    """The table in Markdown, with what Jiang et al. endorse judged below it."""
    data, losses = (sorted({row[name] for row in runs.rows}) for name in ("data", "stop_loss"))
    reached = " or ".join(f"{loss:g}" for loss in losses)
    lines = [
        "# The league table of measures",
        f"{len(runs)} networks on {', '.join(data)}, all trained to a loss of {reached}, differing "
        f"in {', '.join(name for name in SETTINGS if name in runs.varied)} "
        f"({len(runs.left_out)} more did not reach it and are left out). Made by "
        "`python -m lowland.studies.league DIR`.",
        "A coefficient is 1 where the sharper of two networks always has the larger gap, -1 where "
        "it never has. *Granulated*: the mean over settings of pairs that differ in that setting "
        "alone (Jiang et al. 2020). *Worst*: its lowest value over two values of one setting "
        "(Dziugaite et al. 2020). *Information*: the share of the gaps' order that the measure "
        "tells beside any two settings. In brackets 95 % intervals, by bootstrap over networks. "
        "*Fooled*: whether rescaling layers or units, which leaves the function, moves it.",
        _ranked(entries, "gap"),
        "## Measures that Jiang et al. (2020) endorse",
        *(_endorsed(entry) for entry in entries if entry.name in ENDORSED),
    ]
    return "\n\n".join(lines) + "\n"


def _ranked(entries: list[Entry], gap: str) -> str:
    head = ["measure", "granulated", "worst", "information", "Kendall", "Spearman", "Pearson"]
    head += ["granulated, gap in error", "networks", "gradients", "fooled"]
    rows = [f"| {' | '.join(head)} |", f"|{' --- |' * len(head)}"]
    for entry in entries:
        rank = entry.ranks[gap]
        if not math.isfinite(rank.kendall.value):
            continue
        worst = f"{rank.worst:.2f} ({rank.worst_where})" if rank.worst_where else "–"
        cells = [
            entry.title + (" (negative)" if entry.sign < 0 else ""),
            *(_shown(rank.granulated), worst, f"{rank.information:.3f}"),
            *(_shown(rank.kendall), _shown(rank.spearman), _shown(rank.pearson)),
            _shown(entry.ranks["error_gap"].granulated),
            str(rank.models),
            "–" if entry.gradients is None else f"{entry.gradients:.2g}",
            "yes" if entry.fooled else "no",
        ]
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def _shown(interval: Interval) -> str:
    if not math.isfinite(interval.value):
        return "–"
    return f"{interval.value:.2f} [{interval.low:.2f}, {interval.high:.2f}]"


def _endorsed(entry: Entry) -> str:
    """Whether the granulated coefficient has the sign that the paper gives it."""
    found, sign = entry.ranks["gap"].granulated, ENDORSED[entry.name] * entry.sign
    low, high = sorted((sign * found.low, sign * found.high))
    verdict = "holds" if low > 0 else "does not hold" if high < 0 else "undecided"
    word = "larger" if ENDORSED[entry.name] > 0 else "smaller"
    return f"- {entry.title}: the {word} it is, the larger the gap: **{verdict}** ({_shown(found)})"


def document(entries: list[Entry], runs: Runs) -> dict[str, Any]:
    """Everything, ready for JSON: null for numbers that are not defined."""
    models = [{name: row[name] for name in SETTINGS} for row in runs.rows]
    names = [name for name in registered() if name in runs.rows[0]]
    numbers: dict[str, Any] = {name: runs.column(name).tolist() for name in names}
    document = {
        "models": models,
        "values": numbers,
        "error_gap": _error_gap(runs).tolist(),
        "entries": [asdict(entry) for entry in entries],
    }
    return json.loads(json.dumps(document), parse_constant=lambda name: None)


def main(directory: str) -> None:
    """Train, measure and write."""
    try:
        load_data("cifar10", per_class=1, test_per_class=1)
        cifar = True
    except InputError as error:
        print(f"without CIFAR-10: {error}", file=sys.stderr)
        cifar = False
    chosen = grid(cifar=cifar)
    run(chosen, directory, progress=lambda now: print(now.done, flush=True))
    runs = Runs.of(directory, chosen)
    entries = table(runs)
    folder = Path(directory)
    write_file(folder / "league.md", page(entries, runs))
    write_file(folder / "league.json", json.dumps(document(entries, runs), allow_nan=False) + "\n")
    print(f"{len(runs)} networks, {len(entries)} measures: {folder / 'league.md'}")


if __name__ == "__main__":
    main(*sys.argv[1:2])
