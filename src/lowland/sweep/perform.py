"""What a worker does: it trains a stack of networks, and returns the files to keep of each run."""

import contextlib
import copy
import functools
import io
import json
import math
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lowland.atomic import write_file
from lowland.checkpoint import load_weights
from lowland.errors import InputError
from lowland.experiment.configuration import Configuration
from lowland.experiment.recording import recorded
from lowland.experiment.subject import Subject
from lowland.losses import LossLike
from lowland.results import ARRAYS, EPOCHS, WEIGHTS, epochs_csv
from lowland.sweep.keys import key, training_key
from lowland.sweep.plan import document
from lowland.sweep.store import Store
from lowland.sweep.trial import Run, Trial, run_of
from lowland.training import Epoch, Training, TrainingProgress, train_many
from lowland.usercode import called, described

Files = dict[str, bytes]  # contents by name


@dataclass(frozen=True)
class FinishedRun:
    """What is kept of a run: the document ``run.json``, and further files."""

    document: dict[str, Any]
    files: Files


def perform(
    stack: Sequence[Mapping[str, Any]],
    wanted: Sequence[int],
    trained: Mapping[str, Files],
    tell: Callable[[TrainingProgress], None],
    threads: int | None = None,
    store: Path | None = None,
) -> list[FinishedRun]:
    """Train a stack of networks and record those of its runs that are wanted.

    Each run is stored as soon as it is recorded, so that whatever ends the sweep loses no other. A
    worker that cannot reach the store returns its runs. What goes wrong with a run is its result;
    the others go on.

    Args:
        stack: the runs, as their ``to_dict`` gives them; a trial is alone in its stack.
        wanted: the places in the stack of the runs to record.
        trained: weights and epochs of networks that were trained before, by training key. Unless
            they are all that is wanted, the whole stack is trained, so that its networks come out
            as they did before.
        tell: called with the progress of the training.
        threads: how many torch may use; by default as many as now.
        store: the directory of the sweep's store, which is another one, or none, elsewhere.
    """
    keep = _Keep(store)
    runs = [run_of(settings) for settings in stack]
    if isinstance(runs[0], Trial):
        with _threads(threads):
            keep(_tried(runs[0]))
            return keep.left
    configurations = [run for run in runs if not isinstance(run, Trial)]
    keys = [training_key(configuration) for configuration in configurations]
    pending = [i for i in wanted if not keep.has(configurations[i])]
    needed = {keys[i] for i in pending}

    def record(network: _Network) -> None:
        for i in [i for i in pending if networks[keys[i]] is network]:
            pending.remove(i)
            keep(network.finished(configurations[i]))

    with _threads(threads):
        networks = {k: _Network(c) for k, c in zip(keys, configurations, strict=True)}
        if needed <= trained.keys():
            for name in needed:
                networks[name].recall(trained[name])
        else:
            able = [network for network in networks.values() if network.failure is None]
            _train(able, tell, record)
        for network in networks.values():  # also of what could not be built or trained
            record(network)
    return keep.left


class _Keep:
    """Stores runs from a worker: into the store of the sweep itself, which has them locked."""

    def __init__(self, directory: Path | None) -> None:
        self.store: Store | None = None
        self.left: list[FinishedRun] = []  # runs that cannot be stored from here
        with contextlib.suppress(InputError, OSError):
            self.store = Store(directory) if directory is not None else None

    def has(self, run: Run) -> bool:
        """Whether an earlier attempt at the stack has stored the run."""
        return self.store is not None and self.store.whole(key(run))

    def __call__(self, run: FinishedRun) -> None:
        """Store a run, or keep it for the sweep to store.

        On another machine the same path may lead elsewhere, and a worker may outlive its sweep: the
        run's lock is then not held.
        """
        name = run.document["key"]
        if self.store is not None and self.store.is_locked(name):
            with contextlib.suppress(InputError):  # a full disk: the sweep itself says so
                self.store.write(name, run.document, run.files)
                return
        self.left.append(run)


class Pulse:
    """Writes the progress to a file, once a second, if the worker can reach it."""

    def __init__(self, path: Path, then: Callable[[], None] | None = None) -> None:
        self.path, self.then, self.last = path, then, 0.0

    def __call__(self, now: TrainingProgress) -> None:
        """Write, unless that was done less than a second ago; then call ``then``."""
        if time.monotonic() - self.last < 1:
            return
        self.last = time.monotonic()
        losses = sorted(filter(math.isfinite, now.losses.values()))
        median = losses[len(losses) // 2] if losses else None
        with contextlib.suppress(InputError):
            state = {"part": now.part, "epoch": now.epoch, "loss": median}
            write_file(self.path, json.dumps(state))
        if self.then is not None:
            self.then()


@dataclass(frozen=True)
class _Failure:
    """Why a step failed."""

    reason: str
    trace: str | None = None  # of an error that may not be the user's mistake


def _attempt(step: Callable[[], Any]) -> tuple[Any, _Failure | None]:
    """What a step returns, or why it failed."""
    try:
        return step(), None
    except InputError as error:
        return None, _Failure(str(error))
    except Exception as error:
        return None, _Failure(described(error), traceback.format_exc())


class _Network:
    """A network of a stack: its subject, then its training, or why there is none."""

    def __init__(self, configuration: Configuration) -> None:
        self.training: Training | None = None
        self.subject: Subject
        self.subject, self.failure = _attempt(lambda: Subject.of(configuration))

    def recall(self, files: Files) -> None:
        """Take weights and epochs from an earlier training."""
        if self.failure is None:
            self.training, self.failure = _attempt(lambda: _recalled(self.subject, files))

    def finished(self, configuration: Configuration) -> FinishedRun:
        """The run of a configuration that trains this network."""
        began = time.perf_counter()
        training, failure = self.training, self.failure
        files: Files = {}
        results: dict[str, Any] = {}
        seconds, note = 0.0, None
        if training is not None:
            seconds, note = training.seconds, _shortfall(training)
            results = {
                "epochs": len(training.epochs),
                "converged": training.converged,
                "weight_norm": training.epochs[-1].weight_norm,
            }
            files[EPOCHS] = epochs_csv(training.curves())
            if failure is None and training.failure is not None:
                failure = _Failure(training.failure)
            if failure is None:
                record, failure = _attempt(lambda: recorded(configuration, self.subject, training))
                if failure is None:
                    results |= record.numbers
                    files |= record.analysis.files()
        if failure is not None and failure.trace is not None:
            files["error.txt"] = failure.trace.encode()
        seconds += time.perf_counter() - began
        reason = failure.reason if failure is not None else None
        saved = document(configuration, reason, note=note, results=results, seconds=seconds)
        return FinishedRun(saved, files)


def _tried(trial: Trial) -> FinishedRun:
    """What the function of a trial returns: its numbers, and its arrays in a file."""
    began = time.perf_counter()
    returned, failure = _attempt(
        lambda: _numbers(called(trial.function, "function", dict(trial.settings), trial.seed))
    )
    numbers, arrays = returned if failure is None else ({}, {})
    files: Files = {}
    if arrays:
        archive = io.BytesIO()
        np.savez(archive, **arrays)
        files[ARRAYS] = archive.getvalue()
    if failure is not None and failure.trace is not None:
        files["error.txt"] = failure.trace.encode()
    reason = failure.reason if failure is not None else None
    seconds = time.perf_counter() - began
    return FinishedRun(document(trial, reason, results=numbers, seconds=seconds), files)


def _numbers(returned: Any) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The single values that a trial returned, and its arrays."""
    if not isinstance(returned, Mapping):
        raise InputError(
            f"a trial must return a dictionary of numbers and arrays; got {type(returned).__name__}"
        )
    arrays = {name: np.asarray(v) for name, v in returned.items() if isinstance(v, np.ndarray)}
    plain = {k: v.item() if isinstance(v, np.generic) else v for k, v in returned.items()}
    return {name: value for name, value in plain.items() if name not in arrays}, arrays


def _recalled(subject: Subject, files: Files) -> Training:
    """Put stored weights into the subject's model; the training that they come from."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / WEIGHTS
        path.write_bytes(files[WEIGHTS])
        load_weights(subject.model, path)
    names, *rows = (line.split(",")[1:] for line in files[EPOCHS].decode().splitlines())
    absent: dict[str, Any] = {"error": None}  # where the targets are no classes
    epochs = [Epoch(**{**absent, **dict(zip(names, map(float, row), strict=True))}) for row in rows]
    return Training(subject.settings, epochs, 0.0)


def _shortfall(training: Training) -> str | None:
    """A sentence that the training stopped at its limit; None if it reached its goal."""
    if training.converged:
        return None
    return (
        f"the loss was {training.losses[-1]:.3g} after {len(training.epochs)} epochs, the limit, "
        f"and not below {training.settings.stop_loss:g}"
    )


def _train(
    networks: Sequence[_Network],
    tell: Callable[[TrainingProgress], None],
    ended: Callable[[_Network], None],
) -> None:
    """All at once; if that fails, those left one by one, to find out which of them it was."""
    groups: dict[LossLike, list[_Network]] = {}
    for network in networks:
        groups.setdefault(network.subject.loss, []).append(network)
    for group in groups.values():
        initial = [copy.deepcopy(network.subject.model.state_dict()) for network in group]
        try:
            _train_together(group, tell, ended)
        except Exception:
            for network, state in zip(group, initial, strict=True):
                if network.training is not None:
                    continue
                network.subject.model.load_state_dict(state)
                alone = functools.partial(_train_together, [network], tell, ended)
                _, network.failure = _attempt(alone)


def _train_together(
    networks: Sequence[_Network],
    tell: Callable[[TrainingProgress], None],
    ended: Callable[[_Network], None],
) -> None:
    def over(number: int, training: Training) -> None:
        networks[number].training = training
        ended(networks[number])

    subjects = [network.subject for network in networks]
    train_many(
        [subject.model for subject in subjects],
        [subject.train for subject in subjects],
        [subject.settings for subject in subjects],
        tell,
        loss=subjects[0].loss,
        judged=[subject.judged for subject in subjects],
        ended=over,
    )


@contextlib.contextmanager
def _threads(count: int | None) -> Iterator[None]:
    """Let torch use so many threads within the block."""
    before = torch.get_num_threads()
    if count is not None:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
