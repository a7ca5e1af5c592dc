"""How well a layer's dual weights stand for the data."""

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
    kept = every.size > 0
    if not kept.any():
        raise NoDual(
            f"no pair has a dual shift in layer {name!r}: its inputs are all zero, or equal to "
            "their partners'"
        )
    shifts = every.where(kept)
    return Fit(
        pairs=int(kept.sum()),
        excluded=int((~kept).sum()),
        excluded_gap=float((test_loss - paired.train_loss)[~kept].sum() / len(kept)),
        degenerate=_degenerate(every, pairs),
        positions=shifts.positions,
        rank=float(shifts.rank.double().mean()),
        full_rank=shifts.full_rank,
        duality_residual=float(shifts.residual.max()),
        mean_residual=float(shifts.residual.mean()),
        loss_defect=_share(
            (shifts.dual_loss - test_loss[kept]).abs().mean(), paired.dl[kept].abs().mean()
        ),
    )


def _share(part: Tensor, whole: Tensor) -> float:
    """part / whole, and 0 where both are 0: no difference is no defect."""
    return float(part / whole) if whole > 0 else (0.0 if part == 0 else float("inf"))


def _degenerate(shifts: Shifts, pairs: Pairs) -> dict[str, int]:
    gone = shifts.size == 0
    still = gone & ~shifts.dead & ~shifts.same
    return {
        "inputs of the layer are all zero": int((gone & shifts.dead).sum()),
        "test sample equal to its partner": int((gone & ~shifts.dead & shifts.same).sum()),
        "no change of the layer's outputs": int(still.sum()),
        "no partner of the same label": pairs.unpaired,
        "positions that are not independent": int(
            ((shifts.rank < shifts.full_rank) & ~shifts.dead).sum()
        ),
    }
