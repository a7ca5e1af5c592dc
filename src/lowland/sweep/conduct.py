"""A sweep from start to end: what is missing is locked, done somewhere, and stored here.

A worker stores each run as it ends, where it can reach the store. This process stores what comes
back from others, so that a worker needs no disk of ours.
"""

import contextlib
import functools
import json
import statistics
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Executor, Future, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lowland.errors import InputError
from lowland.reading import content, text
from lowland.sweep.executors import Serial, WorkerDied, opened
from lowland.sweep.keys import key, key_here, source_of, training_key
from lowland.sweep.lock import RunLock
from lowland.sweep.plan import document, planned, planned_keys, stacks_of
from lowland.sweep.store import Store
from lowland.sweep.trial import Run, Trial
from lowland.usercode import described, imported

if TYPE_CHECKING:
    from lowland.sweep.perform import FinishedRun

# Seconds between two looks at what workers tell, and at what another sweep may have let go.
_LOOK = 1.0
_TELLING = 0.02  # the share of a sweep that tells how long the rest takes; less is mostly start-up
_WEIGHTS = ("weights.safetensors", "epochs.csv")


@dataclass(frozen=True)
class SweepProgress:
    """How far a sweep is."""

    done: int
    total: int
    running: int
    loss: float | None  # the median of what is trained now
    seconds_left: float | None


@dataclass(frozen=True)
class Summary:
    """The result of a sweep."""

    directory: Path
    runs: list[str]  # the keys of all its runs
    fresh: int  # done now; the others were there
    failed: dict[str, str]  # the reasons
    unconverged: int
    damaged: dict[str, str]  # runs that were not as they had been written, and were done again
    files: list[Path]
    seconds: float


def run(
    grid: Iterable[Run],
    out: str | Path,
    *,
    executor: str = "processes",
    workers: int | None = None,
    retry: bool = False,
    old: bool = False,
    progress: Callable[[SweepProgress], None] = lambda now: None,
) -> Summary:
    """Do every run of a grid that is not yet in the directory ``out``.

    Args:
        grid: the runs.
        out: the directory; started again on it, a sweep does only what is missing. Several sweeps
            may work on one directory at once.
        executor: serial, processes, dask, or the address of a Dask scheduler, tcp://host:port.
        workers: how many processes, by default one for each core.
        retry: do runs again that failed.
        old: put also runs that other source did, of Lowland or of the user's, into the table.
        progress: called now and then.
    """
    began = time.perf_counter()
    runs = {key(configuration): configuration for configuration in grid}
    if not runs:
        raise InputError("the grid has no runs")
    store = Store(out, create=True)
    survey = store.survey()
    damaged = {name: why for name, why in survey.damaged.items() if name in runs}
    failed = {row["key"] for row in store.rows() if retry and row["status"] == "failed"}
    again = {name for name in runs if name in failed and _set_aside_failed(store, name)}
    missing = set(runs.keys() - survey.whole) | again
    if missing:
        _check([runs[name] for name in runs if name in missing])
    stacks = [_PlannedStack(store, stack) for stack in stacks_of(store, runs.values())]
    todo = [stack for stack in stacks if missing & stack.keys.keys()]
    conductor = _Conductor(store, todo, len(runs), missing, progress)
    if todo:
        conductor.conduct(executor, workers)
    for name in runs:  # a sweep that was killed may have left one beside runs that it finished
        _pulse(store, name).unlink(missing_ok=True)
    rows = {row["key"]: row for row in store.rows() if row["key"] in runs}
    return Summary(
        directory=store.directory,
        runs=list(runs),
        fresh=conductor.fresh,
        failed={name: row["reason"] for name, row in rows.items() if row["status"] == "failed"},
        unconverged=_unconverged(rows.values()),
        damaged=damaged,
        files=store.export(old=old),
        seconds=time.perf_counter() - began,
    )


def _unconverged(rows: Iterable[dict[str, Any]]) -> int:
    """How many of these runs stopped at their limit of epochs, before their goal."""
    return sum(row["status"] == "done" and row.get("converged") is False for row in rows)


def _set_aside_failed(store: Store, name: str) -> bool:
    """Make room for another attempt; False if another sweep has made one that succeeded."""
    lock = store.lock(name)
    if lock is None:
        return True
    with lock:
        if store.whole(name) and store.read(name)["status"] == "failed":
            store.set_aside(name)
        return not store.whole(name)


def _check(runs: Collection[Run]) -> None:
    """Raise if a run names what cannot be built or measured, before anything is trained."""
    from lowland.experiment.subject import Subject
    from lowland.measures import chosen_measures

    names = ("data", "per_class", "test_per_class", "network", "batch_size", "loss")
    for function in {run.function for run in runs if isinstance(run, Trial)}:
        imported(function, "function")
    configurations = [run for run in runs if not isinstance(run, Trial)]
    kinds = {tuple(getattr(run, name) for name in names): run for run in configurations}
    for run in kinds.values():
        Subject.of(run)
    for measures in {run.measures for run in configurations}:
        chosen_measures(measures)


def _check_code(run: dict[str, Any]) -> None:
    """Raise if the worker that did a run has other source code than we have."""
    theirs, ours = run["code"]["source"], source_of(run["configuration"])
    if theirs != ours:
        raise InputError(
            f"a worker has other code (source {theirs}) than this process (source {ours}), so its "
            "numbers are not ours; give the workers the same Lowland and the same files of yours"
        )


def _pulse(store: Store, name: str) -> Path:
    """The file with the progress of a stack, named after its first run."""
    return store.directory / "locks" / f"{name}.json"


def _told(pulse: Path) -> dict[str, Any]:
    """The last progress that a worker wrote; empty if there is none that could be ours."""
    try:
        said = json.loads(text(pulse))
        loss = None if said["loss"] is None else float(said["loss"])
        return {"epoch": int(said["epoch"]), "loss": loss, "part": float(said["part"])}
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return {}


class _PlannedStack:
    """Runs of a plan that are done together, and which of them this sweep is to do."""

    def __init__(self, store: Store, runs: list[Run]) -> None:
        self.store = store
        self.keys = {key(run): run for run in runs}
        self.locks: list[RunLock] = []
        self.wanted: list[str] = []
        self.pulse = _pulse(store, next(iter(self.keys)))

    def missing(self) -> list[str]:
        return [name for name in self.keys if not self.store.whole(name)]

    def lock(self) -> bool:
        """Lock all that is missing, or nothing if another sweep has a part of it."""
        for name in self.missing():
            lock = self.store.lock(name)
            if lock is None:
                self.release()
                return False
            self.locks.append(lock)
        self.wanted = self.missing()  # what became whole meanwhile is not done again
        return True

    def release(self) -> None:
        with contextlib.suppress(OSError):
            self.pulse.unlink()
        while self.locks:
            self.locks.pop().release()

    def told(self) -> dict[str, Any]:
        """The last progress that the worker wrote; empty if there is none."""
        return _told(self.pulse)

    def failed(self, reason: str) -> "list[tuple[dict[str, Any], dict[str, bytes]]]":
        """Documents and files of the wanted runs if all of them failed for this reason."""
        return [(document(self.keys[name], reason), {}) for name in self.wanted]

    def alone(self) -> list["_PlannedStack"]:
        """The wanted runs, each as a stack of its own."""
        return [_PlannedStack(self.store, [self.keys[name]]) for name in self.wanted]


@dataclass
class _Conductor:
    """Hands out stacks to an executor, and stores the runs that come back."""

    store: Store
    stacks: list[_PlannedStack]
    total: int
    left: set[str]  # the keys of runs that are not in the store yet
    tell: Callable[[SweepProgress], None]
    fresh: int = 0
    running: "dict[Future[list[FinishedRun]], _PlannedStack]" = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.began, self.missing = time.perf_counter(), len(self.left)
        rows = [row for row in self.store.rows() if row["status"] == "done"]
        self.trained = {row.get("training"): row["key"] for row in rows}

    def conduct(self, executor: str, workers: int | None) -> None:
        """Do all stacks, and wait for those that another sweep does."""
        todo = deque(self.stacks)
        try:
            with opened(executor, workers) as pool:
                while todo or self.running:
                    self._hand_out(pool, todo)
                    if not self.running and todo:  # another sweep has the rest
                        time.sleep(_LOOK)
                    for future in wait(self.running, _LOOK, FIRST_COMPLETED).done:
                        self._take_in(future, todo)
                    self._report(self.running.values())
        finally:
            for stack in self.running.values():
                stack.release()

    def _hand_out(self, pool: Executor, todo: deque[_PlannedStack]) -> None:
        from lowland.sweep.perform import Pulse, perform

        serial = isinstance(pool, Serial)  # works in this very thread, with all its cores
        for _ in range(len(todo)):
            if len(self.running) >= (1 if serial else pool.at_once):  # type: ignore[attr-defined]
                return
            stack = todo.popleft()
            if not stack.lock():
                todo.append(stack)
                continue
            self.left -= stack.keys.keys() - set(stack.wanted)
            if not stack.wanted:
                stack.release()
                continue
            names = list(stack.keys)
            report = functools.partial(self._report, [stack])
            try:
                future = pool.submit(
                    perform,
                    [run.to_dict() for run in stack.keys.values()],
                    [names.index(name) for name in stack.wanted],
                    self._trained_before(stack),
                    Pulse(stack.pulse.absolute(), report if serial else None),
                    None if serial else 1,
                    self.store.directory.absolute(),
                )
            except BaseException:
                stack.release()
                raise
            self.running[future] = stack

    def _trained_before(self, stack: _PlannedStack) -> dict[str, dict[str, bytes]]:
        """Weights and epochs of networks that the stack wants and the store has."""
        files = {}
        for training in {training_key(stack.keys[name]) for name in stack.wanted}:
            source = self.trained.get(training)
            if source is not None and self.store.whole(source):
                folder = self.store.path(source)
                with contextlib.suppress(OSError):
                    files[training] = {n: content(folder / n) for n in _WEIGHTS}
        return files

    def _take_in(self, future: "Future[list[FinishedRun]]", todo: deque[_PlannedStack]) -> None:
        stack = self.running.pop(future)
        try:
            try:
                finished = [(run.document, run.files) for run in future.result()]
            except WorkerDied as error:
                if len(stack.wanted) > 1:  # find out which of them it was
                    self._count(stack)
                    todo.extend(stack.alone())
                    return
                finished = stack.failed(str(error))
            except BrokenExecutor as error:  # the runs are not to blame
                raise InputError(f"{error}; the same command goes on where it stopped") from error
            except (Exception, SystemExit) as error:
                finished = stack.failed(described(error))
            for run, files in finished:
                _check_code(run)
                self.store.write(run["key"], run, files)
            self._count(stack)
        finally:
            stack.release()

    def _count(self, stack: _PlannedStack) -> None:
        """Take note of the runs of a stack that are stored by now."""
        for name in stack.wanted:
            if name in self.left and self.store.whole(name):
                self.fresh += 1
                self.left.remove(name)
                run = self.store.read(name)
                if run["status"] == "done":
                    self.trained[run["results"]["training"]] = name

    def _report(self, running: Collection[_PlannedStack]) -> None:
        told = [(stack, stack.told()) for stack in running]
        losses = [said["loss"] for _, said in told if said.get("loss") is not None]
        done = self.missing - len(self.left)
        part = done + sum(len(s.wanted) * said.get("part", 0) for s, said in told)
        elapsed = time.perf_counter() - self.began
        self.tell(
            SweepProgress(
                done=self.total - len(self.left),
                total=self.total,
                running=sum(len(stack.wanted) for stack in running),
                loss=statistics.median(losses) if losses else None,
                seconds_left=(
                    elapsed * (self.missing / part - 1) if part > _TELLING * self.missing else None
                ),
            )
        )


def status(directory: str | Path) -> list[dict[str, Any]]:
    """How far each sweep on a directory is, as read from it; nothing in it is changed.

    Sweeps that were started with other source are left out: their runs have other keys.
    """
    store = Store(directory)
    states = {row["key"]: row for row in store.rows()}
    sweeps: list[dict[str, Any]] = []
    for name in store.plans():
        plan, stacks = planned(store, name), planned_keys(store, name)
        if plan is None or stacks is None:
            sweeps.append({"sweep": name, "unreadable": True})
            continue
        keys = [k for stack in stacks for k in stack]
        if keys != [key_here(single) for stack in plan for single in stack]:
            continue
        rows = [states[k] for k in keys if k in states]
        # What a pulse says is out of date unless a living process has the stack.
        living = [stack for stack in stacks if any(map(store.is_locked, stack))]
        told = [said for stack in living if (said := _told(_pulse(store, stack[0])))]
        sweeps.append(
            {
                "sweep": name,
                "runs": len(keys),
                "done": sum(row["status"] == "done" for row in rows),
                "failed": sum(row["status"] == "failed" for row in rows),
                "unconverged": _unconverged(rows),
                "missing": len(keys) - len(rows),
                "training": told,
            }
        )
    return sweeps
