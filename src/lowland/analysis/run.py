"""Everything at once: measure a problem, explain its gap, save it, show it."""

import hashlib
import math
import platform
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from lowland import __version__
from lowland.analysis.explanation import Explanation, How
from lowland.analysis.scenery import TITLE as LANDSCAPE
from lowland.analysis.scenery import Scenery
from lowland.atomic import check_writable
from lowland.budget import DEFAULT, Clock, limit
from lowland.checkpoint import weights_bytes
from lowland.curvature import Kind, layers
from lowland.distributed import gathered
from lowland.dual import AskedDual, Rule, layer_with_dual
from lowland.errors import InputError
from lowland.findings import (
    Convergence,
    Decomposition,
    Gauge,
    Origin,
    Outcome,
    Results,
    Subject,
    Unseen,
)
from lowland.measures import (
    CONVERGENCE_WORK,
    OUTCOME,
    Copies,
    Measuring,
    Progress,
    Schedule,
    Task,
    chosen_measures,
    convergence,
    convergence_by_loss,
    decomposition,
    share,
    sharing,
    silent,
    whole_spectrum,
)
from lowland.problem import Problem, of_a_problem
from lowland.results import Analysis
from lowland.usercode import described

CONVERGENCE = "whether this is a minimum"


@of_a_problem
def analyze(
    problem: Problem,
    layer_name: str | None = None,
    *,
    out: str | Path | None = None,
    title: str | None = None,
    origin: Origin | None = None,
    gauge: Gauge = "given",
    basis: Kind = "hessian",
    n_sharp: int | Rule = "share",
    measures: Sequence[str] | None = None,
    dual: AskedDual = "auto",
    widths: int | None = None,
    brief: bool = False,
    landscape: bool | None = None,
    budget: float | str | None = None,
    progress: Progress = silent,
) -> Analysis:
    """Measure a problem and explain its generalisation gap by the duality of its layers.

    Ctrl-C, or the end of the budget, ends it early: what is done by then is returned, and saved if
    ``out`` was given. A second Ctrl-C raises at once.

    Args:
        problem: what to analyse; without test data there is no gap, and the rest is computed.
        layer_name: the layer to decompose in full; by default the dense layer before the last
            one, as in Feng & Tu, of those whose directions can all be computed, or the only one;
            if its dual weights do not stand for the data, the last layer whose do.
        out: a directory to save everything in (see :meth:`Analysis.save`).
        title: how the report calls it.
        origin: for the record, where model and data came from.
        gauge: ``"balanced"`` decomposes in the gauge that rescaling hidden units cannot change,
            see :func:`lowland.duality`.
        basis: the matrix whose eigenvectors are the directions, see :func:`lowland.duality`.
        n_sharp: how many directions count as sharp, see :func:`lowland.duality`.
        dual: what dual weights reproduce, see :func:`lowland.duality`.
        measures: which to compute beside the outcome; by default all that need no training.
        widths: directions whose widths F_n are computed; by default 100, or none if brief.
        brief: leave out what only a reader of the report wants: the other layers, widths and
            leading-order terms.
        landscape: whether to draw the loss around the weights, a surface and two cuts; by default
            unless it is brief or measures are named.
        budget: the time that it may take: ``"90s"``, ``"5m"``, ``"1h30m"``, a number of seconds,
            or ``"none"``. By default five minutes, or none if measures are named. What does not fit
            is a row that says how long it would take.
        progress: called with the name of each stage as it begins, a text that also knows how much
            is ``done`` and the seconds ``left`` (see :class:`lowland.budget.Stage`).
    """
    clock = Clock(limit(budget, DEFAULT if measures is None else math.inf))
    if dual not in ("auto", "activity", "output"):
        raise InputError(f"dual must be 'auto', 'activity' or 'output'; got {dual!r}")
    if out is not None:
        check_writable(Path(out))
    if layer_name is not None:
        if not problem.has_test:
            raise InputError(
                f"decomposing the gap in layer {layer_name!r} needs test data; pass "
                "test=(inputs, targets) to Problem, or name no layer"
            )
        layer_with_dual(problem, layer_name)  # an error if there is none of that name
    problem.losses()  # an error if they are not finite, rather than one in every measure
    unseen = _unseen(problem)

    every = None if measures is None else list(dict.fromkeys([*OUTCOME, *measures]))
    schedule = Schedule(clock, progress)
    with sharing():
        measuring = Measuring(problem, chosen_measures(every), schedule)
        progress("losses and errors")
        measuring.measure_outcome()
        outcome = Outcome(**{name: measuring.rows[name].value for name in OUTCOME})
        how = How(gauge, basis, n_sharp, widths, brief, dual)
        explanation = Explanation(problem, layer_name, how, schedule.tell)
        reached = [_unknown()]

        def judge() -> None:
            reached[:] = [_convergence(problem, outcome, explanation, origin or Origin())]

        def decompose() -> None:
            explanation.split()
            if explanation.duality is not None:
                share(decomposition, problem, explanation.duality)

        if problem.has_test:
            with clock.limited():
                progress("pairs of test and training samples")
                explanation.choose()
        steps = explanation.steps
        tasks = {name: step.run for name, step in steps.items()}
        costs = {name: Task(step.work) for name, step in steps.items()}
        for name in list(steps)[:1]:
            tasks[name] = decompose
            # On a subset: directions from its curvature, and as many pairs.
            costs[name] = replace(
                costs[name],
                first=True,
                gives=(decomposition,),
                sampled=Copies(passes=1, flops=1),
                reduced=steps[name].plain,
            )
        tasks |= {CONVERGENCE: judge, **measuring.tasks}
        costs[CONVERGENCE] = Task(CONVERGENCE_WORK, first=True)
        scenery = Scenery(problem)
        if landscape or (landscape is None and not brief and measures is None):
            tasks[LANDSCAPE] = lambda: scenery.draw(schedule.tell)
            costs[LANDSCAPE] = Task(scenery.work)
        if not brief:
            schedule.make_plan(problem, lambda: _in_order(measuring.costs, costs))
        for name in list(steps)[:1]:
            explanation.samples = schedule.samples(name)
        schedule.run(tasks)
        if CONVERGENCE not in schedule.finished:
            reached = [_convergence(problem, outcome, explanation, origin or Origin(), brief=True)]
        explanation.finish()
        spectrum = whole_spectrum(problem)
    notes = [*explanation.notes, *scenery.notes]
    if origin is not None and origin.training is not None and not origin.training.converged:
        notes.append("The training stopped at its epoch limit before reaching its goal.")
    notes += [
        f"{name[0].upper()}{name[1:]} was not computed ({schedule.reason(name)})."
        for name in (*steps, CONVERGENCE, *tasks.keys() & {LANDSCAPE})
        if name not in schedule.finished
    ]
    results = Results(
        lowland=__version__,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        seconds=clock.spent,
        course=schedule.course(),
        origin=origin or Origin(),
        subject=_subject(problem, explanation.duality, title),
        outcome=outcome,
        unseen=unseen,
        convergence=reached[0],
        duality=explanation.duality,
        balanced=explanation.balanced,
        layers={},
        layer_rows=explanation.layer_rows,
        measures=measuring.measurements().rows(),
        checks=explanation.checks,
        notes=(*problem.notes, *notes),
        landscape=scenery.landscape,
        versions=_versions(),
        spectrum=spectrum,
    )
    analysis = Analysis(results, weights_bytes(problem.model))
    if out is not None:
        if not clock.interrupted:
            progress("report")
        analysis.save(out)
    return analysis


def _in_order(measures: dict[str, Task], others: dict[str, Task]) -> dict[str, Task]:
    """All tasks, from the measures that come first."""
    first = {name: task for name, task in measures.items() if task.first}
    return {**first, **others, **measures}


def _unseen(problem: Problem) -> Unseen | None:
    """Loss and error of each test sample, of all ranks; None if there are none."""
    if not problem.has_test:
        return None
    try:
        wrong = gathered(problem.wrong("test")).cpu().numpy()
    except InputError:  # the targets are neither right nor wrong
        wrong = None
    return Unseen(gathered(problem.losses("test")).double().cpu().numpy(), wrong)


def _convergence(
    problem: Problem,
    outcome: Outcome,
    explained: Explanation,
    origin: Origin,
    *,
    brief: bool = False,
) -> Convergence:
    """Whether this is a minimum; unknown, with a note, where that could not be computed.

    If brief, what the losses alone tell of it.
    """
    assert outcome.train_loss is not None  # the losses are finite, or there would be no analysis
    try:
        if brief:
            return convergence_by_loss(problem, outcome.train_loss, outcome.train_error)
        return convergence(
            problem, outcome.train_loss, outcome.train_error, explained.duality, origin.training
        )
    except Exception as error:  # of the user's code, or a defect of ours: the rest stands
        why = error if isinstance(error, InputError) else described(error)
        explained.notes.append(f"Whether this is a minimum was not computed: {why}.")
        return _unknown()


def _versions() -> dict[str, str]:
    """The versions of what computes, and the threads it may use."""
    return {
        "Python": platform.python_version(),
        "torch": torch.__version__,
        "NumPy": np.__version__,
        "system": f"{platform.system()} {platform.machine()}",
        "threads": str(torch.get_num_threads()),
    }


def _unknown() -> Convergence:
    return Convergence("unknown", *[None] * (len(fields(Convergence)) - 1))


def _fingerprint(problem: Problem) -> str:
    """A mark of the data: the same for the same samples, in any batches and precision."""
    marks: dict[tuple[str, int], Any] = defaultdict(hashlib.sha256)  # of each tensor of each split
    for split in ("train", "test") if problem.has_test else ("train",):
        for batch in problem.batches(split):
            for i, t in enumerate(pytree.tree_leaves([batch.inputs, batch.targets])):
                t = torch.view_as_real(t) if t.is_complex() else t
                numbers = t.float() if t.is_floating_point() else t.long()
                marks[split, i].update(numbers.cpu().contiguous().numpy().tobytes())
    return hashlib.sha256(b"".join(mark.digest() for mark in marks.values())).hexdigest()


def _subject(problem: Problem, split: Decomposition | None, title: str | None) -> Subject:
    every = {} if problem.loss.needs_model else layers(problem)
    return Subject(
        title=title or f"{type(problem.model).__name__} model",
        model=str(problem.model),
        parameters=sum(p.numel() for p in problem.params.values()),
        layer=split.layer if split is not None else None,
        layer_shape=(
            tuple(problem.params[every[split.layer].parameter].shape) if split is not None else None
        ),
        layers=tuple(every),
        loss=problem.loss.name,
        unit=problem.loss.unit,
        frozen=sum(p.numel() for p in problem.frozen.values()),
        train_samples=len(problem.train),
        test_samples=len(problem.test) if problem.has_test else 0,
        device=str(problem.device),
        dtype=str(problem.dtype).removeprefix("torch."),
        fingerprint=_fingerprint(problem),
    )
