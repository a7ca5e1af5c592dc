"""Runs that are no training of one network: a function of settings and a seed, and its numbers."""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from lowland.errors import InputError
from lowland.experiment.configuration import Configuration
from lowland.sweep.grid import Grid

_PLAIN = bool | int | float | str | None


@dataclass(frozen=True)
class Trial:
    """A call of ``pkg.module:name`` with settings and a seed, which returns numbers and arrays.

    Where an experiment is not "train a network and analyse it", such as two trainings that differ
    in one sample, its numbers come from a function. They are kept in the store as those of any run.
    """

    function: str
    settings: tuple[tuple[str, Any], ...] = ()  # sorted by name
    seed: int = 0

    def __post_init__(self) -> None:
        for name, value in self.settings:
            if name in ("function", "key", "status", "reason", "seconds"):
                raise InputError(f"a trial cannot have a setting called {name!r}; rename it")
            if not isinstance(value, _PLAIN):
                raise InputError(
                    f"the setting {name} of {self.function} must be a number, a text, true, false "
                    f"or none; got {type(value).__name__}"
                )

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Self:
        """The trial that :meth:`to_dict` gave this dictionary for."""
        own = {k: v for k, v in document.items() if k not in ("function", "seed")}
        return cls(document["function"], tuple(sorted(own.items())), document["seed"])

    def to_dict(self) -> dict[str, Any]:
        """Function, settings and seed, ready for JSON."""
        return {"function": self.function, **dict(self.settings), "seed": self.seed}


Run = Configuration | Trial


def run_of(document: Mapping[str, Any]) -> Run:
    """The trial or the configuration that a dictionary describes."""
    return Trial.of(document) if "function" in document else Configuration.of(document)


def trials(function: str, /, **axes: Any) -> Grid:
    """A grid of trials of a function: every combination of the values given, as in :class:`Grid`.

    >>> trials("mymodule:trial", width=[10, 20], seed=range(3))
    Grid(6 runs over width, seed)
    """
    several = {
        name: list(value) if isinstance(value, list | tuple | range) else [value]
        for name, value in axes.items()
    }
    seeds = several.pop("seed", [0])
    return Grid.of_runs(
        Trial(function, tuple(sorted(zip(several, values, strict=True))), seed)
        for *values, seed in itertools.product(*several.values(), seeds)
    )
