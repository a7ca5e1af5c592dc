"""Runs, from their configurations to the files that are kept of them."""

import contextlib
import copy
import functools
import json
import math
import os
import random
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lowland.analysis import analyze
from lowland.atomic import write_file
from lowland.batches import Batches
from lowland.checkpoint import load_weights
from lowland.data import load
from lowland.dual import duality, pair
from lowland.errors import InputError
from lowland.findings import Decomposition, Origin
from lowland.losses import LossLike
from lowland.problem import Problem
from lowland.results import EPOCHS, WEIGHTS, Analysis, epochs_csv
from lowland.sweep.configuration import SETTINGS, Configuration
from lowland.sweep.plan import document, training_key
from lowland.training import Progress, Training, TrainingSettings, lenet, mlp, train_many
from lowland.training.settings import Epoch
from lowland.usercode import called, described, loss_named

# Components of single pairs that are kept with a run, for comparisons; all would be megabytes.
_COMPONENTS = 50

Data = tuple[Tensor, Tensor]
Files = dict[str, bytes]


@dataclass(frozen=True)
class Subject:
    """What a run is about, before anything is trained."""

    model: nn.Module
    initial: dict[str, Tensor]
    train: Data
    test: Data
    data: str  # in words
    loss: LossLike
    settings: TrainingSettings

    def problem(self) -> Problem:
        """The model as it is now, with all that measures may ask for."""
        return Problem(
            self.model,
            self.loss,
            train=self.train,
            test=self.test,
            initial=self.initial,
            training={
                "learning_rate": self.settings.learning_rate,
                "batch_size": self.settings.batch_size,
            },
        )


@dataclass(frozen=True)
class Kept:
    """What is kept of a run: the document ``run.json``, and further files by name."""

    run: dict[str, Any]
    files: Files


def subject(run: Configuration) -> Subject:
    """Read the data and build the network that a configuration names."""
    train, test, words = _data(
        run.data, run.per_class, run.test_per_class, run.label_noise, run.data_seed
    )
    if run.batch_size > len(train[0]):
        raise InputError(
            f"batch_size is {run.batch_size}, but there are {len(train[0])} training samples; use "
            "a smaller batch or more data"
        )
    device = _device()
    model = _network(run, train).to(device)
    _check_layers(run, model)
    train, test = ((X.to(device), y.to(device)) for X, y in (train, test))
    settings = TrainingSettings(**{f.name: getattr(run, f.name) for f in fields(TrainingSettings)})
    loss = loss_named(run.loss, "loss")
    initial = {name: p.detach().clone() for name, p in model.named_parameters()}
    return Subject(model, initial, train, test, words, loss, settings)


def _device() -> torch.device:
    """Where this process computes: the environment variable LOWLAND_DEVICE, or the CPU."""
    name = os.environ.get("LOWLAND_DEVICE", "cpu")
    try:
        return torch.zeros(1, device=name).device
    except (RuntimeError, AssertionError) as error:  # the latter where torch was built without it
        why = str(error).partition("\n")[0]
        raise InputError(
            f"LOWLAND_DEVICE is {name!r}, but torch cannot compute there: {why}"
        ) from error


def _check_layers(run: Configuration, model: nn.Module) -> None:
    for name in run.layers:
        weight = dict(model.named_parameters()).get(f"{name}.weight")
        if weight is None or weight.ndim < 2:
            known = [n.removesuffix(".weight") for n, p in model.named_parameters() if p.ndim > 1]
            raise InputError(
                f"layers names {name!r}, but the matrices of {run.network!r} are in "
                f"{', '.join(map(repr, known))}"
            )


@functools.lru_cache(maxsize=8)  # the runs of a stack share their data
def _data(
    name: str,
    per_class: int | None,
    test_per_class: int | None,
    label_noise: float,
    seed: int,
) -> tuple[Data, Data, str]:
    if ":" not in name:
        found = load(
            name,
            per_class=per_class,
            test_per_class=test_per_class,
            label_noise=label_noise,
            seed=seed,
        )
        return found.train, found.test, found.description
    if per_class is not None or test_per_class is not None or label_noise:
        raise InputError(
            f"per_class, test_per_class and label_noise are for named data sets; {name} decides "
            "itself what it returns"
        )
    with _seeded(seed):
        both = called(name, "data")
    if not isinstance(both, tuple | list) or len(both) != 2:
        raise InputError(f"data {name} must return (train, test); it returned {type(both)}")
    train, test = (
        Batches(part, split, 1024).take(slice(None))
        for part, split in zip(both, ("train", "test"), strict=True)
    )
    for batch in (train, test):
        if not isinstance(batch.inputs, Tensor):
            raise InputError(f"data {name} must have single tensors as inputs to be trained on")
    return (train.inputs, train.targets), (test.inputs, test.targets), name


def _network(run: Configuration, train: Data) -> nn.Module:
    X, y = train
    classes = y.shape[1] if y.ndim > 1 else 1 if y.is_floating_point() else int(y.max()) + 1
    options: dict[str, Any] = {
        "bias": run.bias,
        "scale": run.init_scale,
        "dropout": run.dropout,
        "seed": run.seed,
    }
    if run.sizes is not None:
        if run.sizes[0] != X[0].numel():
            raise InputError(
                f"network {run.network!r} takes {run.sizes[0]} inputs, but {run.data} has "
                f"{X[0].numel()}; let its first size be that"
            )
        if run.sizes[-1] < classes:
            raise InputError(
                f"network {run.network!r} has {run.sizes[-1]} outputs, but {run.data} needs "
                f"{classes}; let its last size be that"
            )
        return mlp(run.sizes, **options)
    if run.network in ("lenet", "cnn"):
        if X.ndim != 4:
            raise InputError(
                f"{run.network} takes images, but {run.data} has inputs of {X.ndim - 1} sizes"
            )
        if run.network == "cnn":  # Feng & Tu's
            options |= {"hidden": (120, 25), "padding": 0}
        return lenet((X.shape[1], X.shape[2], X.shape[3]), classes, **options)
    for name in ("bias", "init_scale", "dropout"):
        if getattr(run, name) != SETTINGS[name].default:
            raise InputError(f"{name} is for named networks; {run.network} builds its own")
    with _seeded(run.seed):
        model = called(run.network, "network")
    if not isinstance(model, nn.Module):
        raise InputError(
            f"network {run.network} must return a torch.nn.Module; it returned "
            f"{type(model).__name__}"
        )
    return model


@contextlib.contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Whatever a user's function draws comes from the seed, and leaves no trace."""
    before = random.getstate(), np.random.get_state()  # noqa: NPY002
    with torch.random.fork_rng():
        random.seed(seed)
        np.random.seed(seed % 2**32)  # noqa: NPY002  (the user's function may use it)
        torch.manual_seed(seed)
        try:
            yield
        finally:
            random.setstate(before[0])
            np.random.set_state(before[1])  # noqa: NPY002


def perform(
    stack: Sequence[Mapping[str, Any]],
    wanted: Sequence[int],
    known: Mapping[str, Files],
    tell: Callable[[Progress], None],
    threads: int | None = None,
) -> list[Kept]:
    """Train a stack and analyse those of its runs that are wanted.

    ``known`` holds weights and epochs of networks that were trained before, by training key. If
    that is not all that is wanted, the whole stack is trained, so that its members come out as
    they did before. What goes wrong with a run is kept in it; the others go on.
    """
    runs = [Configuration.of(settings) for settings in stack]
    keys = [training_key(run) for run in runs]
    needed = {keys[i] for i in wanted}
    jobs = {k: _Job(run) for k, run in zip(keys, runs, strict=True)}
    with _threads(threads):
        if needed <= known.keys():
            jobs = {k: job for k, job in jobs.items() if k in needed}
            for k, job in jobs.items():
                if job.failure is None:
                    job.attempt(functools.partial(job.recall, known[k]))
        else:
            _train([job for job in jobs.values() if job.failure is None], tell)
        return [jobs[keys[i]].kept(runs[i]) for i in wanted]


class Pulse:
    """Writes the progress to a file, once a second; a worker elsewhere may not reach it."""

    def __init__(self, path: Path, then: Callable[[], None] | None = None) -> None:
        self.path, self.then, self.told = path, then, 0.0

    def __call__(self, now: Progress) -> None:
        """Tell, unless it was told a moment ago."""
        if time.monotonic() - self.told < 1:
            return
        self.told = time.monotonic()
        losses = sorted(filter(math.isfinite, now.losses.values()))
        middle = losses[len(losses) // 2] if losses else None
        told = {"part": now.part, "epoch": now.epoch, "loss": middle}
        with contextlib.suppress(InputError):
            write_file(self.path, json.dumps(told))
        if self.then is not None:
            self.then()


class _Job:
    """One network on its way, or what went wrong with it."""

    def __init__(self, run: Configuration) -> None:
        self.failure: str | None = None
        self.trace: str | None = None  # of an error that may not be the user's mistake
        self.trained: Training | None = None
        self.subject: Subject
        self.attempt(lambda: setattr(self, "subject", subject(run)))

    def attempt(self, step: Callable[[], Any]) -> Any:
        """Do something that may fail, and remember why it did."""
        try:
            return step()
        except InputError as error:
            self.failure = str(error)
        except Exception as error:
            self.failure, self.trace = described(error), traceback.format_exc()
        return None

    def recall(self, files: Files) -> None:
        """Take the weights and epochs of the same training."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / WEIGHTS
            path.write_bytes(files[WEIGHTS])
            load_weights(self.subject.model, path)
        names, *rows = (line.split(",")[1:] for line in files[EPOCHS].decode().splitlines())
        absent: dict[str, Any] = {"error": None}
        epochs = [
            Epoch(**{**absent, **dict(zip(names, map(float, row), strict=True))}) for row in rows
        ]
        self.trained = Training(self.subject.settings, epochs, 0.0)

    def kept(self, run: Configuration) -> Kept:
        """The run as it is stored."""
        began = time.perf_counter()
        files: Files = {}
        results: dict[str, Any] = {}
        seconds, note = 0.0, None
        if self.trained is not None:
            seconds, note = self.trained.seconds, _shortfall(self.trained)
            results = {
                "epochs": len(self.trained.epochs),
                "converged": self.trained.converged,
                "weight_norm": self.trained.epochs[-1].weight_norm,
            }
            files[EPOCHS] = epochs_csv(self.trained.curves())
            self.failure = self.failure or self.trained.failure
            if self.failure is None:
                trained = self.trained
                found = self.attempt(lambda: analysed(run, self.subject, trained))
                if found is not None:
                    results |= found[1]
                    files |= found[0].files()
        if self.trace is not None:
            files["error.txt"] = self.trace.encode()
        seconds += time.perf_counter() - began
        return Kept(document(run, self.failure, note=note, results=results, seconds=seconds), files)


def _shortfall(trained: Training) -> str | None:
    if trained.converged:
        return None
    return (
        f"the loss was {trained.losses[-1]:.3g} after {len(trained.epochs)} epochs, the limit, and "
        f"not below {trained.settings.stop_loss:g}"
    )


def analysed(
    run: Configuration, its: Subject, trained: Training
) -> tuple[Analysis, dict[str, Any]]:
    """The brief analysis of a trained run, and its single numbers for the table."""
    problem = its.problem()
    analysis = analyze(
        problem,
        run.layers[0] if run.layers else None,
        title=title(run),
        origin=origin(its, trained),
        basis=run.basis,  # type: ignore[arg-type]
        n_sharp=run.n_sharp,
        measures=run.measures,
        widths=run.widths,
        brief=True,
    )
    results = analysis.results
    numbers: dict[str, Any] = vars(results.outcome).copy()
    if results.duality is not None:
        numbers |= {"layer": results.duality.layer, "layer_norm": results.duality.weight_norm}
        numbers |= _numbers(results.duality)
        results = replace(results, duality=_fewer_components(results.duality))
    numbers |= {row.name: row.value for row in results.measures}
    if len(run.layers) > 1:
        others = duality(  # type: ignore[call-overload]
            problem,
            list(run.layers[1:]),
            pairs=pair(problem),
            basis=run.basis,
            n_sharp=run.n_sharp,
            widths=run.widths,
        )
        for name, split in others.items():
            numbers |= {f"{name}:{key}": value for key, value in _numbers(split).items()}
        layers = {name: replace(split, per_pair=None) for name, split in others.items()}
        results = replace(results, layers=layers)
    return replace(analysis, results=results), numbers


def _numbers(split: Decomposition) -> dict[str, float]:
    """Single numbers of a decomposition that stand in the table of results."""
    return {
        "paired_gap": split.paired_gap,
        "eq11": split.eq11,
        "sharp": split.sharp,
        "flat": split.flat,
        "total_g": split.totals.total_g,
        "total_w_data": split.totals.total_w_data,
        "loss_defect": split.fit.loss_defect,
    }


def _fewer_components(split: Decomposition) -> Decomposition:
    """Single pairs along the leading directions only; along all, a run would take megabytes."""
    pairs = split.per_pair
    if pairs is None:
        return split
    return replace(split, per_pair=replace(pairs, components=pairs.components[:, :_COMPONENTS]))


def origin(its: Subject, trained: Training, command: str | None = None) -> Origin:
    """Where a trained run came from, for the record of an analysis."""
    seed = trained.settings.seed
    return Origin(command, its.data, seed=seed, training=trained.record())


def title(run: Configuration) -> str:
    """What distinguishes the run, in a line."""
    plain = {name: setting.default for name, setting in SETTINGS.items()}
    own = [
        f"{name}={value}"
        for name, value in run.training().items()
        if value != plain[name] and name not in ("network", "data")
    ]
    return f"{run.network} on {run.data}" + (f": {', '.join(own)}" if own else "")


def _train(jobs: Sequence[_Job], tell: Callable[[Progress], None]) -> None:
    """All at once; if that fails, one by one, to find out which of them it was."""
    groups: dict[LossLike, list[_Job]] = {}
    for job in jobs:
        groups.setdefault(job.subject.loss, []).append(job)
    for group in groups.values():
        before = [copy.deepcopy(job.subject.model.state_dict()) for job in group]
        try:
            _train_together(group, tell)
        except Exception:
            for job, state in zip(group, before, strict=True):
                job.subject.model.load_state_dict(state)
                job.attempt(functools.partial(_train_together, [job], tell))


def _train_together(jobs: Sequence[_Job], tell: Callable[[Progress], None]) -> None:
    subjects = [job.subject for job in jobs]
    trained = train_many(
        [its.model for its in subjects],
        [its.train for its in subjects],
        [its.settings for its in subjects],
        tell,
        loss=subjects[0].loss,
    )
    for job, one in zip(jobs, trained, strict=True):
        job.trained = one


@contextlib.contextmanager
def _threads(count: int | None) -> Iterator[None]:
    before = torch.get_num_threads()
    if count is not None:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
