"""Flatness F_n: how far one may go along a direction before the training loss has grown.

Feng & Tu, PNAS 118 (2021), define the flatness in a direction as the width of the region in which
the loss stays within a factor of e; the duality paper (Fig. S4) takes a factor of 2.
"""

import itertools
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
LINES = 2 * len(FACTORS)  # of each direction: to both sides, for each factor
CROSSING = 10  # points on a line at which the loss is evaluated, as a rule
_MOST = 256  # lines at once


def flatness(problem: Problem, layer: Layer, E: Tensor, curvature: Tensor) -> dict[str, Tensor]:
    """The widths (n,) along the columns of E, by definition; infinite where the loss never grows.

    A loss of 0 has no factor, and so no widths: NaN.

    From the solution outwards, the first crossing is bracketed by doubling steps, starting from
    where a parabola would cross; then the bracket shrinks to 1e-3 of its width. Many lines go on
    together, so that what comes before the layer is computed once for a step of all of them.
    """
    loss = float(problem.losses("train").double().mean())
    if loss <= 0:
        return {name: torch.full_like(curvature, torch.nan) for name in FACTORS}
    n = len(curvature)
    choices = (range(n), (1, -1), FACTORS.values())
    every = torch.tensor(list(itertools.product(*choices))).to(E)  # a row for each line
    distances = torch.cat(
        [
            _Lines(problem, layer, E, loss, *lines.unbind(1)).crossings(curvature)
            for lines in every.split(lines_of(problem, layer))
        ]
    )
    widths = distances.view(n, 2, len(FACTORS)).sum(1)
    return dict(zip(FACTORS, widths.unbind(1), strict=True))


def lines_of(problem: Problem, layer: Layer) -> int:
    """How many lines go on together."""
    return max(1, min(_MOST, _OUTPUTS // (len(problem.train) * max(1, layer.outputs))))


class _Lines:
    """The training loss along lines: the numbers of their directions, their signs and factors."""

    def __init__(
        self,
        problem: Problem,
        layer: Layer,
        E: Tensor,
        loss: float,
        places: Tensor,
        signs: Tensor,
        factors: Tensor,
    ) -> None:
        self.problem, self.layer, self.loss = problem, layer, loss
        self.places, self.factors = places.long(), factors
        self.directions = E.T[self.places] * signs.unsqueeze(1)  # (b, M)
        self.centre = layer.matrix(problem.params[layer.parameter].double().flatten()).flatten()
        self.far = _FAR * float(self.centre.norm())

    def growth(self, t: Tensor, some: Tensor, before: Tensor) -> Tensor:
        """``L(w + t_b e_b) / L(w)`` on some of the lines, and ``before`` on the others, (b,)."""
        weights = self.centre + t[some].unsqueeze(1) * self.directions[some]
        moved = shaped(self.problem, self.layer, weights)
        sums = torch.zeros_like(t[some])
        with self.problem.measuring(), torch.no_grad():
            for batch in self.problem.batches("train"):
                losses = losses_at_each(self.problem, self.layer.parameter, batch, moved)
                sums += losses.double().sum(1)
        grown = before.clone()
        grown[some] = (sums / len(self.problem.train) / self.loss).nan_to_num(nan=math.inf)
        return grown

    def crossings(self, curvature: Tensor) -> Tensor:
        """The distances at which the loss first reaches ``factors`` times its value, (b,)."""
        factors = self.factors
        parabola = (2 * (factors - 1) * self.loss / curvature[self.places].abs()).sqrt()
        high = parabola.clamp(max=1e-2 * self.far)
        low, grown_low = torch.zeros_like(high), torch.ones_like(high)
        grown = self.growth(high, torch.ones_like(high, dtype=torch.bool), grown_low)
        for _ in range(_STEPS):  # outwards, until every line has crossed
            short = (grown < factors) & (high < self.far)
            if not short.any():
                break
            low, grown_low = torch.where(short, high, low), torch.where(short, grown, grown_low)
            high = torch.where(short, 2 * high, high)
            grown = self.growth(high, short, grown)
        never = grown < factors
        for _ in range(_STEPS):
            wide = ~never & (high - low > _ACCURACY * high)
            if not wide.any():
                break
            middle = _between(low, high, grown_low, grown, factors)
            now = self.growth(middle, wide, grown)
            inside, outside = wide & (now < factors), wide & ~(now < factors)
            low, grown_low = torch.where(inside, middle, low), torch.where(inside, now, grown_low)
            high, grown = torch.where(outside, middle, high), torch.where(outside, now, grown)
        return torch.where(never, math.inf, (low + high) / 2)


def _between(
    low: Tensor, high: Tensor, grown_low: Tensor, grown: Tensor, factors: Tensor
) -> Tensor:
    """Where a power law through both ends would cross, kept off the ends of the bracket."""
    usable = (low > 0) & (grown_low > 1) & grown.isfinite()
    rise = (grown.clamp_min(1 + 1e-12) - 1).log()
    rise_low = torch.where(usable, (grown_low - 1).clamp_min(1e-12).log(), rise - 2)
    ratio = torch.where(usable, high / low.clamp_min(1e-300), 4.0).log()
    share = (((factors - 1).log() - rise_low) / (rise - rise_low)).clamp(0.05, 0.95)
    guess = high * (ratio * (share - 1)).exp()
    guess = torch.where(usable, guess, (low + high) / 2)
    # A point just beside the guess on the far side closes the bracket from both ends.
    margin = 0.02 * (high - low)
    return guess.clamp(low + margin, high - margin)
