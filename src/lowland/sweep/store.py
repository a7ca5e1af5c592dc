"""The runs of a sweep on disk: each one whole or absent, whatever ends the process that writes it.

There is no index beside the runs that could disagree with them: the table is read from the runs. A
lock of the whole store guards their names; it holds between processes, and between threads that
open the store on their own. For locks of single runs see :mod:`lowland.sweep.lock`.
"""

import contextlib
import fcntl
import importlib.util
import json
import os
import re
import secrets
import shutil
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from lowland.atomic import write_file
from lowland.errors import InputError
from lowland.manifest import SUMS, Damaged, check_name, is_litter, sha256, sums_text
from lowland.reading import text
from lowland.sweep.keys import is_current
from lowland.sweep.lock import RunLock, acquire, is_locked
from lowland.sweep.record import RUN, as_text, damage_of, read_run, undamaged
from lowland.wording import cell

if TYPE_CHECKING:
    import pandas

VERSION = 1  # of the layout
MARK, LOCK = "lowland-store.json", ".lowland-lock"

_KEY = re.compile(r"[0-9a-f]{16}")
_BESIDE = re.compile(r"\.[0-9a-f]{16}-[0-9a-f]{8}")  # a run that is being written
_EXPECTED = "expected a directory that `lowland sweep` wrote"


@dataclass(frozen=True)
class Survey:
    """Which runs of a store are whole; for each of the others, which file is wrong and how."""

    whole: set[str]
    damaged: dict[str, str]


class Store:
    """A directory of runs. ``create`` opens it for a sweep, and makes it if it is not there yet."""

    def __init__(self, directory: str | Path, *, create: bool = False) -> None:
        self.directory = Path(directory)
        self._runs, self._locks, self._damaged, self._plans = (
            self.directory / name for name in ("runs", "locks", "damaged", "plans")
        )
        if create:
            self._make()
        else:
            self._check()

    def __repr__(self) -> str:
        return f"Store({str(self.directory)!r}): {len(self._keys())} runs"

    # --- runs ------------------------------------------------------------------------------------

    def path(self, key: str) -> Path:
        """The directory of a run, whether it is there or not."""
        if not _KEY.fullmatch(key):
            raise InputError(f"expected the key of a run, 16 hexadecimal digits, and not {key!r}")
        return self._runs / key

    def write(self, key: str, run: Mapping[str, Any], files: Mapping[str, bytes]) -> bool:
        """Keep a run and its files under a key; False if a whole run is there already.

        Files lie in the run's own directory: a name that would leave it is refused. A damaged run
        in its place is set aside. Numbers in ``run`` that are not finite become null, as JSON has
        no name for them.
        """
        target = self.path(key)
        for name in files:
            check_name(name)
        run = dict(run, key=key)
        contents = {**files, RUN: as_text(run).encode()}
        with _writing(f"the run {target}"):
            beside, sums = self._beside(key)
            try:
                for name, content in contents.items():
                    _write(beside / name, content)
                digests = {name: sha256(content) for name, content in contents.items()}
                sums.write(sums_text(digests).encode())
                sums.flush()
                os.fsync(sums.fileno())
                _sync(beside)
                with self._locked():
                    if os.path.lexists(target):
                        if self.whole(key):
                            return False
                        self._move_aside(key)
                    beside.rename(target)
                    _sync(self._runs)
                return True
            finally:
                shutil.rmtree(beside, ignore_errors=True)  # not there any more if all went well
                with contextlib.suppress(OSError):  # what a full disk did not take is tried again
                    sums.close()

    def read(self, key: str) -> dict[str, Any]:
        """The document of a run, as ``write`` got it, checked against its checksum."""
        if not os.path.lexists(self.path(key)):
            raise InputError(f"there is no run {key} in {self.directory}")
        with undamaged(self.path(key)):
            return read_run(self.path(key))

    def whole(self, key: str) -> bool:
        """Whether the run is there and every file of it is as it was written."""
        return damage_of(self.path(key)) is None

    def survey(self) -> Survey:
        """Check every file of every run against its checksum; nothing is moved or changed."""
        keys = self._keys()
        with ThreadPoolExecutor() as threads:
            damages = dict(zip(keys, threads.map(damage_of, map(self.path, keys)), strict=True))
        return Survey(
            whole={key for key, damage in damages.items() if damage is None},
            damaged={  # without those that another process set aside meanwhile
                key: damage
                for key, damage in damages.items()
                if damage is not None and os.path.lexists(self.path(key))
            },
        )

    def set_aside(self, key: str) -> Path:
        """Move a run out of the way, to be done again; its files are kept in the new place."""
        with self._locked():
            if not os.path.lexists(self.path(key)):
                raise InputError(f"there is no run {key} in {self.directory}")
            return self._move_aside(key)

    def lock(self, key: str) -> RunLock | None:
        """The sole right to do a run, or None if another process or thread has it.

        Its last holder may have done the run: look again at whether it is whole.
        """
        path = self._locks / self.path(key).name
        with _writing(f"the lock {path}"):
            return acquire(path)

    def is_locked(self, key: str) -> bool:
        """Whether a living process has the right to do the run."""
        return is_locked(self._locks / self.path(key).name)

    # --- the table of all runs -------------------------------------------------------------------

    def rows(
        self, *, old: bool = True, among: Collection[str] | None = None
    ) -> list[dict[str, Any]]:
        """A flat row for each run, in the order of keys, all with the same columns.

        They are key, status, the configuration, the results, seconds and reason; None where a run
        has no such value. Mappings within become dotted names, and lists their JSON text. A name
        that was taken before gets its part in front, such as ``results.epochs``. The last two are
        ``code``, equal for runs that imported the same source (Lowland's and the user's), and
        ``current``, whether that is the source that is here now; None if the user's is not here.
        Without ``old``, runs of other source are left out; with ``among``, all but those of these
        keys, whose names others then cannot take.
        """
        documents = (run for run in self._documents() if among is None or run["key"] in among)
        runs = [(run, is_current(run)) for run in documents]
        runs = [(run, current) for run, current in runs if old or current is not False]
        parts = {
            part: [dict(_flat(run.get(part) or {})) for run, _ in runs]
            for part in ("configuration", "results")
        }
        taken = {"key", "status", "seconds", "reason", "code", "current"}
        columns: dict[str, dict[str, str]] = {}
        for part, flat in parts.items():
            names = dict.fromkeys(name for values in flat for name in values)
            columns[part] = {name: f"{part}.{name}" if name in taken else name for name in names}
            taken |= columns[part].keys()
        return [
            {
                "key": run["key"],
                "status": run.get("status"),
                **{
                    column: parts[part][i].get(name)
                    for part in parts
                    for name, column in columns[part].items()
                },
                "seconds": run.get("seconds"),
                "reason": run.get("reason"),
                "code": _code_of(run),
                "current": current,
            }
            for i, (run, current) in enumerate(runs)
        ]

    def table(self, *, old: bool = False) -> "pandas.DataFrame":
        """The rows as a data frame; with ``old``, also those of runs that other source did."""
        import pandas

        rows = self.rows(old=old)
        return pandas.DataFrame(rows, columns=list(rows[0] if rows else ("key", "status")))

    def export(self, directory: str | Path | None = None, *, old: bool = False) -> list[Path]:
        """Write results.csv, and results.parquet if pyarrow or fastparquet is installed.

        With ``old``, they also have rows of runs that other source did.
        """
        directory = self.directory if directory is None else Path(directory)
        table = self.table(old=old)
        with _writing(f"the table of runs in {directory}"):
            directory.mkdir(parents=True, exist_ok=True)
            written = [directory / "results.csv"]
            write_file(written[0], table.map(cell).rename(columns=cell).to_csv(index=False))
            if any(importlib.util.find_spec(name) for name in ("pyarrow", "fastparquet")):
                written.append(directory / "results.parquet")
                write_file(written[1], _parquet(table))
        return written

    # --- the plans of sweeps ---------------------------------------------------------------------

    def remember(self, name: str, document: Mapping[str, Any]) -> None:
        """Keep the plan of a sweep that was started here."""
        if not re.fullmatch(r"\w[\w.-]*", name):
            raise InputError(f"expected a name of letters, digits, '.', '_' and '-', not {name!r}")
        write_file(self._plans / f"{name}.json", as_text(document))

    def plans(self) -> list[str]:
        """The names of the plans of all sweeps that were started here."""
        return sorted(path.stem for path in self._plans.glob("[!.]*.json"))

    def plan(self, name: str) -> dict[str, Any]:
        """The plan of this name."""
        path = self._plans / f"{name}.json"
        try:
            return dict(json.loads(text(path)))
        except (OSError, ValueError, TypeError, RecursionError) as error:
            raise InputError(
                f"the plan {path} cannot be read: {error}; start its sweep again, which "
                "writes it anew"
            ) from error

    # --- opening ---------------------------------------------------------------------------------

    def _make(self) -> None:
        if os.path.isfile(self.directory):
            raise InputError(f"{self.directory} is a file; choose another directory")
        with _writing(f"the store {self.directory}"):
            self.directory.mkdir(parents=True, exist_ok=True)
            # In this order: another process may be making the store, and makes its mark first.
            foreign = [n for n in sorted(os.listdir(self.directory)) if not is_litter(n)]
            if foreign and not (self.directory / MARK).exists():
                raise InputError(
                    f"{self.directory} holds {foreign[0]!r} and is no store of runs; choose an "
                    "empty directory or a new one"
                )
        with self._locked():
            if not (self.directory / MARK).exists():
                mark = {"format": "lowland-store", "version": VERSION}
                write_file(self.directory / MARK, as_text(mark))
                _sync(self.directory / MARK)
                _sync(self.directory)
            self._check()
            for folder in (self._runs, self._locks, self._damaged, self._plans):
                folder.mkdir(exist_ok=True)
            self._clean()

    def _check(self) -> None:
        mark = self.directory / MARK
        if not os.path.isdir(self.directory):
            came = "is a file" if os.path.exists(self.directory) else "does not exist"
            raise InputError(f"{self.directory} {came}; {_EXPECTED}")
        if not os.path.exists(mark):
            raise InputError(f"{self.directory} holds no {MARK}; {_EXPECTED}")
        try:
            version = int(json.loads(text(mark))["version"])
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise InputError(f"{mark} cannot be read ({error}); {_EXPECTED}") from error
        if version > VERSION:
            raise InputError(
                f"{self.directory} was written by a newer Lowland, in format {version}, and this "
                f"one knows formats up to {VERSION}; update Lowland"
            )

    def _clean(self) -> None:
        """Remove what killed processes were writing, and nothing that a living one writes."""
        for folder in self._runs.iterdir():
            if _BESIDE.fullmatch(folder.name) and not is_locked(folder / SUMS):
                shutil.rmtree(folder, ignore_errors=True)

    # --- writing ---------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Keep others from changing names in ``runs`` while the block lasts."""
        with (
            _writing(f"the store {self.directory}"),
            open(self.directory / LOCK, "ab") as file,
        ):
            fcntl.flock(file, fcntl.LOCK_EX)
            try:
                yield
            finally:
                fcntl.flock(file, fcntl.LOCK_UN)  # a child forked meanwhile has it open as well

    def _beside(self, key: str) -> tuple[Path, BinaryIO]:
        """A new directory to write a run in, and its open list of checksums, which is locked."""
        beside = self._runs / f".{key}-{secrets.token_hex(4)}"
        with self._locked():  # else it could be cleaned away before it has its own lock
            beside.mkdir()
            try:
                sums = open(beside / SUMS, "xb")  # noqa: SIM115 - the caller closes it
            except OSError:
                beside.rmdir()
                raise
            fcntl.flock(sums, fcntl.LOCK_EX)
        return beside, sums

    def _move_aside(self, key: str) -> Path:
        number = 1
        while os.path.lexists(aside := self._damaged / f"{key}-{number}"):
            number += 1
        self.path(key).rename(aside)
        _sync(self._runs)
        return aside

    # --- reading ---------------------------------------------------------------------------------

    def _keys(self) -> list[str]:
        """The names of all runs, sorted, whole or not."""
        with contextlib.suppress(FileNotFoundError):
            return sorted(name for name in os.listdir(self._runs) if _KEY.fullmatch(name))
        return []

    def _documents(self) -> Iterator[dict[str, Any]]:
        """The document of every run that can be read, in the order of keys."""
        for key in self._keys():
            with contextlib.suppress(Damaged):
                yield read_run(self.path(key))


# --- rows and tables -----------------------------------------------------------------------------


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Names and values of a nested mapping, with dotted names; lists as JSON text."""
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", json.dumps(value) if isinstance(value, list) else value


def _code_of(run: Mapping[str, Any]) -> str | None:
    """Return the digest of the source that did a run, Lowland's and the user's."""
    return (run.get("code") or {}).get("source")


def _parquet(table: "pandas.DataFrame") -> bytes:
    import pandas

    for name in table.columns:  # a column of this format has one type
        if pandas.api.types.infer_dtype(table[name], skipna=True).startswith("mixed"):
            table[name] = table[name].map(str, na_action="ignore")
    return table.to_parquet(index=False)


# --- the disk ------------------------------------------------------------------------------------


@contextlib.contextmanager
def _writing(what: str) -> Iterator[None]:
    """Turn an error of the disk into one line: what could not be written, and why."""
    try:
        yield
    except OSError as error:
        raise InputError(
            f"cannot write {what}: {error.strerror or error}; make room and permission there and "
            "start again: finished runs are kept"
        ) from error


def _write(path: Path, content: bytes) -> None:
    with open(path, "xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
