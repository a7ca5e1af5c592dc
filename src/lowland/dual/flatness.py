"""Flatness F_n: how far one may go along a direction before the training loss has grown.

Feng & Tu, PNAS 118 (2021), define the flatness in a direction as the width of the region in which
the loss stays within a factor of e; the duality paper (Fig. S4) takes a factor of 2.
"""

import math

import torch
from torch import Tensor

from lowland.curvature import Layer
from lowland.dual.replay import losses_at_each, shaped
from lowland.problem import Problem

FACTORS = {"flatness": 2.0, "flatness_e": math.e}

# Numbers in flight in the layer's outputs: 64 MiB in float32.
_OUTPUTS = 1 << 24
# A direction along which the loss has not grown at so many times the weight's norm has no width.
_FAR = 1e3
_STEPS = 40
_ACCURACY = 1e-3
# Points on each line at which the loss is evaluated, as a rule: two factors, two sides.
CROSSINGS = 4 * 10


def flatness(problem: Problem, layer: Layer, E: Tensor, curvature: Tensor) -> dict[str, Tensor]:
    """The widths (n,) along the columns of E, by definition; infinite where the loss never grows.

    A loss of 0 has no factor, and so no widths: NaN.

    From the solution outwards, the first crossing is bracketed by doubling steps, starting from
    where a parabola would cross; then the bracket shrinks to 1e-3 of its width. All directions of
    a block move together, and what comes before the layer is never computed again.
    """
    loss = float(problem.losses("train").double().mean())
    if loss <= 0:
        return {name: torch.full_like(curvature, torch.nan) for name in FACTORS}
    parts = []
    block = block_of(problem, layer)
    for some, H in zip(E.split(block, dim=1), curvature.split(block), strict=True):
        line = _Line(problem, layer, some, loss)
        sides = [
            {name: line.crossing(sign, factor, H) for name, factor in FACTORS.items()}
            for sign in (1.0, -1.0)
        ]
        parts.append({name: sides[0][name] + sides[1][name] for name in FACTORS})
    return {name: torch.cat([part[name] for part in parts]) for name in FACTORS}


def block_of(problem: Problem, layer: Layer) -> int:
    """How many directions move together."""
    return max(1, min(64, _OUTPUTS // (len(problem.train) * layer.outputs)))


class _Line:
    """The training loss along several directions at once."""

    def __init__(self, problem: Problem, layer: Layer, E: Tensor, loss: float) -> None:
        self.problem, self.layer, self.loss = problem, layer, loss
        self.directions = E.T  # (b, M)
        self.centre = layer.matrix(problem.params[layer.parameter].double().flatten()).flatten()
        self.far = _FAR * float(self.centre.norm())

    def growth(self, t: Tensor) -> Tensor:
        """``L(w + t_b e_b) / L(w)`` for each direction, (b,)."""
        weights = self.centre + t.unsqueeze(1) * self.directions
        moved = shaped(self.problem, self.layer, weights)
        sums = torch.zeros_like(t)
        with self.problem.measuring(), torch.no_grad():
            for batch in self.problem.batches("train"):
                losses = losses_at_each(self.problem, self.layer.parameter, batch, moved)
                sums += losses.double().sum(1)
        return (sums / len(self.problem.train) / self.loss).nan_to_num(nan=math.inf)

    def crossing(self, sign: float, factor: float, curvature: Tensor) -> Tensor:
        """The distance at which the loss first reaches ``factor`` times its value, (b,)."""
        parabola = (2 * (factor - 1) * self.loss / curvature.abs()).sqrt()
        high = parabola.clamp(max=1e-2 * self.far)
        low = torch.zeros_like(high)
        grown_low, grown = torch.ones_like(high), self.growth(sign * high)
        for _ in range(_STEPS):  # outwards, until every direction has crossed
            short = (grown < factor) & (high < self.far)
            if not short.any():
                break
            low, grown_low = torch.where(short, high, low), torch.where(short, grown, grown_low)
            high = torch.where(short, 2 * high, high)
            grown = torch.where(short, self.growth(sign * high), grown)
        never = grown < factor
        for _ in range(_STEPS):
            if bool((never | (high - low <= _ACCURACY * high)).all()):
                break
            middle = _between(low, high, grown_low, grown, factor)
            now = self.growth(sign * middle)
            inside = now < factor
            low, grown_low = torch.where(inside, middle, low), torch.where(inside, now, grown_low)
            high, grown = torch.where(inside, high, middle), torch.where(inside, grown, now)
        return torch.where(never, math.inf, (low + high) / 2)


def _between(low: Tensor, high: Tensor, grown_low: Tensor, grown: Tensor, factor: float) -> Tensor:
    """Where a power law through both ends would cross, kept off the ends of the bracket."""
    usable = (low > 0) & (grown_low > 1) & grown.isfinite()
    rise = (grown.clamp_min(1 + 1e-12) - 1).log()
    rise_low = torch.where(usable, (grown_low - 1).clamp_min(1e-12).log(), rise - 2)
    ratio = torch.where(usable, high / low.clamp_min(1e-300), 4.0).log()
    share = ((math.log(factor - 1) - rise_low) / (rise - rise_low)).clamp(0.05, 0.95)
    guess = high * (ratio * (share - 1)).exp()
    guess = torch.where(usable, guess, (low + high) / 2)
    # A point just beside the guess on the far side closes the bracket from both ends.
    margin = 0.02 * (high - low)
    return guess.clamp(low + margin, high - margin)
