"""What dual weights reproduce, layer by layer: the outputs of the layer, or of the network."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from lowland.curvature import Layer
from lowland.dual.fit import NoDual, fit
from lowland.dual.output_shifts import output_shifts
from lowland.dual.pairing import Pairs
from lowland.dual.shifts import AskedDual, Paired, Shifts
from lowland.errors import InputError
from lowland.findings import Fit, Solving
from lowland.problem import Problem

# Losses that the activity-level dual may miss, as a share, for the layer to count as one that all
# data passes through.
BOTTLENECK = 1e-3


def solved_for_outputs(
    problem: Problem,
    chosen: Sequence[Layer],
    paired: Paired,
    pairs: Pairs,
    dual: AskedDual,
    *,
    joint: bool = False,
    matched: int,
    seed: int,
    progress: Callable[[str], None] = lambda stage: None,
) -> tuple[Paired, dict[str, str]]:
    """The pairs with output-level shifts of the layers that take them, and why others have none."""
    shifts: dict[str, Shifts] = {}
    reasons: dict[str, str] = {}
    for group in [list(chosen)] if joint else [[layer] for layer in chosen]:
        name = group[0].name
        activity = None if joint else paired.shifts.get(name)
        if dual == "auto" and activity is not None and is_bottleneck(paired, name, pairs):
            shifts[name] = activity
            continue
        try:
            shifts |= output_shifts(
                problem, group, pairs, activity, matched=matched, seed=seed, progress=progress
            )
        except InputError as error:
            reasons |= {layer.name: str(error) for layer in group}
    return replace(paired, shifts=shifts), reasons


def is_bottleneck(paired: Paired, name: str, pairs: Pairs) -> bool:
    """Whether the layer's activity-level dual reproduces the losses."""
    try:
        return fit(paired, name, pairs).loss_defect < BOTTLENECK
    except NoDual:  # which its decomposition will say
        return True


def solving(fitted: Fit, every: Shifts, ratio: Tensor, sharp: Tensor, problem: Problem) -> Fit:
    """The fit with how the shifts were found, if they were sought.

    Args:
        fitted: without it.
        every: the shifts of all pairs.
        ratio: ``g_k = ratio_k dW_k`` of those that have a shift.
        sharp: the sharp directions, (M, n).
        problem: whose weights the shifts are of.
    """
    search = every.search
    if search is None:
        return fitted
    kept = every.kept
    dl = (ratio * every.whole[kept]).new_zeros(len(kept))
    dl[kept] = ratio * every.whole[kept]
    shifts = every.where(kept)
    halves = [_sharp_share(shifts.where(half), dl[kept][half], sharp) for half in _halves(shifts)]
    again = [every.where(search.places), *search.again]
    usable = torch.stack([each.kept for each in again]).all(0)
    again = [each.where(usable) for each in again]
    norms = torch.stack([each.whole.sqrt() for each in again])  # (starts + 1, k)
    few = dl[search.places][usable]
    spread = [_sharp_share(each, few, sharp) for each in again] if len(few) > 1 else [0.0]
    W = problem.params[every.layer.parameter].double().norm()
    return replace(
        fitted,
        solving=Solving(
            matched=search.matched,
            outputs=search.outputs,
            solved=float(every.solved.double().mean()),
            relative_norm=float((shifts.size.sqrt() / W).mean()),
            along=float(search.along[kept].median()),
            half_split=abs(halves[0] - halves[1]),
            starts=len(search.again) if len(few) else 0,
            started=len(few),
            norm_spread=float((norms.amax(0) / norms.amin(0) - 1).mean()) if len(few) else 0.0,
            share_spread=max(spread) - min(spread),
        ),
    )


def _halves(shifts: Shifts) -> tuple[Tensor, Tensor]:
    order = torch.arange(len(shifts), device=shifts.size.device)
    if len(shifts) < 4:
        return order, order
    return order[::2], order[1::2]


def _sharp_share(shifts: Shifts, dl: Tensor, sharp: Tensor) -> float:
    """The part of the gap of some pairs that is in the sharp directions."""
    w = shifts.components(sharp)
    g = w * (dl / shifts.whole).unsqueeze(1)
    part = (g * w).mean(0) - g.mean(0) * w.mean(0)
    whole = dl.mean()
    return float(part.sum() / whole) if whole != 0 else 0.0
