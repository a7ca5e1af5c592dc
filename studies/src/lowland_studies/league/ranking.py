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

from lowland_studies.league.found import Interval, Rank

RESAMPLES = 500
LEVEL = 0.95
# Pairs of models below which two values of a setting are no environment.
_FEW = 5
# Settings that information is conditioned on, at most (Jiang et al. 2020).
_GIVEN = 2

Vector = np.ndarray

UNDEFINED = Interval(math.nan, math.nan, math.nan)


@dataclass(frozen=True)
class Models:
    """Trained models: their gaps, (n,), and what they were trained with, n values of each setting.

    Pairs that differ in one setting alone tell of that setting (Jiang et al. 2020): the
    mean over them is the granulated Kendall coefficient along it, and the mean of these over
    settings the granulated one. Settings that realisations differ in, such as a seed, are matched
    like the others, but tell nothing by themselves; nor does the data set count in the mean over
    settings, as it is not for the one who trains to choose.
    """

    gaps: Vector
    settings: Mapping[str, Sequence[Any]]
    realisation: str = "seed"
    data: str = "data"

    @property
    def names(self) -> list[str]:
        """The settings that differ between models, without the realisation."""
        return [n for n, values in self._codes.items() if n != self.realisation and values.max()]

    def rank(self, values: Vector) -> Rank:
        """Judge a measure by its value for each model; those without one (NaN) are left out."""
        from scipy.stats import rankdata

        chosen = np.isfinite(values) & np.isfinite(self.gaps)
        if not chosen.all():
            return self.those(chosen).rank(values[chosen])
        if len(values) < 2:
            none = UNDEFINED
            return Rank(len(values), none, none, none, none, {}, math.nan, "", math.nan)
        order = _signs(values)
        signs = order * _signs(self.gaps)
        along = {name: self._along(name, signs) for name in self.names}
        counted = [column for name, column in along.items() if name != self.data]
        rows = np.array(counted).reshape(len(counted), len(self._weights))
        some = np.isfinite(rows).any(axis=0)
        granulated = np.where(some, np.nansum(rows, axis=0), np.nan)
        granulated /= np.maximum(np.isfinite(rows).sum(axis=0), 1)
        worst, where = self._worst(signs)
        ranked = rankdata(values), rankdata(self.gaps)
        return Rank(
            models=len(values),
            pearson=interval(_correlation(values, self.gaps, self._weights)),
            spearman=interval(_correlation(*ranked, self._weights)),
            kendall=interval(_mean_of_all(signs, self._weights)),
            granulated=interval(granulated),
            by_setting={name: float(column[0]) for name, column in along.items()},
            worst=worst,
            worst_where=where,
            information=self._information(order),
        )

    def those(self, chosen: Vector) -> "Models":
        """The models for which ``chosen`` is true, (n,)."""
        settings = {
            name: list(itertools.compress(values, chosen)) for name, values in self.settings.items()
        }
        return Models(self.gaps[chosen], settings, self.realisation, self.data)

    @cached_property
    def _weights(self) -> Vector:
        """How often each model was drawn, (1 + resamples, n); first of all, once each."""
        n = len(self.gaps)
        drawn = np.random.default_rng(0).multinomial(n, np.full(n, 1 / n), RESAMPLES)
        return np.vstack([np.ones(n), drawn])

    @cached_property
    def _codes(self) -> dict[str, Vector]:
        """The place of each model's value among those of a setting, (n,)."""
        codes = {}
        for name, values in self.settings.items():
            places = {value: i for i, value in enumerate(dict.fromkeys(values))}
            codes[name] = np.array([places[value] for value in values], dtype=int)
        return codes

    @cached_property
    def _alone(self) -> dict[str, tuple[Vector, Vector]]:
        """For each setting the pairs of models, once each, that differ in it and nothing else."""
        differ = {name: codes[:, None] != codes for name, codes in self._codes.items()}
        count = sum(differ.values(), np.zeros((len(self.gaps),) * 2, dtype=int))
        once = np.triu(count == 1)
        places = {name: np.nonzero(matrix & once) for name, matrix in differ.items()}
        return {name: (first, second) for name, (first, second) in places.items()}

    @cached_property
    def _drawn(self) -> dict[str, Vector]:
        """How often each pair of a setting was drawn, (1 + resamples, pairs)."""
        return {n: self._weights[:, i] * self._weights[:, j] for n, (i, j) in self._alone.items()}

    def _along(self, name: str, signs: Vector) -> Vector:
        """The mean sign over the pairs of a setting in each resample; NaN where it has none."""
        drawn = self._drawn[name]
        return _ratio(drawn @ signs[self._alone[name]], drawn.sum(1))

    def _worst(self, signs: Vector) -> tuple[float, str]:
        """The lowest mean over pairs that differ in two values of one setting (Dziugaite 2020)."""
        lowest, where = math.nan, ""
        for name in self.names:
            values, codes = list(dict.fromkeys(self.settings[name])), self._codes[name]
            first, second = np.sort(np.stack([codes[i] for i in self._alone[name]]), axis=0)
            signed = signs[self._alone[name]]
            for one, other in itertools.combinations(range(len(values)), 2):
                pairs = signed[(first == one) & (second == other)]
                if len(pairs) >= _FEW and not pairs.mean() >= lowest:
                    lowest = float(pairs.mean())
                    where = f"{name} {values[one]} or {values[other]}"
        return lowest, where

    @cached_property
    def _contexts(self) -> list[Vector]:
        """For each choice of up to two settings, the number of each ordered pair's two values."""
        everywhere = ~np.eye(len(self.gaps), dtype=bool)
        contexts = []
        for size in range(_GIVEN + 1):
            for given in itertools.combinations(self.names, size):
                context = np.zeros(int(everywhere.sum()), dtype=int)
                for name in given:
                    codes = self._codes[name]
                    number = codes.max() + 1
                    pair = (codes[:, None] * number + codes)[everywhere]
                    context = context * number**2 + pair
                contexts.append(np.unique(context, return_inverse=True)[1])
        return contexts

    def _information(self, order: Vector) -> float:
        """The information of a measure on the order of the gaps, given any two settings.

        Relative to the entropy of that order, and the least over the choices of up to two
        settings (Jiang et al. 2020): what settings tell alone is no merit of a
        measure. 0 to 1.
        """
        everywhere = ~np.eye(len(self.gaps), dtype=bool)
        pair = 3 * order[everywhere] + _signs(self.gaps)[everywhere] + 4
        return min(
            _information_share(np.bincount(context * 9 + pair, minlength=9 * (context.max() + 1)))
            for context in self._contexts
        )


def _signs(values: Vector) -> Vector:
    """The sign of each difference, (n, n)."""
    return np.sign(values[:, None] - values).astype(int)


def _mean_of_all(signs: Vector, weights: Vector) -> Vector:
    """The mean sign over all pairs of different models for each row of their weights."""
    products = ((weights @ signs) * weights).sum(1)
    return _ratio(products, weights.sum(1) ** 2 - (weights**2).sum(1))


def _ratio(sums: Vector, counts: Vector) -> Vector:
    """Sums by counts; NaN where nothing was counted."""
    return np.divide(sums, counts, out=np.full(len(counts), np.nan), where=counts > 0)


def _correlation(x: Vector, y: Vector, weights: Vector) -> Vector:
    """Pearson's correlation for each row of weights of models; NaN where one is constant."""
    share = weights / weights.sum(1, keepdims=True)
    x, y = x - x.mean(), y - y.mean()
    mx, my = share @ x, share @ y
    sizes = (share @ x**2 - mx**2) * (share @ y**2 - my**2)
    products = share @ (x * y) - mx * my
    return _ratio(products, np.sqrt(np.maximum(sizes, 0)))


def interval(resampled: Vector) -> Interval:
    """The first number, with the quantiles of the others."""
    tail = 50 * (1 - LEVEL)
    others = resampled[1:][np.isfinite(resampled[1:])]
    if not others.size or not math.isfinite(resampled[0]):
        return UNDEFINED
    low, high = np.percentile(others, [tail, 100 - tail])
    return Interval(float(resampled[0]), float(low), float(high))


def _information_share(counts: Vector) -> float:
    """I(a; b | c) / H(b | c) of counts (c a b); 0 where b is known from c."""
    counts = counts.reshape(-1, 3, 3)
    entropy = _entropy(counts.sum(1)) - _entropy(counts.sum((1, 2)))  # H(b | c)
    joint = _entropy(counts) - _entropy(counts.sum(2))  # H(b | a, c)
    return float(max(entropy - joint, 0) / entropy) if entropy > 1e-12 else 0.0


def _entropy(counts: Vector) -> float:
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * np.log(shares)).sum())
