"""Everything at once: measure a problem, explain its gap, save it, show it."""

import shlex
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from lowland import __version__
from lowland.atomic import check_writable
from lowland.checkpoint import weights_bytes
from lowland.curvature.exact import DENSE_WEIGHTS
from lowland.curvature.layers import layer, layers
from lowland.dual import Decomposition, duality
from lowland.errors import InputError
from lowland.measures import Measurements, measure
from lowland.problem import Problem
from lowland.results import FILES, Analysis

EQ9_LIMIT = 1e-10  # Eq. 9 is an identity: in float64 only rounding may remain
RESIDUAL_LIMIT = 1e-10
DEFECT_LIMIT = 1e-3  # above it the loss sees the data by another path than the layer


def analyze(
    problem: Problem,
    layer_name: str | None = None,
    *,
    out: str | Path | None = None,
    title: str | None = None,
    details: dict[str, Any] | None = None,
    progress: Callable[[str], None] = lambda stage: None,
) -> Analysis:
    """Measure a problem and explain its generalisation gap by the duality of one dense layer.

    Args:
        problem: with test data.
        layer_name: the layer to decompose; by default the dense layer before the last one, as in
            Feng & Tu, or the last if there is no other.
        out: a directory to save everything in (see :meth:`Analysis.save`).
        title: how the report calls it.
        details: more for the record: ``data`` and ``checkpoint`` as texts, the ``training`` and
            its ``curve``, the ``seed``.
        progress: called with the name of each stage as it begins.
    """
    began = time.perf_counter()
    if not problem.has_test:
        raise InputError("the gap needs test data; pass test=(inputs, targets) to Problem")
    if out is not None:
        check_writable(Path(out), FILES)
    details = dict(details or {})
    training, curve, seed = (details.pop(key, None) for key in ("training", "curve", "seed"))
    chosen = layer(problem, layer_name).name if layer_name is not None else _default_layer(problem)
    _check_data(problem)

    progress("measures")
    measured = measure(problem)
    found: Decomposition | None = None
    notes: list[str] = []
    if chosen is None:
        notes.append(
            f"No dense layer of up to {DENSE_WEIGHTS:,} weights to decompose the gap over."
        )
    else:
        progress(f"duality of layer {chosen!r}")
        try:
            found = duality(problem, chosen)
        except InputError as error:
            if layer_name is not None:
                raise
            notes.append(f"The gap was not decomposed: {error}.")
    if found is not None and found.excluded:
        notes.append(
            f"{found.excluded} test sample(s) have no dual shift in layer {chosen!r} (its inputs "
            f"are zero, or equal to the partner's); they carry {found.excluded_gap:.3g} of the gap."
        )
    if training is not None and not training["converged"]:
        notes.append("The training stopped at its epoch limit before reaching its goal.")

    arrays = {f"duality/{k}": v for k, v in found.arrays().items()} if found else {}
    if curve is not None:
        arrays["training/loss"] = np.asarray(curve)
    results = {
        "format": 1,
        "lowland": __version__,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": shlex.join(["lowland", *sys.argv[1:]]) if _is_cli() else None,
        "subject": {**_subject(problem, chosen, title), **details},
        "outcome": _outcome(measured),
        "training": training,
        "duality": found.to_dict() if found else None,
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


def _check_data(problem: Problem) -> None:
    """Raise for what no measure could make sense of, rather than note it at every one of them."""
    for split in ("train", "test"):
        problem.losses(split)  # an error if they are not finite
    labels, wanted = problem.train.targets, problem.test.targets
    if problem.loss.classes and labels.ndim == 1 and not labels.is_floating_point():
        lonely = sorted(set(wanted.unique().tolist()) - set(labels.unique().tolist()))
        if lonely:
            raise InputError(
                f"test samples have label {', '.join(map(str, lonely[:5]))}, which no training "
                "sample has: they have no partner; remove them or add training samples of that "
                "label"
            )


def _is_cli() -> bool:
    return Path(sys.argv[0]).name == "lowland"


def _default_layer(problem: Problem) -> str | None:
    dense = [
        at.name
        for at in layers(problem).values()
        if isinstance(at.module, nn.Linear) and at.weight.numel() <= DENSE_WEIGHTS
    ]
    return dense[-2] if len(dense) > 1 else dense[0] if dense else None


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
        "train_samples": len(problem.train),
        "test_samples": len(problem.test),
        "device": str(problem.device),
        "dtype": str(problem.dtype).removeprefix("torch."),
        "data": None,
        "checkpoint": None,
    }


def _outcome(measured: Measurements) -> dict[str, float | None]:
    names = ("train_loss", "test_loss", "train_error", "test_error", "gap")
    return {name: measured[name].value for name in names}


def _checks(found: Decomposition) -> list[dict[str, Any]]:
    """The identities that the decomposition must satisfy, with what came out."""
    scale = max(abs(found.paired_gap), 1e-300)
    rows = [
        (
            "Eq. 9 equals the paired gap",
            abs(found.eq9 - found.paired_gap) / scale,
            EQ9_LIMIT,
            "The sum over directions is the gap again, relative to the gap; only rounding remains.",
        ),
        (
            "The dual weights reproduce the activities",
            found.duality_residual,
            RESIDUAL_LIMIT,
            "The largest |dW x - W dx| / |W dx| over pairs (Eq. 2).",
        ),
        (
            "The dual weights reproduce the losses",
            found.loss_defect,
            DEFECT_LIMIT,
            "The mean |l(w + dW, x) - l(w, x')| (Eq. 1), run through the model, relative to the "
            "mean |dl|. A path around the layer, as in a residual network, breaks it.",
        ),
    ]
    return [
        {"name": name, "value": value, "limit": limit, "passed": value <= limit, "meaning": meaning}
        for name, value, limit, meaning in rows
    ]
