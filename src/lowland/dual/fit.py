"""How well a layer's dual weights stand for the data."""

import torch
from torch import Tensor

from lowland.dual.pairing import Pairs
from lowland.dual.shifts import Paired, Shifts
from lowland.errors import InputError
from lowland.findings import Fit


class NoDual(InputError):
    """No pair has a dual shift in this layer."""


def fit(paired: Paired, name: str, pairs: Pairs) -> Fit:
    """How well one layer's dual weights stand for the data; an error if no pair has any."""
    every, test_loss = paired.shifts[name], paired.test_loss
    kept = every.kept
    if not kept.any() and not every.solved.all():
        raise NoDual(
            f"the outputs cannot be reached through layer {name!r}: no change of its weight gives "
            "one sample of a pair the outputs of the other"
        )
    if not kept.any():
        why = "its inputs are all zero, or equal to their partners'"
        if every.search is not None:
            why = "the model's outputs are equal to their partners'"
        raise NoDual(f"no pair has a dual shift in layer {name!r}: {why}")
    shifts = every.where(kept)
    counted = torch.ones_like(kept) if every.search is not None else kept
    return Fit(
        pairs=int(kept.sum()),
        excluded=int((~kept).sum()),
        excluded_gap=float((test_loss - paired.train_loss)[~kept].sum() / len(kept)),
        excluded_share=_share(paired.dl[~kept].sum().abs(), paired.dl.sum().abs()),
        degenerate=_degenerate(every, pairs),
        positions=shifts.positions,
        rank=float(shifts.rank.double().mean()),
        full_rank=shifts.full_rank,
        duality_residual=float(shifts.residual.max()),
        mean_residual=float(shifts.residual.mean()),
        loss_defect=_share(
            (every.dual_loss - test_loss)[counted].abs().mean(), paired.dl[counted].abs().mean()
        ),
    )


def _share(part: Tensor, whole: Tensor) -> float:
    """part / whole, and 0 where both are 0: no difference is no defect."""
    return float(part / whole) if whole > 0 else (0.0 if part == 0 else float("inf"))


def _degenerate(shifts: Shifts, pairs: Pairs) -> dict[str, int]:
    gone = shifts.whole == 0
    still = gone & ~shifts.dead & ~shifts.same
    dependent = int(((shifts.rank < shifts.full_rank) & ~shifts.dead).sum())
    counts = {
        "inputs of the layer are all zero": int((gone & shifts.dead).sum()),
        "test sample equal to its partner": int((gone & ~shifts.dead & shifts.same).sum()),
        "no change of the layer's outputs": int(still.sum()),
        "no partner of the same label": pairs.unpaired,
    }
    if shifts.search is None:
        return {**counts, "positions that are not independent": dependent}
    return {
        **counts,
        "outputs that were not reached": int((~shifts.solved).sum()),
        "outputs that do not move independently": dependent,
    }
