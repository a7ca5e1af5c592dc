"""Everything at once: measure a problem, explain its gap, save it, show it."""

import hashlib
import shlex
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn
from torch.utils import _pytree as pytree

from lowland import __version__
from lowland.atomic import check_writable
from lowland.checkpoint import weights_bytes
from lowland.curvature.factors import Kind
from lowland.curvature.layers import layer, layers
from lowland.dual import Decomposition, Decompositions, Pairs, duality, pair
from lowland.dual.basis import ALL_DIRECTIONS
from lowland.dual.decomposition import TRUSTED, Gauge
from lowland.errors import InputError
from lowland.measures import Measurements, measure
from lowland.problem import Problem, differentiating
from lowland.results import BALANCED, FILES, Analysis
from lowland.usercode import described

OUTCOME = ("train_loss", "test_loss", "train_error", "test_error", "gap")  # always measured

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
    details: dict[str, Any] | None = None,
    gauge: Gauge = "given",
    basis: Kind = "hessian",
    n_sharp: int | None = None,
    measures: Sequence[str] | None = None,
    widths: int | None = None,
    brief: bool = False,
    progress: Callable[[str], None] = lambda stage: None,
) -> Analysis:
    """Measure a problem and explain its generalisation gap by the duality of its layers.

    Args:
        problem: with test data.
        layer_name: the layer to decompose in full; by default the dense layer before the last
            one, as in Feng & Tu, or the last if there is no other.
        out: a directory to save everything in (see :meth:`Analysis.save`).
        title: how the report calls it.
        details: more for the record: ``data`` and ``checkpoint`` as texts, the ``training`` and
            its ``curves``, the ``seed``.
        gauge: ``"balanced"`` decomposes in the gauge that rescaling hidden units cannot change,
            see :func:`lowland.duality`.
        basis: the matrix whose eigenvectors are the directions, see :func:`lowland.duality`.
        n_sharp: how many directions count as sharp; by default the paper's 10.
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
        check_writable(Path(out), FILES)
    details = dict(details or {})
    training, curves, seed = (details.pop(key, None) for key in ("training", "curves", "seed"))
    chosen = layer(problem, layer_name).name if layer_name is not None else _default_layer(problem)
    for split in ("train", "test"):
        problem.losses(split)  # an error if they are not finite, rather than one in every measure

    progress("measures")
    names = None if measures is None else list(dict.fromkeys([*OUTCOME, *measures]))
    measured = measure(problem, names, progress=progress)
    notes: list[str] = []
    options = {"gauge": gauge, "basis": basis, "n_sharp": n_sharp, "progress": progress}
    found, balanced, every = _decomposed(
        problem, chosen, layer_name is not None, widths, brief, options, notes
    )
    chosen = found.layer if found else chosen
    if training is not None and not training["converged"]:
        notes.append("The training stopped at its epoch limit before reaching its goal.")

    arrays = {}
    if found is not None:
        arrays = {f"duality/{k}": v for k, v in found.arrays().items()}
        arrays |= {f"pairs/{k}": v for k, v in found.per_pair.items()}
    if balanced is not None:
        arrays |= {f"balanced/{k}": getattr(balanced, k) for k in BALANCED}
        arrays |= {f"balanced/{k}": balanced.per_pair[k] for k in ("size", "components")}
    arrays |= {f"training/{name}": np.asarray(curve) for name, curve in (curves or {}).items()}
    results = {
        "format": 2,
        "lowland": __version__,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": shlex.join(["lowland", *sys.argv[1:]]) if _is_cli() else None,
        "subject": {**_subject(problem, chosen, title), **details},
        "outcome": _outcome(measured),
        "training": training,
        "duality": found.to_dict() if found else None,
        "balanced": balanced.to_dict() if balanced else None,
        "layers": every.rows() if every else [],
        "measures": list(measured.to_dict().values()),
        "checks": _checks(found) if found else [],
        "notes": notes,
        "seconds": time.perf_counter() - began,
        "seed": seed,
    }
    analysis = Analysis(results, arrays, weights_bytes(problem.model))
    if out is not None:
        progress("report")
        analysis.save(out)
    return analysis


def _decomposed(
    problem: Problem,
    chosen: str | None,
    asked_for: bool,
    widths: int | None,
    brief: bool,
    options: dict[str, Any],
    notes: list[str],
) -> tuple[Decomposition | None, Decomposition | None, Decompositions | None]:
    """The chosen layer in full, the same balanced, and all layers in short.

    Notes say what could not be done.
    """
    if chosen is None:
        notes.append("No dense layer to decompose the gap over.")
        return None, None, None
    options["progress"]("pairs of test and training samples")
    try:
        pairs = _paired(problem, chosen, notes)
        every = None
        if not brief and sum(at.weight.numel() for at in layers(problem).values()) <= _LAYERS:
            every = duality(problem, pairs=pairs, **options)
            if not asked_for:
                chosen = _useful(every, chosen, notes)
        M = layer(problem, chosen).weight.numel()
        small = M <= ALL_DIRECTIONS and M * (len(problem.train) + len(pairs)) <= _DETAILS
        details = small and not brief
        widths = (details and WIDTHS) if widths is None else widths
        found = duality(
            problem, chosen, pairs=pairs, leading_order=details, widths=widths, **options
        )
    except Exception as error:
        if asked_for:
            raise
        why = error if isinstance(error, InputError) else described(error)
        notes.append(f"The gap was not decomposed: {why}.")
        return None, None, None
    if found.excluded:
        notes.append(
            f"{found.excluded} test sample(s) have no dual shift in layer {chosen!r} (its inputs "
            f"are zero, or equal to the partner's); they carry {found.excluded_gap:.3g} of the gap."
        )
    if pairs.unpaired:
        notes.append(
            f"{pairs.unpaired} test sample(s) have a label that no training sample has, and so no "
            "partner."
        )
    if widths and found.flatness is not None and np.isnan(found.flatness).all():
        notes.append("The training loss is 0, so that no width F_n belongs to a factor of it.")
    if abs(found.target_gap) > TRUSTED * abs(found.paired_gap):
        notes.append(
            "The partners have different targets, which alone change the loss by "
            f"{found.target_gap:.3g} of the paired gap {found.paired_gap:.3g}."
        )
    if brief:
        return found, None, None
    balanced = _balanced(problem, found, pairs, options)
    if every is None:
        notes.append(
            f"The model has more than {_LAYERS:,} weights, so its other layers were not "
            "decomposed; lowland.duality(problem) does that."
        )
        return found, balanced, None
    useless = [name for name, one in every.items() if not one.trusted]
    if useless:
        notes.append(
            f"Layers without a useful dual: {', '.join(map(repr, useless))} (activities or losses "
            f"are missed by more than {TRUSTED:.0%})."
        )
    notes.extend(f"Layer {name!r} was skipped: {why}." for name, why in every.skipped.items())
    return found, balanced, every


def _balanced(
    problem: Problem, found: Decomposition, pairs: Pairs, options: dict[str, Any]
) -> Decomposition | None:
    """What solutions are compared by: the split that no rescaling of hidden units can move."""
    if found.gauge == "balanced" or not found.complete:
        return found if found.gauge == "balanced" else None
    options["progress"]("the same with balanced units")
    how: dict[str, Any] = {"gauge": "balanced", "basis": options["basis"], "n_sharp": found.n_sharp}
    try:
        other = duality(problem, found.layer, pairs=pairs, **how)
    except InputError:  # units that cannot be rescaled
        return None
    same = np.array_equal(other.per_pair["test"], found.per_pair["test"])
    return other if same else None  # rounding may give a pair a shift, or take it away


def _useful(every: Decompositions, chosen: str, notes: list[str]) -> str:
    """The chosen layer or, if data goes around it, the last one that has a useful dual."""
    trusted = [name for name, found in every.items() if found.trusted]
    if chosen in trusted or not trusted:
        return chosen
    notes.append(f"Layer {chosen!r} has no useful dual, so {trusted[-1]!r} was decomposed.")
    return trusted[-1]


def _paired(problem: Problem, chosen: str, notes: list[str]) -> Pairs:
    """By distance of inputs or, where these are no points in space, of what the layer sees."""
    try:
        return pair(problem)
    except InputError as error:
        pairs = pair(problem, space=chosen)
        notes.append(f"Samples were paired by what layer {chosen!r} sees: {error}.")
        return pairs


def _fingerprint(problem: Problem) -> str:
    """A mark of the data: the same for the same samples, in any batches and precision."""
    marks: dict[tuple[str, int], Any] = defaultdict(hashlib.sha256)  # of each tensor of each split
    for split in ("train", "test"):
        for batch in problem.batches(split):
            for i, t in enumerate(pytree.tree_leaves([batch.inputs, batch.targets])):
                numbers = t.float() if t.is_floating_point() else t.long()
                marks[split, i].update(numbers.cpu().contiguous().numpy().tobytes())
    return hashlib.sha256(b"".join(mark.digest() for mark in marks.values())).hexdigest()


def _is_cli() -> bool:
    return Path(sys.argv[0]).name == "lowland"


def _default_layer(problem: Problem) -> str | None:
    dense = [at for at in layers(problem).values() if isinstance(at.module, nn.Linear)]
    small = [at for at in dense if at.weight.numel() <= ALL_DIRECTIONS] or dense
    return small[-2].name if len(small) > 1 else small[0].name if small else None


def _subject(problem: Problem, chosen: str | None, title: str | None) -> dict[str, Any]:
    known = layers(problem)
    return {
        "title": title or f"{type(problem.model).__name__} model",
        "model": str(problem.model),
        "parameters": sum(p.numel() for p in problem.params.values()),
        "layer": chosen,
        "layer_shape": list(known[chosen].weight.shape) if chosen is not None else None,
        "layers": list(known),
        "loss": problem.loss.name,
        "unit": problem.loss.unit,
        "train_samples": len(problem.train),
        "test_samples": len(problem.test),
        "device": str(problem.device),
        "dtype": str(problem.dtype).removeprefix("torch."),
        "fingerprint": _fingerprint(problem),
        "data": None,
        "checkpoint": None,
    }


def _outcome(measured: Measurements) -> dict[str, float | None]:
    return {name: measured[name].value for name in OUTCOME}


def _checks(found: Decomposition) -> list[dict[str, Any]]:
    """The identities that the decomposition must satisfy, with what came out."""
    scale = max(abs(found.paired_gap), 1e-300)
    exact = found.positions == 1
    rows = [
        (
            "The dual weights reproduce the activities",
            found.duality_residual if exact else found.mean_residual,
            RESIDUAL_LIMIT if exact else TRUSTED,
            f"The {'largest' if exact else 'mean'} |dW x - W dx| / |W dx| over pairs (Eq. 2).",
        ),
        (
            "The dual weights reproduce the losses",
            found.loss_defect,
            DEFECT_LIMIT if exact else TRUSTED,
            "The mean |l(w + dW, x) - l(w, x')| (Eq. 1), run through the model, relative to the "
            "mean |dl|. A path around the layer, as in a residual network, breaks it.",
        ),
    ]
    if found.complete:  # else both hold by definition
        eq9 = (
            "Eq. 9 equals the paired gap",
            abs(found.eq9 - found.paired_gap) / scale,
            EQ9_LIMIT,
            "The sum over directions is the gap again, relative to the gap; only rounding remains.",
        )
        eq12 = (
            "Eq. 12 holds both ways",
            abs(found.total_w - found.total_w_data) / float(found.per_pair["size"].mean()),
            EQ9_LIMIT,
            "The dual variance summed over directions is that of weights and data together, "
            "relative to the mean square of the dual shifts.",
        )
        rows = [eq9, *rows, eq12]
    else:
        sharpest = (
            "No direction that was not computed is as sharp",
            found.unseen_sigma_g / max(float(found.sigma_g[found.n_sharp - 1]), 1e-300),
            1.0,
            "The largest sigma_g that a direction beside those computed can have, over the least "
            "of the sharp ones: above 1 the sharp part may miss some (directions= computes more).",
        )
        rows.append(sharpest)
    return [
        {"name": name, "value": value, "limit": limit, "passed": value <= limit, "meaning": meaning}
        for name, value, limit, meaning in rows
    ]
