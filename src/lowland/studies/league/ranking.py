"""How well a measure ranks models by their gap, over a grid of settings.

All statistics but the first two look at pairs of models, and at the signs of their differences
alone: whether the one with the larger measure has the larger gap. A pair is worth 1 if it does, -1
if it has the smaller one, and 0 where either ties, so that no scale of a measure matters.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from scipy.stats import rankdata

RESAMPLES = 500
LEVEL = 0.95
# Pairs of models below which two values of a setting are no environment.
_FEW = 5
# Settings that information is conditioned on, at most (Jiang et al. 2020).
_GIVEN = 2

Vector = np.ndarray


@dataclass(frozen=True)
class Interval:
    """A statistic with its interval by bootstrap over models; NaN where it is not defined."""

    value: float
    low: float
    high: float


_UNDEFINED = Interval(math.nan, math.nan, math.nan)


@dataclass(frozen=True)
class Rank:
    """What one measure is worth as a predictor of the gap."""

    models: int  # with a value
    pearson: Interval
    spearman: Interval
    kendall: Interval
    granulated: Interval
    by_setting: dict[str, float]  # the granulated statistic along each setting
    worst: float  # over environments: two values of one setting
    worst_where: str  # in words
    information: float  # the share of the gap's order that no two settings tell


@dataclass(frozen=True)
class Models:
    """Trained models: their gaps, (n,), and what they were trained with, n values of each setting.

    Pairs that differ in one setting alone tell of that setting (Jiang et al. 2020, Sec. 4): the
    mean over them is the granulated Kendall coefficient along it, and the mean of these over
    settings the granulated one. Settings that realisations differ in, such as a seed, are matched
    like the others, but tell nothing by themselves.
    """

    gaps: Vector
    settings: Mapping[str, Sequence[Any]]
    realisation: str = "seed"

    @property
    def names(self) -> list[str]:
        """The settings that differ between models, without the realisation."""
        return [n for n, values in self._codes.items() if n != self.realisation and values.max()]

    def rank(self, values: Vector, *, seed: int = 0) -> Rank:
        """Judge a measure by its value for each model; those without one (NaN) are left out."""
        chosen = np.isfinite(values) & np.isfinite(self.gaps)
        if not chosen.all():
            settings = {
                name: [v for v, ok in zip(all_of, chosen, strict=True) if ok]
                for name, all_of in self.settings.items()
            }
            return Models(self.gaps[chosen], settings, self.realisation).rank(
                values[chosen], seed=seed
            )
        if len(values) < 2:
            none = _UNDEFINED
            return Rank(len(values), none, none, none, none, {}, math.nan, "", math.nan)
        signs = _signs(values) * _signs(self.gaps)
        # (resamples, models): how often each model was drawn; first of all, once each.
        n = len(values)
        drawn = np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), RESAMPLES)
        weights = np.vstack([np.ones(n), drawn])
        everywhere = ~np.eye(n, dtype=bool)
        along = {name: _mean_over(signs, self._alone[name], weights) for name in self.names}
        rows = np.array(list(along.values())).reshape(len(along), len(weights))
        with np.errstate(invalid="ignore"):
            some = np.isfinite(rows).any(axis=0)
            granulated = np.where(some, np.nansum(rows, axis=0), np.nan)
            granulated /= np.maximum(np.isfinite(rows).sum(axis=0), 1)
        worst, where = self._worst(signs)
        return Rank(
            models=n,
            pearson=_interval(_correlation(values, self.gaps, weights)),
            spearman=_interval(_correlation(rankdata(values), rankdata(self.gaps), weights)),
            kendall=_interval(_mean_over(signs, everywhere, weights)),
            granulated=_interval(granulated),
            by_setting={name: float(column[0]) for name, column in along.items()},
            worst=worst,
            worst_where=where,
            information=self._information(_signs(values)),
        )

    @cached_property
    def _codes(self) -> dict[str, Vector]:
        """The place of each model's value among those of a setting, (n,)."""
        codes = {}
        for name, values in self.settings.items():
            places = {value: i for i, value in enumerate(dict.fromkeys(values))}
            codes[name] = np.array([places[value] for value in values], dtype=int)
        return codes

    @cached_property
    def _alone(self) -> dict[str, Vector]:
        """For each setting the pairs of models that differ in it and in nothing else, (n, n)."""
        differ = {name: codes[:, None] != codes for name, codes in self._codes.items()}
        count = sum(differ.values(), np.zeros((len(self.gaps),) * 2, dtype=int))
        return {name: matrix & (count == 1) for name, matrix in differ.items()}

    def _worst(self, signs: Vector) -> tuple[float, str]:
        """The lowest mean over pairs that differ in two values of one setting (Dziugaite 2020)."""
        lowest, where = math.nan, ""
        for name in self.names:
            values, codes = list(dict.fromkeys(self.settings[name])), self._codes[name]
            for first, second in itertools.combinations(range(len(values)), 2):
                pairs = self._alone[name] & (codes[:, None] == first) & (codes == second)
                if pairs.sum() >= _FEW and not signs[pairs].mean() >= lowest:
                    lowest = float(signs[pairs].mean())
                    where = f"{name} {values[first]} or {values[second]}"
        return lowest, where

    def _information(self, signs: Vector) -> float:
        """The information of a measure on the order of the gaps, given any two settings.

        Relative to the entropy of that order, and the least over the choices of up to two
        settings (Jiang et al. 2020, Eq. 8 to 10): what settings tell alone is no merit of a
        measure. 0 to 1.
        """
        every = ~np.eye(len(self.gaps), dtype=bool)
        order = _signs(self.gaps)[every] + 1
        sign = signs[every] + 1
        shares = []
        for size in range(_GIVEN + 1):
            for given in itertools.combinations(self.names, size):
                context = np.zeros(int(every.sum()), dtype=int)
                for name in given:
                    codes = self._codes[name]
                    number = codes.max() + 1
                    pair = (codes[:, None] * number + codes)[every]
                    context = context * number**2 + pair
                _, context = np.unique(context, return_inverse=True)
                counts = np.bincount(
                    context * 9 + sign * 3 + order, minlength=9 * (context.max() + 1)
                ).reshape(-1, 3, 3)
                shares.append(_information_share(counts))
        return min(shares, default=math.nan)


def _signs(values: Vector) -> Vector:
    """The sign of each difference, (n, n)."""
    return np.sign(values[:, None] - values).astype(int)


def _mean_over(signs: Vector, pairs: Vector, weights: Vector) -> Vector:
    """The mean sign over some pairs for each row of weights of models; NaN where there are none."""
    products = np.einsum("ri,ij,rj->r", weights, signs * pairs, weights, optimize=True)
    counts = np.einsum("ri,ij,rj->r", weights, pairs.astype(float), weights, optimize=True)
    return np.divide(products, counts, out=np.full(len(weights), np.nan), where=counts > 0)


def _correlation(x: Vector, y: Vector, weights: Vector) -> Vector:
    """Pearson's correlation for each row of weights of models; NaN where one is constant."""
    share = weights / weights.sum(1, keepdims=True)
    x, y = x - x.mean(), y - y.mean()
    mx, my = share @ x, share @ y
    sizes = (share @ x**2 - mx**2) * (share @ y**2 - my**2)
    products = share @ (x * y) - mx * my
    return np.divide(
        products, np.sqrt(np.abs(sizes)), out=np.full(len(share), np.nan), where=sizes > 0
    )


def _interval(resampled: Vector) -> Interval:
    """The first number, with the quantiles of the others."""
    tail = 50 * (1 - LEVEL)
    others = resampled[1:][np.isfinite(resampled[1:])]
    if not others.size or not math.isfinite(resampled[0]):
        return _UNDEFINED
    low, high = np.percentile(others, [tail, 100 - tail])
    return Interval(float(resampled[0]), float(low), float(high))


def _information_share(counts: Vector) -> float:
    """I(a; b | c) / H(b | c) of counts (c, a, b); 0 where b is known from c."""
    entropy = _entropy(counts.sum(1)) - _entropy(counts.sum((1, 2)))  # H(b | c)
    joint = _entropy(counts) - _entropy(counts.sum(2))  # H(b | a, c)
    return float(max(entropy - joint, 0) / entropy) if entropy > 1e-12 else 0.0


def _entropy(counts: Vector) -> float:
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * np.log(shares)).sum())
