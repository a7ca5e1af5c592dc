"""The runs that a study looks at, read from the store of a sweep."""

import difflib
import functools
import itertools
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from lowland.errors import InputError
from lowland.experiment.configuration import SETTINGS
from lowland.manifest import read_checked, read_sums
from lowland.results import ARRAYS
from lowland.sweep.keys import key
from lowland.sweep.record import undamaged
from lowland.sweep.store import Store
from lowland.sweep.trial import Run

# A column of the table by its name, or a function that gives one number for each run.
Column = str | Callable[["Runs"], np.ndarray]
# An array that is kept of every run, by its name, or a function that gives one as (runs, n).
Series = str | Callable[["Runs"], np.ndarray]
# What columns and arrays are called in sentences, where their names do not tell.
_WORDS = {
    "eq11": "the gap",
    "paired_gap": "the paired gap",
    "eq16": "Eq. 16",
    "eq17": "Eq. 17",
    "gradient_square": "the Fisher diagonal",
    "loss_after_decay": "the loss when the penalty ends",
    "loss_defect": "the difference of the losses",
    "duality_residual": "the difference of the activities",
    "eq6_residual": "the difference of the lengths",
    "sharp": "the sharp part",
    "flat": "the flat part",
    "total_g": "T_g",
    "total_w_data": "T_w",
    "layer_norm": "|w|",
    "eigenvalue": "H_n",
    "flatness": "F_n",
    "test_error": "the test error",
    "normalized_sharpness": "normalized sharpness",
    "normalized_sharpness_direct": "Eq. 62",
    "matrix_normalized_sharpness": "matrix-normalized sharpness",
    "fisher_rao": "the Fisher-Rao norm",
    "frobenius_norms": "the product of Frobenius norms",
    "spectral_norms": "the product of spectral norms",
    "algorithm_1.deviation": "the deviation, in standard errors",
    "lost rank": "powers of ten that stable ranks lose",
    "gradient over sigma": "the Fisher diagonal over sigma_g^2",
    "moved share": "the sharp share after rescaling, over that before",
    "reverse share": "the sharp share of reverse pairs, over that of the others",
    "smallest c": "c_n in any direction",
}


def words_of(column: Column | Series) -> str:
    """What a column or array is called in a sentence."""
    if isinstance(column, str):
        name = column.removeprefix("duality/")
        return _WORDS.get(name.rpartition(":")[2], name)
    name = getattr(column, "__name__", "it").replace("<lambda>", "it")
    name = name if " " in name else name.strip("_").replace("_", " ")
    return _WORDS.get(name, name)


def _free(name: str, own: dict[str, Any], asked: dict[str, dict[str, Any]]) -> str:
    """The name under which numbers are kept: with a count where others have it already."""

    def taken(kept: dict[str, Any]) -> bool:
        return not all(_same(kept[key], number) for key, number in own.items() if key in kept)

    names = itertools.chain([name], (f"{name} ({i})" for i in itertools.count(2)))
    return next(free for free in names if not taken(asked.get(free, {})))


def _same(a: Any, b: Any) -> bool:
    """Whether two values are the same, but for the order in which something was summed."""
    if not (isinstance(a, float) and isinstance(b, float)):
        return bool(a == b)
    return math.isclose(a, b, rel_tol=1e-6) or (math.isnan(a) and math.isnan(b))


@dataclass(frozen=True)
class Runs:
    """Runs that were done and converged, each a row of the table and a directory.

    ``left_out`` are the rows of the others, which failed or did not reach their goal: nothing is
    concluded from them.
    """

    rows: tuple[dict[str, Any], ...]
    left_out: tuple[dict[str, Any], ...]
    folder: Path  # of all runs; each in a directory of its key
    # What was asked for, by name and by the run's key; None where nobody keeps it.
    asked: dict[str, dict[str, Any]] | None = field(default=None, compare=False, repr=False)
    settings: tuple[str, ...] = tuple(SETTINGS)  # the columns that are settings of a run

    @classmethod
    def of(cls, store: str | Path, grid: Iterable[Run], *, at_limit: float | None = None) -> "Runs":
        """The runs of a grid that are in the store.

        With ``at_limit`` those that ended at their limit of epochs count as well, if their
        training error is not above it.
        """
        opened = Store(store)
        runs = list(grid)
        keys = [key(run) for run in runs]
        # Without others: a result of these may be called as a setting of those, such as width.
        stored = {row["key"]: row for row in opened.rows(among=set(keys))}
        rows = [stored[name] for name in keys if name in stored]

        def ended_well(row: dict[str, Any]) -> bool:
            if row.get("converged") is not False:
                return True
            return at_limit is not None and (row.get("train_error") or 0.0) <= at_limit

        good = [row["status"] == "done" and ended_well(row) for row in rows]
        return cls(
            rows=tuple(row for row, ok in zip(rows, good, strict=True) if ok),
            left_out=tuple(row for row, ok in zip(rows, good, strict=True) if not ok),
            folder=opened.directory / "runs",
            settings=tuple(dict.fromkeys(name for run in runs for name in run.to_dict())),
        )

    def __len__(self) -> int:
        return len(self.rows)

    def __repr__(self) -> str:
        return f"Runs({len(self)} converged, {len(self.left_out)} left out)"

    def with_left_out(self) -> "Runs":
        """All of them, for what must also be true of networks that did not converge."""
        return replace(self, rows=(*self.rows, *self.left_out), left_out=())

    @property
    def seeds(self) -> list[int]:
        """The seeds of the runs, each once, sorted."""
        return sorted({row["seed"] for row in self.rows})

    def where(self, **settings: Any) -> "Runs":
        """The runs with these values; a list, tuple or set admits any of its members."""
        for name in settings:
            self._check(name)

        def fits(row: dict[str, Any]) -> bool:
            return all(
                row.get(name) in value
                if isinstance(value, list | tuple | set | range)
                else row.get(name) == value
                for name, value in settings.items()
            )

        return self._those(fits)

    def by(self, name: str) -> "dict[Any, Runs]":
        """The runs of each value of a column, in the order of the values."""
        self._check(name)
        values = sorted({row[name] for row in self.rows}, key=lambda v: (v is not None, v))
        return {value: self.where(**{name: value}) for value in values}

    def column(self, of: Column) -> np.ndarray:
        """One value per run, such as ``gap``; NaN where a run has none."""
        if not self.rows:
            return np.zeros(0)
        numbers = self._column(of)
        if self.asked is not None and getattr(of, "__name__", "") != "<lambda>":
            keys = (row["key"] for row in self.rows)
            own = dict(zip(keys, numbers, strict=True))
            name = of if isinstance(of, str) else words_of(of)
            self.asked.setdefault(_free(name, own, self.asked), {}).update(own)
        return numbers

    def _column(self, of: Column) -> np.ndarray:
        if callable(of):
            return np.asarray(of(self), dtype=float)
        self._check(of)
        values = [row[of] for row in self.rows]
        if all(value is None or isinstance(value, bool | int | float) for value in values):
            return np.array([np.nan if value is None else value for value in values], dtype=float)
        return np.array(values, dtype=object)

    def array(self, of: Series) -> np.ndarray:
        """One array per run, (runs, n), such as ``duality/sigma_g``; NaN beyond the end of one."""
        if not self.rows:
            return np.zeros((0, 0))
        if callable(of):
            return np.asarray(of(self), dtype=float)
        arrays = [_array(self.folder / row["key"], of) for row in self.rows]
        filled = np.full((len(arrays), max(map(len, arrays))), np.nan)
        for i, array in enumerate(arrays):
            filled[i, : len(array)] = array
        return filled

    @property
    def varied(self) -> list[str]:
        """The settings, other than seeds, that are not the same in all runs."""
        return [
            name
            for name in self.settings
            if name not in ("seed", "data_seed") and len({row.get(name) for row in self.rows}) > 1
        ]

    def _those(self, fits: Callable[[dict[str, Any]], bool]) -> "Runs":
        rows, left_out = (tuple(filter(fits, part)) for part in (self.rows, self.left_out))
        return replace(self, rows=rows, left_out=left_out)

    def _check(self, name: str) -> None:
        every = [*self.rows, *self.left_out]
        if every and name not in every[0]:
            near = difflib.get_close_matches(name, every[0], n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(every[0])}"
            raise InputError(f"the runs have no column {name!r}; {hint}")


@functools.lru_cache(maxsize=4096)
def _array(folder: Path, name: str) -> np.ndarray:
    path = _checked_arrays(folder)
    with np.load(path) as arrays:
        if name not in arrays:
            raise InputError(f"{path} has no array {name!r}; there are {', '.join(arrays)}")
        return np.asarray(arrays[name], dtype=float)


@functools.lru_cache(maxsize=4096)
def _checked_arrays(folder: Path) -> Path:
    """The archive of a run's arrays, once its content is known to be what the run wrote."""
    with undamaged(folder):
        read_checked(folder, ARRAYS, read_sums(folder).get(ARRAYS))
    return folder / ARRAYS
