"""Whether a measure beside the validation error picks better networks than that error alone."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from lowland_studies.league.found import Interval
from lowland_studies.league.ranking import interval

CANDIDATES = 20  # networks of one data set, among which one is picked
_DRAWS = 100  # of candidates, for each data set and resample
_RESAMPLES = 200

Vector = np.ndarray


@dataclass(frozen=True)
class Choices:
    """Networks by their data, (n,), the errors on two halves of the test data, (2, n), and sizes.

    One half validates and the other judges, then the other way around. The validation error alone
    picks the lowest. Beside it, a measure picks the flattest of all whose validation error is
    within a standard error of the lowest (the rule of Breiman et al. 1984 for simpler models).
    """

    data: Vector
    errors: Vector
    samples: Vector  # in a half, of each network

    def judge(self, values: Vector) -> Interval:
        """The mean change in test error, flattest less lowest, with its bootstrap interval.

        Below 0 where the measure helps. Networks without a value (NaN) count as the sharpest.
        """
        sharp = np.where(np.isfinite(values), values, np.inf)
        changes = np.mean(
            [
                self._changes(sharp, drawn, *self.errors[::step])
                for drawn in self._drawn
                for step in (1, -1)
            ],
            axis=0,
        )
        return interval(changes.mean(1))

    @cached_property
    def _drawn(self) -> list[Vector]:
        """For each data set, the candidates of each draw, (1 + resamples, draws, candidates).

        First of all they come from the networks themselves, then from networks drawn from these.
        """
        random, drawn = np.random.default_rng(0), []
        for name in np.unique(self.data):
            own = np.nonzero(self.data == name)[0]
            resampled = random.choice(own, (1 + _RESAMPLES, len(own)))
            resampled[0] = own
            places = random.integers(len(own), size=(1 + _RESAMPLES, _DRAWS, CANDIDATES))
            drawn.append(np.take_along_axis(resampled[:, None], places, axis=2))
        return drawn

    def _changes(self, sharp: Vector, drawn: Vector, validation: Vector, test: Vector) -> Vector:
        """Test error of the flattest pick less that of the plain one, for each draw."""
        seen = validation[drawn]
        lowest = np.take_along_axis(drawn, seen.argmin(-1)[..., None], axis=-1)
        error = validation[lowest]
        margin = np.sqrt(error * (1 - error) / self.samples[lowest])
        among = np.where(seen <= error + margin, sharp[drawn], np.inf)
        flattest = np.take_along_axis(drawn, among.argmin(-1)[..., None], axis=-1)
        return (test[flattest] - test[lowest])[..., 0]
