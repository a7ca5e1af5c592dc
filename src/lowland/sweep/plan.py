"""Which runs are done together, decided once: the same on every start of the same sweep.

Networks that train in one stack differ in the last bits from those that train in another. So that
a sweep that was interrupted ends with the very numbers of one that was not, its stacks are
remembered, and an unfinished stack is trained again as a whole.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from importlib.metadata import version
from typing import Any

from lowland import __version__
from lowland.errors import InputError
from lowland.experiment.configuration import Configuration
from lowland.sweep.keys import key, source_of, sweep_key, training_key
from lowland.sweep.store import Store
from lowland.sweep.trial import Run, Trial, run_of

# Networks of a stack: more gain little, and what still trains is what an interrupt can cost.
# Convolutions train one by one, and what a network of the user's is made of shows only when it is
# built.
STACK, CONVOLUTIONS, USERS = 16, 1, 4

# Runs that differ in these have other shapes, or take other steps.
_SHAPES = ("data", "per_class", "network", "bias", "loss", "optimizer", "batch_size")


def document(
    run: Run,
    failure: str | None,
    *,
    note: str | None = None,
    results: Mapping[str, Any] | None = None,
    seconds: float = 0.0,
) -> dict[str, Any]:
    """The document that is stored of a run, as ``run.json``."""
    return {
        "key": key(run),
        "configuration": run.to_dict(),
        "status": "done" if failure is None else "failed",
        "reason": failure or note,
        "results": {"training": training_key(run), **(results or {})},
        "seconds": seconds,
        "code": {
            "lowland": __version__,
            "source": source_of(run.to_dict()),
            "torch": version("torch"),
        },
    }


def stacks_of(store: Store, runs: Collection[Run]) -> list[list[Run]]:
    """The stacks of a sweep: those of its first start on this store, if it was started before."""
    name = sweep_key(runs)
    stacks = planned(store, name)
    if stacks is None or {run for stack in stacks for run in stack} != set(runs):
        trained = {str(row.get("training")) for row in store.rows() if row["status"] == "done"}
        # The longest first: then no worker has a long one left when the others are done.
        stacks = sorted(_stacked(runs, trained), key=lambda stack: -sum(map(_effort, stack)))
        plan = [[run.to_dict() for run in stack] for stack in stacks]
        keys = [[key(run) for run in stack] for stack in stacks]
        store.remember(name, {"runs": len(runs), "stacks": plan, "keys": keys})
    return stacks


def planned_keys(store: Store, name: str) -> list[list[str]] | None:
    """The keys of a plan's stacks as they were written, or None if there are none to be read.

    To work them out anew would import what the runs name, and a look must run nobody's code.
    """
    try:
        stacks = store.plan(name)["keys"]
        return [[store.path(own).name for own in stack] for stack in stacks]
    except (InputError, KeyError, TypeError):
        return None


def planned(store: Store, name: str) -> list[list[Run]] | None:
    """The stacks of a plan, or None if there is none that can be read."""
    try:
        stacks = store.plan(name)["stacks"]
        return [[run_of(run) for run in stack] for stack in stacks]
    except (InputError, KeyError, TypeError, AttributeError):
        return None


def _stacked(runs: Iterable[Run], trained: Collection[str]) -> Iterator[list[Run]]:
    """Stacks of runs of one shape; ``trained`` are the training keys of networks in the store.

    Runs of such networks are kept apart from those to train. Runs that will take equally long share
    a stack: it shrinks as its runs end, and a small one gains less.
    """
    groups: dict[Any, dict[str, list[Configuration]]] = {}
    for run in runs:
        if isinstance(run, Trial):
            yield [run]
            continue
        training = training_key(run)
        shape = training in trained, *(getattr(run, name) for name in _SHAPES)
        groups.setdefault(shape, {}).setdefault(training, []).append(run)
    for alike in groups.values():
        trainings = sorted(alike.values(), key=lambda same: -_effort(same[0]))
        some = trainings[0][0]
        size = STACK if some.sizes else USERS if ":" in some.network else CONVOLUTIONS
        for first in range(0, len(trainings), size):
            yield [run for same in trainings[first : first + size] for run in same]


def _effort(run: Run) -> float:
    """How long a training takes, up to a factor: the number of steps goes as 1 / learning rate."""
    if isinstance(run, Trial):
        return 0.0
    return run.batch_size / run.learning_rate
