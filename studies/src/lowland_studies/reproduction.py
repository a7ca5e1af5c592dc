"""A study from its runs to its verdicts, and the page that tells of it."""

import dataclasses
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lowland import __version__
from lowland.atomic import check_writable, replaced_directory
from lowland.errors import InputError
from lowland.experiment import SETTINGS
from lowland.sweep import Grid, SweepProgress, run
from lowland.sweep.keys import key
from lowland.sweep.store import Store
from lowland.sweep.trial import Run
from lowland_studies.evidence import Runs
from lowland_studies.figure import draw, numbers_csv
from lowland_studies.study import Annex, Finding, Kind, Reading, Study, Verdict, Version

OUTCOME = "outcome.json"

VERDICTS: tuple[Verdict, ...] = ("holds", "does not hold", "undecided")
_RANKS: tuple[Version, ...] = ("quick", "full", "original")
_ALWAYS_SAID = ("data", "network", "optimizer", "stop_loss")


@dataclass(frozen=True)
class Judged:
    """A claim of the paper and what became of it in each reading of its settings."""

    text: str
    paper: str
    kind: Kind
    findings: tuple[Finding, ...]


@dataclass(frozen=True)
class Facts:
    """The runs of a study by one reading of the paper's settings."""

    reading: str
    file: str  # of the figure, without the ending
    settings: dict[str, list[Any]]  # the values of each that varies or is not the default
    realisations: tuple[int, ...]  # of each setting; several numbers if they differ
    runs: int
    left_out: tuple[str, ...]  # runs from which nothing was concluded, and why
    differences: tuple[str, ...]
    seconds: float  # of training and analysing its runs, whenever and for whichever study


@dataclass(frozen=True)
class Outcome:
    """The verdicts on a study and the facts about its runs; its figures lie beside it."""

    name: str
    title: str
    version: Version
    claims: tuple[Judged, ...]
    readings: tuple[Facts, ...]
    reason: str  # why claims do not hold, where it was found
    annex: str = ""  # further Markdown for the page
    lowland: str = __version__

    @property
    def file(self) -> str:
        """The name of its first figure, without the ending."""
        return self.name.replace(":", "-")

    @property
    def paper(self) -> str:
        """The part of the name before the colon."""
        return self.name.partition(":")[0]

    @property
    def folder(self) -> Path:
        """Its folder within its store."""
        return _folder(self.file, self.version)

    @property
    def heading(self) -> str:
        """The title with the number of the figure, where the name tells one."""
        return f"{self.figure}: {self.title}" if self.figure.startswith("Fig.") else self.title

    @property
    def figure(self) -> str:
        """The number of the figure, where the name tells one; otherwise the name."""
        number = re.fullmatch(r".*:fig(\w+)(?:-(\w+))?", self.name)
        if number is None:
            return self.name.partition(":")[2] or self.name
        return f"Fig. {number[1]}{f' ({number[2]})' if number[2] else ''}"

    @property
    def command(self) -> str:
        """The command that makes it again."""
        option = "" if self.version == "full" else f" --{self.version}"
        return f"lowland reproduce {self.name}{option}"

    def count(self, reading: int = 0) -> dict[Verdict, int]:
        """How many claims got each verdict in a reading; checks and restatements do not count."""
        counted = Counter(
            judged.findings[reading].verdict for judged in self.claims if judged.kind == "claim"
        )
        return {verdict: counted[verdict] for verdict in VERDICTS}

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON: null for numbers that are not defined."""
        return _without_nan(dataclasses.asdict(self))

    @classmethod
    def of(cls, saved: dict[str, Any]) -> "Outcome":
        """The outcome that ``to_dict`` gave this dictionary for."""
        claims = [
            Judged(**{**judged, "findings": tuple(map(_finding, judged["findings"]))})
            for judged in saved["claims"]
        ]
        lists = ("realisations", "left_out", "differences")
        readings = [
            Facts(**{**facts, **{name: tuple(facts[name]) for name in lists}})
            for facts in saved["readings"]
        ]
        return cls(**{**saved, "claims": tuple(claims), "readings": tuple(readings)})


def _finding(saved: dict[str, Any]) -> Finding:
    numbers = {k: math.nan if saved[k] is None else saved[k] for k in ("effect", "low", "high")}
    return Finding(**{**saved, **numbers})


def reproduce(
    study: Study,
    out: str | Path,
    *,
    version: Version = "full",
    executor: str = "processes",
    workers: int | None = None,
    progress: Callable[[SweepProgress], None] = lambda now: None,
) -> Outcome:
    """Do what is missing of a study's runs in the store ``out``, draw its figure, judge its claims.

    The outcome and the figure are kept in ``out/studies/NAME``, with ``-quick`` or ``-original``
    behind the name for these versions.
    """
    (outcome,) = reproduce_all(
        [study], out, version=version, executor=executor, workers=workers, progress=progress
    )
    return outcome


def reproduce_all(
    studies: Sequence[Study],
    out: str | Path,
    *,
    version: Version = "full",
    executor: str = "processes",
    workers: int | None = None,
    progress: Callable[[SweepProgress], None] = lambda now: None,
) -> Iterator[Outcome]:
    """Several studies: their runs are one sweep, in which no worker waits for the last of a study.

    When it is done, they are drawn and judged one after the other. A study of which every run
    failed, as without its data, is tried again when it is started again, and is not judged.
    """
    out = Path(out)
    for study in studies:
        if not study.readings_of(version):
            raise InputError(
                f"{study.name} has no {version} version: it was not scaled down, or the paper's "
                f"own networks and data were not built here; leave out --{version}"
            )
        check_writable(out / _folder(study.file, version))
    grids = {study.name: _runs_of(study, version) for study in studies}
    every = [configuration for grid in grids.values() for configuration in grid]
    lost: dict[str, str] = {}
    if every:
        how: dict[str, Any] = {"executor": executor, "workers": workers, "progress": progress}
        store = Store(out, create=True)
        if stale := [c for name in _lost(store, grids) for c in grids[name]]:
            run(stale, out, retry=True, **how)
        run(every, out, **how)
        lost = _lost(store, grids)
    for study in studies:
        if study.name not in lost:
            yield _concluded(study, out, version)
    for name, reason in lost.items():
        raise InputError(f"{name}: every one of its {len(grids[name])} runs failed: {reason}")


def _runs_of(study: Study, version: Version) -> list[Run]:
    """The runs of all readings that have this version."""
    return [single for r in study.readings_of(version) for single in _grid(r, version)]


def _lost(store: Store, grids: Mapping[str, Sequence[Run]]) -> dict[str, str]:
    """The studies of which every run is in the store as failed, each with the first reason."""
    keys = {name: {key(single) for single in grid} for name, grid in grids.items()}
    rows = {row["key"]: row for row in store.rows(among=set().union(*keys.values()))}
    lost = {}
    for name, own in keys.items():
        failed = [rows[k] for k in own if k in rows and rows[k]["status"] == "failed"]
        if own and len(failed) == len(own):
            lost[name] = failed[0]["reason"] or "no reason is known"
    return lost


def _grid(reading: Reading, version: Version) -> Grid:
    return reading.runs(version) or Grid.of_runs(())


def _folder(file: str, version: Version) -> Path:
    """The folder of a study in its store; every version has one of its own."""
    return Path("studies", file if version == "full" else f"{file}-{version}")


def _concluded(study: Study, out: Path, version: Version) -> Outcome:
    """Draw and judge a study whose runs are in the store."""
    readings = study.readings_of(version)
    runs = [
        dataclasses.replace(Runs.of(out, _grid(r, version), at_limit=r.at_limit), asked={})
        for r in readings
    ]
    facts = zip(readings, runs, strict=True)
    outcome = Outcome(
        name=study.name,
        title=study.title,
        version=version,
        claims=tuple(
            Judged(c.text, c.paper, c.kind, tuple(c.test(own) for own in runs))
            for c in study.claims
        ),
        readings=tuple(_facts(study, reading, own, version) for reading, own in facts),
        reason=study.reason,
    )
    annex = study.annex(runs[0], outcome.command) if study.annex else Annex("", {})
    outcome = dataclasses.replace(outcome, annex=annex.text)
    with replaced_directory(out / outcome.folder) as beside:
        for name, text in annex.files.items():
            (beside / name).write_text(text, encoding="utf-8")
        for reading, own in zip(readings, runs, strict=True):
            numbers = beside / f"{study.file}{reading.suffix}-runs.csv"
            numbers.write_text(numbers_csv(own), encoding="utf-8")
            draw(study, own, beside, reading.suffix)
        text = json.dumps(outcome.to_dict(), indent=1, allow_nan=False)
        (beside / OUTCOME).write_text(text + "\n", encoding="utf-8")
    return outcome


def _facts(study: Study, reading: Reading, runs: Runs, version: Version) -> Facts:
    grid = _grid(reading, version)
    return Facts(
        reading=reading.name,
        file=f"{study.file}{reading.suffix}",
        settings=_settings(grid),
        realisations=_realisations(grid),
        runs=len(grid),
        left_out=_left_out(runs),
        differences=reading.differences,
        seconds=sum(row["seconds"] for row in (*runs.rows, *runs.left_out)),
    )


def outcomes(out: str | Path) -> list[Outcome]:
    """The outcome of each study in a store: the original, else the full one, else the quick one."""
    saved = [_read(path) for path in Path(out).glob(f"studies/*/{OUTCOME}")]
    saved.sort(key=lambda outcome: _RANKS.index(outcome.version))  # later ones take the places
    best = {outcome.name: outcome for outcome in saved}
    return sorted(best.values(), key=lambda outcome: _numbered(outcome.name))


def _numbered(name: str) -> list[tuple[int, str]]:
    """A key that sorts figS2 before figS11, as a person does."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]


def _read(path: Path) -> Outcome:
    try:
        return Outcome.of(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"{path} is not what `lowland reproduce` wrote ({type(error).__name__}: {error}); "
            "reproduce the study again, which costs little: its runs are kept"
        ) from error


# --- in words ------------------------------------------------------------------------------------


def _settings(grid: Iterable[Run]) -> dict[str, list[Any]]:
    documents = [single.to_dict() for single in grid]
    varied = {}
    for name in dict.fromkeys(name for document in documents for name in document):
        if name == "details":  # what is recorded decides no run
            continue
        values: list[Any] = []
        values += (d[name] for d in documents if name in d and d[name] not in values)
        if name in _ALWAYS_SAID or values != [_default(name)]:
            varied[name] = _in_order(values)
    return varied


def _default(name: str) -> Any:
    """The value that a setting has by itself, as documents have it; a trial's has none."""
    setting = SETTINGS.get(name)
    if setting is None:
        return ...
    return list(setting.default) if setting.kind is tuple else setting.default


def _realisations(grid: Iterable[Run]) -> tuple[int, ...]:
    """How many realisations each setting has; several numbers if settings differ in that."""
    settings = (
        {k: v for k, v in configuration.to_dict().items() if k not in ("seed", "data_seed")}
        for configuration in grid
    )
    return tuple(sorted(set(Counter(map(repr, settings)).values())))


def _in_order(values: list[Any]) -> list[Any]:
    return sorted(values) if all(isinstance(v, int | float) for v in values) else values


def _left_out(runs: Runs) -> tuple[str, ...]:
    """A line for the runs of each setting from which nothing is concluded, and why."""
    varied = runs.with_left_out().varied
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in runs.left_out:
        fate = "failed" if row["status"] == "failed" else "did not converge"
        settings = ", ".join(f"{name} {row[name]}" for name in varied) or "the settings above"
        groups.setdefault((fate, settings), []).append(row)
    return tuple(
        f"{len(rows)} {fate} at {settings} (seeds {', '.join(str(row['seed']) for row in rows)}): "
        f"{rows[0]['reason'] or 'its goal was not reached'}"
        for (fate, settings), rows in groups.items()
    )


def _without_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_nan(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
