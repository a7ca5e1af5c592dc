"""Grids of runs, from Python or a TOML file. No torch: mistakes are told at once."""

import contextlib
import itertools
import math
import re
import tomllib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Self

from lowland.errors import InputError
from lowland.experiment.configuration import SETTINGS, Configuration, Setting, check_key
from lowland.reading import TEXT, content

MOST = 1_000_000  # runs of a grid: more is a slip

_RANGE = re.compile(r"\s*(-?[0-9]{1,18})\s*\.\.\s*(-?[0-9]{1,18})\s*")

Axes = dict[str, list[Any]]  # the values that each key takes, checked


class Grid:
    """Runs that take every combination of the values given; the last key changes fastest.

    A list, tuple, range or array varies a key, as does ``"0..9"`` for whole numbers; anything else
    fixes it. The value of ``layers`` and ``measures`` is itself a list of names, and a list of such
    lists varies it. Grids add up to one that holds the runs of both, equal ones once.

    >>> rates = Grid(learning_rate=[0.05, 0.1], seed=range(10))
    >>> rates + Grid(batch_size=[25, 50], seed=range(10))
    Grid(30 runs over learning_rate, batch_size, seed)
    """

    def __init__(self, /, **keys: Any) -> None:
        axes = _axes(keys)
        _check_count([axes])
        self._runs = tuple(_combinations(axes))

    @classmethod
    def of_runs(cls, runs: Iterable[Any]) -> Self:
        """A grid of these runs, equal ones once."""
        grid = cls.__new__(cls)
        grid._runs = tuple(dict.fromkeys(runs))
        return grid

    @classmethod
    def read(cls, path: str | Path) -> Self:
        """The grid that a TOML file describes.

        Keys at the top hold for every run; each table ``[[grid]]`` adds every combination of its
        own keys.
        """
        top = _read_toml(Path(path))
        tables = _take_tables(top, path)
        with _within(f"{path}"):
            common = _axes(top)
        parts: dict[str, Axes] = {} if tables else {f"{path}": common}
        for place, table in tables.items():
            with _within(place):
                for name in table:
                    if name in common:
                        raise InputError(f"{name} stands above [[grid]] as well; keep one of them")
                parts[place] = {**common, **_axes(table)}
        with _within(f"{path}"):
            _check_count(parts.values())
        runs: list[Configuration] = []
        for place, axes in parts.items():
            with _within(place):
                runs += _combinations(axes)
        return cls.of_runs(runs)

    def __add__(self, other: "Grid") -> "Grid":
        return Grid.of_runs((*self, *other)) if isinstance(other, Grid) else NotImplemented

    def __len__(self) -> int:
        return len(self._runs)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._runs)

    def __repr__(self) -> str:
        over = f" over {', '.join(self.varied)}" if self.varied else ""
        return f"Grid({len(self):,} {'run' if len(self) == 1 else 'runs'}{over})"

    @property
    def varied(self) -> list[str]:
        """The keys that do not have the same value in all runs."""
        documents = [run.to_dict() for run in self]
        names = dict.fromkeys(name for document in documents for name in document)
        return [name for name in names if len({repr(d.get(name)) for d in documents}) > 1]


def _axes(keys: Mapping[str, Any]) -> Axes:
    for name in keys:
        check_key(name)
    return {name: _axis(SETTINGS[name], given) for name, given in keys.items()}


def _axis(setting: Setting, given: Any) -> list[Any]:
    """The values that a key takes, in order."""
    given = _spelled_out(setting, given)
    if not _varies(setting, given):
        return [setting.check(given)]
    if not given:
        raise InputError(f"{setting.name} has no values; give some, or leave it out")
    if len(given) > MOST:
        raise InputError(f"{setting.name} has {len(given):,} values; a grid has at most {MOST:,}")
    times = Counter(map(setting.check, given))
    for value, count in times.items():
        if count > 1:
            raise InputError(f"{setting.name} lists {value!r} more than once; give each value once")
    return list(times)


def _spelled_out(setting: Setting, given: Any) -> Any:
    """The values as given, but arrays as lists, and ``"0..9"`` as a range."""
    if hasattr(given, "tolist"):  # numpy.logspace and the like
        return given.tolist()
    match = _RANGE.fullmatch(given) if isinstance(given, str) else None
    if match is None or setting.kind not in (int, float):
        return given
    first, last = int(match[1]), int(match[2])
    if setting.kind is float:
        raise InputError(
            f"{setting.name} is {given!r}, but only whole numbers have ranges; list the values"
        )
    if last < first:
        raise InputError(
            f"{setting.name} is {given!r}, which holds no number; put the smaller one first"
        )
    return range(first, last + 1)


def _varies(setting: Setting, given: Any) -> bool:
    if setting.kind is tuple:
        return isinstance(given, list | tuple) and any(isinstance(v, list | tuple) for v in given)
    return isinstance(given, list | tuple | range)


def _check_count(parts: Collection[Axes]) -> None:
    count = sum(math.prod(len(values) for values in axes.values()) for axes in parts)
    if count > MOST:
        raise InputError(
            f"the grid has {count:,} combinations, more than {MOST:,}; vary fewer keys at once"
        )


def _combinations(axes: Axes) -> Iterator[Configuration]:
    for values in itertools.product(*axes.values()):
        try:
            yield Configuration(**dict(zip(axes, values, strict=True)))
        except InputError as error:
            if any(len(several) > 1 for several in axes.values()):
                raise InputError(
                    f"{error}, or give it a grid of its own: every combination is one run"
                ) from error
            raise


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        document = tomllib.loads(content(path, TEXT).decode("utf-8-sig"))
    except FileNotFoundError as error:
        raise InputError(f"there is no file {path}; expected a grid as TOML") from error
    except IsADirectoryError as error:
        raise InputError(f"{path} is a directory; expected a grid as a TOML file") from error
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 text; expected a grid as TOML") from error
    except (ValueError, RecursionError) as error:  # also of numbers too long for Python
        raise InputError(f"{path} is not valid TOML: {error}") from error
    if not document:
        raise InputError(f'{path} holds no keys; expected a grid such as seed = "0..9"')
    return document


def _take_tables(top: dict[str, Any], path: str | Path) -> dict[str, dict[str, Any]]:
    """Remove the tables ``[[grid]]`` from a document, and return each by its place in the file."""
    for name, value in top.items():
        if name not in SETTINGS and name != "grid" and _tables(value):
            raise InputError(
                f"{path}: there is no table {name!r}; the only one is [[grid]], and keys stand "
                "above it or in it"
            )
    if "grid" not in top:
        return {}
    tables = top.pop("grid")
    if not _tables(tables) or isinstance(tables, dict):
        raise InputError(f"{path}: grid must be a table in double brackets, [[grid]]")
    return {f"{path}, [[grid]] {n}": table for n, table in enumerate(tables, start=1)}


def _tables(value: Any) -> bool:
    """Whether a value was written as a table of TOML, ``[name]`` or ``[[name]]``."""
    if isinstance(value, list):
        return bool(value) and all(isinstance(v, dict) for v in value)
    return isinstance(value, dict)


@contextlib.contextmanager
def _within(place: str) -> Iterator[None]:
    """Put the place in the file before the text of an error."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{place}: {error}") from error
