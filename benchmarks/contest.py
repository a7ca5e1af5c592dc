"""One row: check every contestant's result, then time those that did the work."""

import datetime
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from measure import Timing, interleaved, once, peak_memory
from rows import ROWS, Row

torch.set_num_threads(2)

OURS, GRADIENT, FORWARD = "Lowland", "one gradient", "one forward pass"
# A peer is run once only if that took so many seconds, or so many times longer than the best one.
LONG_SECONDS, FAR_BEHIND = 120, 1.5
# Gradients that stand beside work that was run once only.
UNIT_REPEATS = 5


@dataclass(frozen=True)
class Entry:
    """How one contestant did: a time and an error, or why there is none."""

    name: str
    timing: Timing | None = None
    error: float | None = None
    failure: str = ""  # it could not run, or its result is not good enough


@dataclass(frozen=True)
class Outcome:
    row: Row
    workload: str
    ours: Entry
    peers: list[Entry]
    gradient: Timing
    forward: Timing
    gibibytes: float | None
    date: str
    cpu: bool  # whether times are CPU time of one thread

    def save(self, folder: Path) -> None:
        """Keep what was measured, so that other rows can be measured another day."""

        def entry(e: Entry) -> dict[str, Any]:
            samples = e.timing.samples if e.timing else None
            return {"name": e.name, "samples": samples, "error": e.error, "failure": e.failure}

        record = {
            "workload": self.workload,
            "date": self.date,
            "cpu": self.cpu,
            "gibibytes": self.gibibytes,
            "gradient": self.gradient.samples,
            "forward": self.forward.samples,
            "entries": [entry(e) for e in (self.ours, *self.peers)],
        }
        folder.mkdir(exist_ok=True)
        text = json.dumps(record, indent=1)
        (folder / f"{self.row.name}.json").write_text(text + "\n", encoding="utf-8")

    @classmethod
    def load(cls, row: Row, folder: Path) -> "Outcome | None":
        """What was measured of this row last, if anything."""
        path = folder / f"{row.name}.json"
        if not path.exists():
            return None
        record = json.loads(path.read_text(encoding="utf-8"))
        ours, *peers = (
            Entry(
                e["name"],
                Timing(tuple(e["samples"])) if e["samples"] else None,
                e["error"],
                e["failure"],
            )
            for e in record["entries"]
        )
        return cls(
            row=row,
            workload=record["workload"],
            ours=ours,
            peers=peers,
            gradient=Timing(tuple(record["gradient"])),
            forward=Timing(tuple(record["forward"])),
            gibibytes=record["gibibytes"],
            date=record["date"],
            cpu=record.get("cpu", False),
        )

    @property
    def best(self) -> Entry | None:
        """The fastest peer that did the work."""
        counts = self.row.against or tuple(self.row.peers)
        able = [e for e in self.peers if e.timing and not e.failure and e.name in counts]
        return min(able, key=lambda e: e.timing.median, default=None)  # type: ignore[union-attr]

    @property
    def value(self) -> float | None:
        """What is held against the floor: times faster than the best, or gradients per product."""
        if self.ours.timing is None or self.ours.failure:
            return None
        if self.row.unit == "gradients":
            return self.in_gradients(self.ours)
        return self.over(self.best) if self.best else None

    def over(self, peer: Entry) -> float:
        assert peer.timing
        assert self.ours.timing
        return peer.timing.median / self.ours.timing.median

    def in_gradients(self, entry: Entry) -> float:
        assert entry.timing
        return entry.timing.median / self.row.per / self.gradient.median

    @property
    def reached(self) -> bool:
        if self.value is None:
            return False
        fits = self.gibibytes is None or self.gibibytes <= (self.row.gibibytes or 0)
        if self.row.unit == "gradients":
            return self.value <= self.row.floor and fits
        return self.value >= self.row.floor and fits


def work_of(row: str, contestant: str) -> Callable[[], Any]:
    """The timed function of one contestant, for a process of its own."""
    (chosen,) = (r for r in ROWS if r.name == row)
    prepare = chosen.ours if contestant == OURS else chosen.peers[contestant]
    return prepare(chosen.workload())


def hold(
    row: Row, say: Callable[[str], None], *, check_only: bool = False, cpu: bool = False
) -> Outcome:
    """Check, then time, one row; in CPU time of one thread, if told so."""
    w = row.workload()
    works, warm, entries = {}, {}, {}
    ours: Any = None
    for name, prepare in {OURS: row.ours, **row.peers}.items():
        try:
            works[name] = prepare(w)
            result, warm[name] = once(works[name])
            ours = result if name == OURS else ours
            error = row.error(w, result, ours)
        except Exception as problem:  # a contestant that cannot do it is a result, not an accident
            entries[name] = Entry(name, failure=f"{type(problem).__name__}: {problem}")
        else:
            wrong = f"error {error:.1e} is above {row.tolerance:g}"
            first = Timing((warm[name],))
            entries[name] = Entry(name, first, error, "" if error <= row.tolerance else wrong)
        say(f"  {name}: {_checked(entries[name])}")

    units: dict[str, Callable[[], Any]] = {GRADIENT: w.gradient, FORWARD: w.forward}
    for name, unit in units.items():
        unit()
        warm[name] = once(unit)[1]
    again = [OURS, *_worth_repeating(row, entries)] if entries[OURS].timing else []
    repeats = row.repeats
    if again and row.repeats == 1 and warm[OURS] > LONG_SECONDS:  # the first runs count
        again, repeats = [], UNIT_REPEATS
    if check_only:
        timings = {name: Timing((warm[name],)) for name in units}
    else:
        chosen = {name: works[name] for name in again} | units
        timings = interleaved(chosen, warm, repeats)
    for name in again:
        if name in timings:
            entries[name] = replace(entries[name], timing=timings[name])
    memory = row.gibibytes and not check_only and entries[OURS].timing
    return Outcome(
        row=row,
        workload=w.name,
        ours=entries.pop(OURS),
        peers=list(entries.values()),
        gradient=timings[GRADIENT],
        forward=timings[FORWARD],
        gibibytes=peak_memory(row.name, OURS) if memory else None,
        date=str(datetime.date.today()),
        cpu=cpu,
    )


def _worth_repeating(row: Row, entries: dict[str, Entry]) -> list[str]:
    able = {e.name: e.timing.median for e in entries.values() if e.timing and not e.failure}
    able.pop(OURS, None)
    counting = [able[name] for name in row.against or row.peers if name in able]
    limit = min(LONG_SECONDS, FAR_BEHIND * min(counting, default=0))
    return [name for name, seconds in able.items() if seconds <= limit]


def _checked(entry: Entry) -> str:
    if entry.failure:
        return entry.failure
    return f"error {entry.error:.1e}, first run {entry.timing}"
