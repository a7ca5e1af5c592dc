"""What is done within a budget, in which order, and how long it will take.

Everything is done on all training samples if it fits. If not, the cheapest tasks are, as many as
fit half of the time; of the others, those that can be estimated are done on a subset, as large as
lets all of them fit; and what is left of the time goes to the rest. Where these go through all
samples for something that others read as well, those read it too.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from lowland.budget import UNITS, Work, in_words

LEAST = 64  # samples of a subset; it is a power of two,
MOST = 1 / 4  # and at most this share of all, as it is gone through more than once


class Copies(NamedTuple):
    """How often a subset is gone through, and linear algebra done, for one task."""

    passes: float
    flops: float


# A shared computation, with the loss it is done for, on all samples or a subset.
Key = tuple[Callable[..., Any], str | None, bool]


@dataclass(frozen=True)
class Task:
    """Something to do: its own work, and the loss that it is done with."""

    work: Work
    loss: str | None = None
    first: bool = False  # whether it is done before everything else, in the order given
    gives: tuple[Callable[..., Any], ...] = ()  # shared computations that are done with it
    sampled: Copies | None = None  # what it takes on a subset; None if it needs all samples
    reduced: Work | None = None  # what is done on a subset, if it is less


@dataclass(frozen=True)
class Prices:
    """The seconds that each unit of work takes on a problem."""

    units: dict[str, float]  # a pass over all training samples
    shared: Callable[[Callable[..., Any]], Work]  # the work of a shared computation

    def seconds(self, work: Work, share: float = 1.0, copies: Copies | None = None) -> float:
        """What the work itself takes, without what it needs, on a share of the samples."""
        passes, flops = (1.0, 1.0) if copies is None else (copies.passes * share, copies.flops)
        return sum(
            (flops if unit == "flops" else passes) * getattr(work, unit) * self.units[unit]
            for unit in UNITS
        )


@dataclass
class _Agenda:
    """Tasks that are taken one by one, with shared work counted once."""

    prices: Prices
    given: Mapping[Callable[..., Any], str] = field(default_factory=dict)  # by tasks, and which
    takes: dict[str, float] = field(default_factory=dict)
    done: set[Key] = field(default_factory=set)

    @property
    def seconds(self) -> float:
        return sum(self.takes.values())

    def copy(self) -> "_Agenda":
        return replace(self, takes=dict(self.takes), done=set(self.done))

    def cost(self, task: Task, share: float | None = None) -> tuple[float, set[Key]]:
        """The seconds of a task after those taken, and the shared work that is done with it."""
        added: set[Key] = set()
        copies = task.sampled if share is not None else None

        def seconds(work: Work) -> float:
            total = self.prices.seconds(work, share or 1.0, copies)
            for function in work.needs:
                loss = None if getattr(function, "any_loss", False) else task.loss
                key = function, loss, share is not None
                if key not in self.done and key not in added:
                    added.add(key)
                    total += seconds(self.prices.shared(function))
            return total

        total = seconds(task.reduced if task.reduced and share is not None else task.work)
        return total, added | {(f, task.loss, part) for f in task.gives for part in (False, True)}

    def _waits(self, task: Task) -> bool:
        """Whether it reads what another task gives that was not taken."""
        return any(self.given.get(f, "") not in ("", *self.takes) for f in task.work.needs)

    def fill(self, tasks: Mapping[str, Task], allowed: float, share: float | None = None) -> None:
        """Take tasks while they fit, from cheap to dear; those that come first before others."""
        left = {name: task for name, task in tasks.items() if name not in self.takes}
        costs = {name: self.cost(task, share) for name, task in left.items()}
        reading = {
            n for n, task in left.items() if not self.given.keys().isdisjoint(task.work.needs)
        }
        while True:
            ready = [n for n, task in left.items() if n not in reading or not self._waits(task)]
            if not ready:
                return
            name = min(ready, key=lambda n: (not left[n].first, costs[n][0]))
            seconds, added = costs[name]
            del left[name]
            if self.seconds + seconds <= allowed:
                self.takes[name] = seconds
                self.done |= added
                # Those that share some of it take less now.
                sharing = {n: t for n, t in left.items() if not added.isdisjoint(costs[n][1])}
                costs |= {n: self.cost(task, share) for n, task in sharing.items()}


@dataclass(frozen=True)
class Plan:
    """The tasks that fit, in their order, with the seconds that each will take."""

    takes: dict[str, float]  # in order, shared work counted with the first that needs it
    alone: dict[str, float]  # of all tasks on all samples, each with all that it needs
    gradient: float
    samples: int | None = None  # of the subset
    sampled: frozenset[str] = frozenset()  # tasks that are done on it
    line: str = ""

    @property
    def seconds(self) -> float:
        """What all that fits will take."""
        return sum(self.takes.values())

    @classmethod
    def of(cls, tasks: Mapping[str, Task], prices: Prices, allowed: float, count: int) -> "Plan":
        """The plan for so many seconds and training samples."""
        alone = {name: _Agenda(prices).cost(task)[0] for name, task in tasks.items()}
        gradient = prices.units["gradients"]
        given = {function: name for name, task in tasks.items() for function in task.gives}
        agenda = _Agenda(prices, given)
        agenda.fill(tasks, allowed)
        plan = cls(_in_order(agenda.takes, tasks), alone, gradient)
        if len(agenda.takes) == len(tasks):
            return plan
        agenda = _Agenda(prices, given)
        agenda.fill(tasks, allowed / 2)
        others = {
            name: task
            for name, task in tasks.items()
            if task.sampled is not None and name not in agenda.takes
        }
        size = _subset(agenda, others, allowed, count)
        if size is None:
            return plan
        rest = {name: task for name, task in tasks.items() if name not in others}
        share = size / count
        divided = agenda.copy()
        divided.fill(others, allowed, share)
        sampled = divided.takes.keys() - agenda.takes.keys()
        divided.fill(rest, allowed)
        # What all samples are gone through for anyway needs no subset, if nothing is lost by it.
        free = {
            name: task
            for name, task in others.items()
            if divided.cost(task)[0] <= _Agenda(prices).cost(task, share)[0]
        }
        agenda.fill({name: others[name] for name in others.keys() - free.keys()}, allowed, share)
        agenda.fill(rest, allowed)
        agenda.fill(free, allowed)
        if divided.takes.keys() <= agenda.takes.keys():
            sampled -= free.keys()
        else:
            agenda = divided
        if not sampled:
            return plan
        takes = _in_order(agenda.takes, tasks)
        return replace(plan, takes=takes, samples=size, sampled=frozenset(sampled))

    def in_words(self, budget: float, subject: str) -> str:
        """The plan in one line: what a gradient takes, what is planned, and what does not fit."""
        others = [name for name in self.alone if name in self.takes and not name.isidentifier()]
        count = sum(name.isidentifier() for name in self.takes)
        parts = [f"{count} measure{'s' * (count != 1)}", *others[:1]]
        limit = f" of {in_words(budget)}" if budget < math.inf else ""
        line = f"one gradient takes {in_words(self.gradient)} here ({subject}); "
        line += f"{' and '.join(parts)}: about {in_words(self.seconds)}{limit}"
        if self.sampled:
            line += f"; {len(self.sampled)} of them on {self.samples:,} samples"
        if out := [name for name in self.alone if name not in self.takes]:
            some = ", ".join(out[:3]) + (", ..." if len(out) > 3 else "")
            fit = "does not fit" if len(out) == 1 else "do not fit"
            line += f"; {len(out)} {fit} ({some}): --budget none does that"
        return line


def _in_order(takes: Mapping[str, float], tasks: Mapping[str, Task]) -> dict[str, float]:
    """The tasks in the order given, but with those that must come first before the others."""
    first = [name for name, task in tasks.items() if task.first and name in takes]
    return {name: takes[name] for name in dict.fromkeys([*first, *takes])}


def _subset(agenda: _Agenda, tasks: Mapping[str, Task], allowed: float, count: int) -> int | None:
    """The size of the largest subset on which all tasks fit, or the least; None for no subset."""
    if not tasks or MOST * count < LEAST:
        return None
    size = 2 ** math.floor(math.log2(MOST * count))
    while size > LEAST:
        trial = agenda.copy()
        trial.fill(tasks, allowed, size / count)
        if tasks.keys() <= trial.takes.keys():
            break
        size //= 2
    return size
