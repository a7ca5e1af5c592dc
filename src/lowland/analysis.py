"""Everything at once: measure a problem, explain its gap, save it, show it."""

import hashlib
import math
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from lowland import __version__
from lowland.atomic import check_writable
from lowland.checkpoint import weights_bytes
from lowland.curvature import (
    Kind,
    layer,
    layers,
)
from lowland.dual import ALL_DIRECTIONS, Choice, Pairs, Rule, choose, duality, layers_with_dual
from lowland.errors import InputError
from lowland.findings import (
    TRUSTED,
    Check,
    Convergence,
    Decomposition,
    Gauge,
    LayerRow,
    Origin,
    Outcome,
    Results,
    Subject,
)
from lowland.measures import convergence, measure, sharing
from lowland.problem import Problem, differentiating
from lowland.results import Analysis
from lowland.usercode import described

OUTCOME = tuple(field.name for field in fields(Outcome))  # measures that are always computed

EQ9_LIMIT = 1e-10  # Eq. 9 is an identity: in float64 only rounding may remain
RESIDUAL_LIMIT = 1e-10  # where each sample shows the layer one vector, and the dual is exact
DEFECT_LIMIT = 1e-3  # above it the loss sees the data by another path than the layer

WIDTHS = 100  # directions whose width is computed: enough for a picture
# Directions x samples up to which widths and leading-order terms are computed: some seconds.
_DETAILS = 5_000_000
# Weights of the whole model up to which every layer is decomposed.
_LAYERS = 1_000_000


@differentiating()
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
    widths: int | None = None,
    brief: bool = False,
    progress: Callable[[str], None] = lambda stage: None,
) -> Analysis:
    """Measure a problem and explain its generalisation gap by the duality of its layers.

    Args:
        problem: with test data.
        layer_name: the layer to decompose in full; by default the dense layer before the last
            one, as in Feng & Tu, of those whose directions can all be computed, or the only one;
            if data goes around it, the last layer whose dual weights stand for the data.
        out: a directory to save everything in (see :meth:`Analysis.save`).
        title: how the report calls it.
        origin: for the record, where model and data came from.
        gauge: ``"balanced"`` decomposes in the gauge that rescaling hidden units cannot change,
            see :func:`lowland.duality`.
        basis: the matrix whose eigenvectors are the directions, see :func:`lowland.duality`.
        n_sharp: how many directions count as sharp, see :func:`lowland.duality`.
        measures: which to compute beside the outcome; by default all.
        widths: directions whose widths F_n are computed; by default 100, or none if brief.
        brief: leave out what only a reader of the report wants: the other layers, widths and
            leading-order terms.
        progress: called with the name of each stage as it begins.
    """
    began = time.perf_counter()
    if not problem.has_test:
        raise InputError("the gap needs test data; pass test=(inputs, targets) to Problem")
    if out is not None:
        check_writable(Path(out))
    if layer_name is not None:
        layer(problem, layer_name)  # an error if there is none of that name
    for split in ("train", "test"):
        problem.losses(split)  # an error if they are not finite, rather than one in every measure

    how = _How(gauge, basis, n_sharp, widths, brief, progress)
    try:
        explained = _explained(problem, layer_name, how)
    except Exception as error:  # of the user's code, or a defect of ours: the measures stand
        if layer_name is not None:
            raise
        why = error if isinstance(error, InputError) else described(error)
        explained = _Explained(notes=[f"The gap was not decomposed: {why}."])
    progress("measures")
    names = None if measures is None else list(dict.fromkeys([*OUTCOME, *measures]))
    origin = origin or Origin()
    with sharing():
        measured = measure(problem, names, decomposition=explained.duality, progress=progress)
        outcome = Outcome(**{name: measured[name].value for name in OUTCOME})
        reached = _convergence(problem, outcome, explained, origin)
    if origin.training is not None and not origin.training.converged:
        explained.notes.append("The training stopped at its epoch limit before reaching its goal.")
    results = Results(
        lowland=__version__,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        seconds=time.perf_counter() - began,
        origin=origin,
        subject=_subject(problem, explained.duality, title),
        outcome=outcome,
        convergence=reached,
        duality=explained.duality,
        balanced=explained.balanced,
        layers={},
        layer_rows=explained.layer_rows,
        measures=measured.rows(),
        checks=explained.checks,
        notes=(*problem.notes, *explained.notes),
    )
    analysis = Analysis(results, weights_bytes(problem.model))
    if out is not None:
        progress("report")
        analysis.save(out)
    return analysis


@dataclass(frozen=True)
class _How:
    """What the caller wants of the decomposition."""

    gauge: Gauge
    basis: Kind
    n_sharp: int | Rule
    widths: int | None
    brief: bool
    progress: Callable[[str], None]


@dataclass
class _Explained:
    """The chosen layer in full, the same balanced, all layers in short, and what to note."""

    notes: list[str]
    duality: Decomposition | None = None
    balanced: Decomposition | None = None
    layer_rows: tuple[LayerRow, ...] = ()
    checks: tuple[Check, ...] = ()


def _explained(problem: Problem, layer_name: str | None, how: _How) -> _Explained:
    """Each layer is decomposed once, and the chosen one once more with balanced units."""
    how.progress("pairs of test and training samples")
    choice = choose(problem, layer_name)
    M = layer(problem, choice.layer).size
    is_small = M <= ALL_DIRECTIONS
    in_detail = (
        not how.brief and is_small and M * (len(problem.train) + len(choice.pairs)) <= _DETAILS
    )
    widths = (WIDTHS if in_detail else 0) if how.widths is None else how.widths
    split = duality(
        problem,
        choice.layer,
        pairs=choice.pairs,
        gauge=how.gauge,
        basis=how.basis,
        n_sharp=how.n_sharp,
        leading_order=in_detail,
        widths=widths,
        progress=how.progress,
    )
    notes = [*choice.notes, *_notes(split, choice)]
    checks = (*_checks(split), _agreement(problem, choice.pairs))
    if how.brief:
        return _Explained(notes, split, checks=checks)
    rows = _other_layers(problem, split, choice, how, notes)
    return _Explained(notes, split, _balanced(problem, split, choice, how), rows, checks)


def _notes(split: Decomposition, choice: Choice) -> list[str]:
    """What a reader of the decomposition should know."""
    notes = []
    totals, fit = split.totals, split.fit
    if fit.excluded:
        notes.append(
            f"{fit.excluded} test sample(s) have no dual shift in layer {split.layer!r} (its "
            "inputs are zero, or equal to the partner's); they carry "
            f"{fit.excluded_gap:.3g} of the gap."
        )
    if choice.pairs.unpaired:
        notes.append(
            f"{choice.pairs.unpaired} test sample(s) have a label that no training sample has, "
            "and so no partner."
        )
    if split.widths is not None and np.isnan(split.widths.flatness).all():
        notes.append("The training loss is 0, so that no width F_n belongs to a factor of it.")
    if abs(totals.target_gap) > TRUSTED * abs(totals.paired_gap):
        notes.append(
            "The partners have different targets, which alone change the loss by "
            f"{totals.target_gap:.3g}, beside the paired gap of {totals.paired_gap:.3g}: no "
            "weight stands for that."
        )
    return notes


def _other_layers(
    problem: Problem, split: Decomposition, choice: Choice, how: _How, notes: list[str]
) -> tuple[LayerRow, ...]:
    """A row for each layer in the order of the model, the others decomposed in one pass."""
    every = layers(problem)
    if sum(at.size for at in every.values()) > _LAYERS:
        notes.append(
            f"The model has more than {_LAYERS:,} weights, so its other layers were not "
            "decomposed; lowland.duality(problem) does that."
        )
        return ()
    names = list(layers_with_dual(problem))
    splits = {split.layer: split}
    if others := [name for name in names if name != split.layer]:
        try:
            decomposed = duality(
                problem,
                others,
                pairs=choice.pairs,
                gauge=how.gauge,
                basis=how.basis,
                n_sharp=how.n_sharp,
                progress=how.progress,
            )
        except InputError as error:
            notes.append(f"The other layers were not decomposed: {error}.")
        else:
            splits |= decomposed
            notes.extend(
                f"Layer {name!r} was skipped: {why}." for name, why in decomposed.skipped.items()
            )
    rows = tuple(splits[name].row for name in names if name in splits)
    if useless := [row.layer for row in rows if not row.trusted]:
        notes.append(
            f"Layers without a useful dual: {', '.join(map(repr, useless))} (activities or losses "
            f"are missed by more than {TRUSTED:.0%})."
        )
    return rows


def _balanced(
    problem: Problem, split: Decomposition, choice: Choice, how: _How
) -> Decomposition | None:
    """What solutions are compared by: the split that no rescaling of hidden units can move."""
    if split.setting.gauge == "balanced" or not split.complete:
        return None
    how.progress("the same with balanced units")
    try:
        balanced = duality(
            problem,
            split.layer,
            pairs=choice.pairs,
            gauge="balanced",
            basis=how.basis,
            n_sharp=split.n_sharp,
        )
    except InputError:  # units that cannot be rescaled
        return None
    assert balanced.per_pair is not None
    assert split.per_pair is not None
    # Rounding may give a pair a shift, or take it away.
    if not np.array_equal(balanced.per_pair.test, split.per_pair.test):
        return None
    rule = split.setting.n_sharp_rule  # of the number that both have
    return replace(balanced, setting=replace(balanced.setting, n_sharp_rule=rule))


def _convergence(
    problem: Problem, outcome: Outcome, explained: _Explained, origin: Origin
) -> Convergence:
    """Whether this is a minimum; unknown, with a note, where that could not be computed."""
    assert outcome.train_loss is not None  # the losses are finite, or there would be no analysis
    try:
        return convergence(
            problem, outcome.train_loss, outcome.train_error, explained.duality, origin.training
        )
    except Exception as error:  # of the user's code, or a defect of ours: the rest stands
        why = error if isinstance(error, InputError) else described(error)
        explained.notes.append(f"Whether this is a minimum was not computed: {why}.")
        return Convergence("unknown", *[None] * (len(fields(Convergence)) - 1))


def _fingerprint(problem: Problem) -> str:
    """A mark of the data: the same for the same samples, in any batches and precision."""
    marks: dict[tuple[str, int], Any] = defaultdict(hashlib.sha256)  # of each tensor of each split
    for split in ("train", "test"):
        for batch in problem.batches(split):
            for i, t in enumerate(pytree.tree_leaves([batch.inputs, batch.targets])):
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
        test_samples=len(problem.test),
        device=str(problem.device),
        dtype=str(problem.dtype).removeprefix("torch."),
        fingerprint=_fingerprint(problem),
    )


def _checks(split: Decomposition) -> tuple[Check, ...]:
    """The identities that the decomposition must satisfy, with what came out."""
    totals, fit = split.totals, split.fit
    exact = fit.positions == 1
    checks = [
        _check(
            "The dual weights reproduce the activities",
            fit.duality_residual if exact else fit.mean_residual,
            RESIDUAL_LIMIT if exact else TRUSTED,
            f"The {'largest' if exact else 'mean'} |dW x - W dx| / |W dx| over pairs (Eq. 2).",
        ),
        _check(
            "The dual weights reproduce the losses",
            fit.loss_defect,
            DEFECT_LIMIT if exact else TRUSTED,
            "The mean |l(w + dW, x) - l(w, x')| (Eq. 1), run through the model, relative to the "
            "mean |dl|. A path around the layer, as in a residual network, breaks it.",
        ),
    ]
    if not split.complete:  # Eq. 9 and 12 hold by definition
        unseen = _check(
            "No direction that was not computed is as sharp",
            totals.unseen_sigma_g / max(float(split.sigma_g[split.n_sharp - 1]), 1e-300),
            1.0,
            "The largest sigma_g that a direction beside those computed can have, over the least "
            "of the sharp ones: above 1 the sharp part may miss some (directions= computes more).",
        )
        return (*checks, unseen)
    assert split.per_pair is not None
    eq9 = _check(
        "Eq. 9 equals the paired gap",
        abs(totals.eq9 - totals.paired_gap) / max(abs(totals.paired_gap), 1e-300),
        EQ9_LIMIT,
        "The sum over directions is the gap again, relative to the gap; only rounding remains.",
    )
    eq12 = _check(
        "Eq. 12 holds both ways",
        abs(totals.total_w - totals.total_w_data) / float(split.per_pair.size.mean()),
        EQ9_LIMIT,
        "The dual variance summed over directions is that of weights and data together, "
        "relative to the mean square of the dual shifts.",
    )
    return (eq9, *checks, eq12)


def _agreement(problem: Problem, pairs: Pairs) -> Check:
    """Whether the gap of the paired samples is that of all samples.

    Each side's mean loss over the pairs is a weighted mean, sum_i w_i l_i. If the weights had
    nothing to do with the losses, it would differ from the plain mean over n samples by chance:
    with the variance of l times sum_i (w_i - 1/n)^2.
    """
    means, plain, variance = {}, {}, 0.0
    for split, chosen in (("train", pairs.train), ("test", pairs.test)):
        losses = problem.losses(split).double().cpu()
        weights = torch.bincount(chosen, minlength=len(losses)).double() / len(pairs)
        means[split], plain[split] = float(weights @ losses), float(losses.mean())
        apart = float((weights - 1 / len(losses)).square().sum())
        variance += float(losses.var(correction=0)) * apart
    gap, paired = (of["test"] - of["train"] for of in (plain, means))
    return _check(
        "The pairs stand for all samples",
        abs(paired - gap),
        max(TRUSTED * abs(gap), 2 * math.sqrt(variance)),
        f"The gap of all samples is {gap:.3g}, that of the paired ones {paired:.3g}. They should "
        f"differ by less than {TRUSTED:.0%} of the gap, or two standard errors of a choice by "
        "chance: otherwise the partners are not typical of the training data, or many test samples "
        "have none, and the parts are those of another gap.",
    )


def _check(name: str, value: float, limit: float, meaning: str) -> Check:
    return Check(name, value, limit, value <= limit, meaning)
