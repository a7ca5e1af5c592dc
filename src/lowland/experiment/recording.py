"""What is recorded of a trained network: its analysis, and single numbers for a table of runs."""

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lowland.analysis import analyze
from lowland.budget import EVERYTHING
from lowland.dual import duality, pair
from lowland.errors import InputError
from lowland.experiment.configuration import FACTORS, SETTINGS, Configuration
from lowland.experiment.subject import Subject
from lowland.findings import Decomposition, Origin
from lowland.measures import measure
from lowland.problem import Problem
from lowland.rescaling import rescale
from lowland.results import Analysis
from lowland.training import Training
from lowland.usercode import called

# Components of single pairs that are kept with a run, for comparisons; all would be megabytes.
_COMPONENTS = 50


@dataclass(frozen=True)
class Record:
    """What is recorded of a trained network: its analysis, and its row in the table of runs."""

    analysis: Analysis
    numbers: dict[str, Any]
    configuration: Configuration
    subject: Subject
    problem: Problem  # of the subject, trained
    training: Training

    def adding(self, numbers: dict[str, Any], split: Decomposition | None = None) -> "Record":
        """Return the record with more numbers, and maybe with more in its decomposition."""
        analysis = self.analysis
        if split is not None:
            analysis = replace(analysis, results=replace(analysis.results, duality=split))
        return replace(self, analysis=analysis, numbers=self.numbers | numbers)


def recorded(configuration: Configuration, subject: Subject, training: Training) -> Record:
    """Analyse a trained network briefly, and measure all else that its configuration asks for."""
    problem = subject.problem()
    analysis = analysed(configuration, subject, problem, training, brief=True)
    results = analysis.results
    numbers: dict[str, Any] = vars(results.outcome).copy()
    if results.duality is not None:
        split = results.duality
        numbers |= {"layer": split.layer, "layer_norm": split.weight_norm}
        numbers |= of_decomposition(split)
        results = replace(results, duality=_fewer_components(split))
    numbers |= {row.name: row.value for row in results.measures}
    if len(configuration.layers) > 1:
        others = duality(  # type: ignore[call-overload]
            problem,
            list(configuration.layers[1:]),
            pairs=pair(problem),
            basis=configuration.basis,
            n_sharp=configuration.n_sharp,
            dual=configuration.dual,
            widths=configuration.widths,
        )
        for layer, split in others.items():
            own = of_decomposition(split)
            numbers |= {f"{layer}:{name}": value for name, value in own.items()}
        layers = {name: replace(split, per_pair=None) for name, split in others.items()}
        results = replace(results, layers=layers)
    if configuration.rescalings:
        numbers["rescaled"] = _rescaled(configuration, subject)
    analysis = replace(analysis, results=results)
    record = Record(analysis, numbers, configuration, subject, problem, training)
    for path in configuration.details:
        record = called(path, "details", record)
        if not isinstance(record, Record):
            raise InputError(
                f"details {path} returned {type(record).__name__}; expected the record that it is "
                "given, with more numbers: record.adding({name: value})"
            )
    return record


def of_decomposition(split: Decomposition) -> dict[str, Any]:
    """Return the numbers of a decomposition that stand in the table of runs."""
    return {
        "paired_gap": split.paired_gap,
        "eq9": split.eq9,
        "eq11": split.eq11,
        "sharp": split.sharp,
        "flat": split.flat,
        "total_g": split.totals.total_g,
        "total_w": split.total_w,
        "total_w_data": split.totals.total_w_data,
        "loss_defect": split.fit.loss_defect,
        "duality_residual": split.fit.duality_residual,
        "excluded_share": split.fit.excluded_share,
    }


def _fewer_components(split: Decomposition) -> Decomposition:
    """Single pairs along the leading directions only; along all, a run would take megabytes."""
    pairs = split.per_pair
    if pairs is None:
        return split
    return replace(split, per_pair=replace(pairs, components=pairs.components[:, :_COMPONENTS]))


def analysed(
    configuration: Configuration,
    subject: Subject,
    problem: Problem,
    training: Training,
    *,
    command: str | None = None,
    out: Path | None = None,
    brief: bool = False,
    progress: Callable[[str], None] = lambda stage: None,
) -> Analysis:
    """The analysis of a trained network as its configuration asks for it.

    A brief one has only the measures and widths that are named. Otherwise, where none are named,
    they are those of :func:`lowland.analyze`.
    """
    analysis = analyze(
        problem,
        configuration.layers[0] if configuration.layers else None,
        out=out,
        title=title(configuration),
        origin=origin(subject, training, command),
        basis=configuration.basis,  # type: ignore[arg-type]
        n_sharp=configuration.n_sharp,
        dual=configuration.dual,  # type: ignore[arg-type]
        measures=configuration.measures if brief else configuration.measures or None,
        widths=configuration.widths if brief else configuration.widths or None,
        brief=brief,
        budget=EVERYTHING,  # the speed of a machine decides nothing in a record
        progress=progress,
    )
    if brief and analysis.results.course.interrupted:  # a run is whole or it is none
        raise KeyboardInterrupt
    return analysis


def origin(subject: Subject, training: Training, command: str | None = None) -> Origin:
    """Where a trained network came from: its data, its training and the command typed."""
    seed = training.settings.seed
    return Origin(command, subject.data, seed=seed, training=training.record())


def title(configuration: Configuration) -> str:
    """Network and data, and the settings that are not the default, in a line."""
    own = [
        f"{name}={value}"
        for name, value in configuration.training().items()
        if value != SETTINGS[name].default and name not in ("network", "data")
    ]
    words = f"{configuration.network} on {configuration.data}"
    return f"{words}: {', '.join(own)}" if own else words


def _rescaled(configuration: Configuration, subject: Subject) -> dict[str, dict[str, float | None]]:
    """The measures of the network as trained and after each rescaling, by the rescaling's name.

    In double precision, so that measures that a rescaling leaves alone come out equal.
    """
    double = replace(subject, model=copy.deepcopy(subject.model).double()).problem()
    problems = {"as_trained": double}
    for by in configuration.rescalings:
        problems[by] = rescale(double, by, FACTORS[by])  # type: ignore[arg-type]
    names = list(configuration.measures)
    measured = {by: measure(problem, names).whole() for by, problem in problems.items()}
    return {by: {name: row.value for name, row in rows.items()} for by, rows in measured.items()}
