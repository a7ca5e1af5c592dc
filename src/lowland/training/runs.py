"""Networks that are trained together: each with its epochs so far, and the progress of all."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import nn

from lowland.losses import Loss
from lowland.training.loop import Data
from lowland.training.settings import Epoch, Training, TrainingSettings, epochs_left, over


@dataclass(frozen=True)
class TrainingProgress:
    """How far a training of many networks is."""

    done: int
    total: int
    epoch: int  # of the runs that are trained now
    losses: dict[int, float]  # of these, by their number
    part: float  # of all the work, from 0 to 1, if losses go on falling as they do
    seconds_left: float


class Run:
    """A network that is being trained, with its epochs so far."""

    def __init__(
        self,
        number: int,
        model: nn.Module,
        data: Data,
        settings: TrainingSettings,
        judged: int | None,
        loss: Loss,
    ) -> None:
        self.number, self.model, self.data, self.settings = number, model, data, settings
        self.judged, self.loss = judged, loss
        self.epochs: list[Epoch] = []
        self.seconds = 0.0

    @property
    def over(self) -> bool:
        """Whether it has reached its goal or its last epoch, or has diverged."""
        return over(self.epochs, self.settings)

    @property
    def result(self) -> Training:
        """The training as it is returned."""
        return Training(self.settings, self.epochs, self.seconds)

    @property
    def part_done(self) -> float:
        """From 0 to 1, if its loss goes on falling as it does."""
        n = len(self.epochs)
        if not n or self.over:
            return float(self.over)
        return n / (n + epochs_left([e.loss for e in self.epochs], self.settings))


class Watch:
    """Calls ``tell`` with the progress of all runs, and ``ended`` with each that has ended."""

    def __init__(
        self,
        runs: Sequence[Run],
        tell: Callable[[TrainingProgress], None],
        ended: Callable[[int, Training], None],
    ) -> None:
        self.runs, self.tell, self._ended = runs, tell, ended
        self.began = time.perf_counter()

    def ended(self, run: Run) -> None:
        """Hand over a run whose model has its weights by now."""
        self._ended(run.number, run.result)

    def __call__(self, now: Sequence[Run]) -> None:
        """Tell how far all are, after an epoch of the runs that are trained now."""
        part = sum(run.part_done for run in self.runs) / len(self.runs)
        elapsed = time.perf_counter() - self.began
        self.tell(
            TrainingProgress(
                done=sum(run.over for run in self.runs),
                total=len(self.runs),
                epoch=max(len(run.epochs) for run in now),
                losses={run.number: run.epochs[-1].loss for run in now},
                part=part,
                seconds_left=elapsed * (1 - part) / part if part else float("inf"),
            )
        )
