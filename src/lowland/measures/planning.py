"""What is done within a budget, in which order, and how long it will take."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from lowland.budget import UNITS, Work, in_words

# A shared computation with the loss it is done for.
Key = tuple[Callable[..., Any], str | None]


@dataclass(frozen=True)
class Task:
    """Something to do: its own work, and the loss that it is done with."""

    work: Work
    loss: str | None = None
    first: bool = False  # whether it is done before everything else
    gives: tuple[Callable[..., Any], ...] = ()  # shared computations that are done with it


@dataclass(frozen=True)
class Prices:
    """The seconds that each unit of work takes on a problem."""

    units: dict[str, float]
    shared: Callable[[Callable[..., Any]], Work]  # the work of a shared computation

    def seconds(self, work: Work) -> float:
        """What the work itself takes, without what it needs."""
        return sum(getattr(work, unit) * self.units[unit] for unit in UNITS)

    def marginal(self, task: Task, done: Mapping[Key, float]) -> tuple[float, dict[Key, float]]:
        """What a task takes after others, and each shared computation that it adds to theirs."""
        added: dict[Key, float] = {}

        def need(work: Work) -> None:
            for function in work.needs:
                key = function, task.loss
                if key not in done and key not in added:
                    own = self.shared(function)
                    added[key] = self.seconds(own)
                    need(own)

        need(task.work)
        seconds = self.seconds(task.work) + sum(added.values())
        return seconds, added | {(function, task.loss): 0.0 for function in task.gives}


@dataclass(frozen=True)
class Plan:
    """The tasks that fit, in their order, with the seconds that each will take."""

    order: tuple[str, ...]
    takes: dict[str, float]  # of those, shared work counted with the first that needs it
    alone: dict[str, float]  # of all tasks, each with all that it needs
    gradient: float
    samples: int | None
    line: str

    @property
    def seconds(self) -> float:
        """What all that fits will take."""
        return sum(self.takes.values())

    @property
    def left_out(self) -> list[str]:
        """What does not fit."""
        return [name for name in self.alone if name not in self.takes]

    @classmethod
    def of(
        cls,
        tasks: Mapping[str, Task],
        prices: Prices,
        allowed: float,
        budget: float,
        subject: str,
    ) -> "Plan":
        """From cheap to dear as far as the time allows; those that come first before all others."""
        done: dict[Key, float] = {}
        takes: dict[str, float] = {}
        alone = {name: prices.marginal(task, {})[0] for name, task in tasks.items()}
        left = dict(tasks)
        while left:
            # Each step takes what is cheapest after all that was taken so far.
            costs = {name: prices.marginal(task, done) for name, task in left.items()}
            name = min(left, key=lambda n: (not left[n].first, costs[n][0]))
            seconds, added = costs[name]
            if sum(takes.values()) + seconds > allowed:
                if not left[name].first:
                    break  # all others are dearer
            else:
                takes[name] = seconds
                done |= added
            del left[name]
        gradient = prices.units["gradients"]
        line = _line(takes, alone, gradient, budget, subject)
        return cls(tuple(takes), takes, alone, gradient, None, line)


def _line(
    takes: Mapping[str, float],
    alone: Mapping[str, float],
    gradient: float,
    budget: float,
    subject: str,
) -> str:
    """The plan in one line."""
    measures = sum(name.isidentifier() for name in takes)
    others = [name for name in takes if not name.isidentifier()]
    planned = " and ".join([f"{measures} measures", *others[:1]])
    limit = f" of {in_words(budget)}" if budget < math.inf else ""
    line = f"one gradient takes {in_words(gradient)} here ({subject}); {planned}: about "
    line += f"{in_words(sum(takes.values()))}{limit}"
    if out := [name for name in alone if name not in takes]:
        some = ", ".join(out[:3]) + (", ..." if len(out) > 3 else "")
        line += f"; {len(out)} do not fit ({some}): --budget none runs them"
    return line
