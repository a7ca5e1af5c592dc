"""Where the numbers go: a CSV file, or a function of the user's."""

import csv
from collections.abc import Callable, Mapping
from pathlib import Path

from lowland.errors import InputError
from lowland.reading import text
from lowland.wording import cell

Log = Callable[[Mapping[str, float], int], object]


def log_function(log: str | Path | Log | None, columns: list[str]) -> Log:
    """A function of scalars and step that logs them as was asked for."""
    if log is None:
        return lambda scalars, step: None
    if callable(log):
        return log
    if not isinstance(log, (str, Path)):
        raise InputError(
            f"log must be a file's path or a function of scalars and step; got {log!r}"
        )
    return CsvFile(Path(log), columns)


class CsvFile:
    """A table with a row for each measured step; a resumed training goes on in its file."""

    def __init__(self, path: Path, columns: list[str]) -> None:
        self.path, self.columns = path, ["step", *columns]
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            begun = text(path).splitlines() if path.exists() else []
        except OSError as error:
            raise InputError(
                f"the log {path} cannot be written: {error.strerror}; choose another file"
            ) from error
        if begun and next(csv.reader(begun)) != [cell(name) for name in self.columns]:
            raise InputError(
                f"{path} has other columns than {', '.join(self.columns)}; choose another file"
            )
        if not begun:
            self._append(self.columns)

    def __call__(self, scalars: Mapping[str, float], step: int) -> None:
        """Add a row; a number that is missing leaves its cell empty."""
        numbers = {"step": step, **scalars}
        self._append([numbers.get(name, "") for name in self.columns])

    def _append(self, row: list) -> None:
        with self.path.open("a", newline="", encoding="utf-8") as file:
            csv.writer(file).writerow([cell(value) for value in row])
