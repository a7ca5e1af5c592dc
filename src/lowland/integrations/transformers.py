"""The probe as a callback of Transformers, and a Trainer that takes SAM's two steps."""

import contextlib
from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from lowland.errors import InputError
from lowland.integrations.sparing import Sparing
from lowland.losses import LossLike
from lowland.optim import SAM
from lowland.probe import Probe

try:
    from transformers import (
        Trainer,
        TrainerCallback,
        TrainerControl,
        TrainerState,
        TrainingArguments,
    )
except ImportError:
    raise ImportError(
        "lowland.integrations.transformers needs Transformers: pip install 'lowland[transformers]'"
    ) from None


class SharpnessMonitor(Sparing, TrainerCallback):
    """Logs what a :class:`lowland.Probe` measures by the Trainer's own ``log``.

    ``trainer.add_callback(SharpnessMonitor(trainer, batch))``. The scalars go where the Trainer's
    losses go: ``report_to``, and ``trainer.state.log_history``. What cannot be measured is a
    warning, and the training goes on without it.

    Args:
        trainer: the Trainer that it is added to, which logs.
        batch: the samples to measure on, a dict of tensors with ``"labels"``, such as
            ``collator([dataset[i] for i in range(32)])``.
        loss: as for :class:`lowland.Problem`.
        every: optimiser steps between two measurements.
        measures: as for the probe.
        max_overhead: as for the probe.
    """

    def __init__(
        self,
        trainer: Trainer,
        batch: Any,
        loss: LossLike = "cross_entropy",
        *,
        every: int = 100,
        measures: Sequence[str] | str | None = None,
        max_overhead: float | None = 0.05,
    ) -> None:
        if not isinstance(trainer, Trainer):
            raise InputError(
                f"the first argument is the Trainer that logs; got {type(trainer).__name__}"
            )
        self.trainer, self.batch, self.loss = trainer, batch, loss
        self.options: dict[str, Any] = {
            "every": every,
            "measures": measures,
            "max_overhead": max_overhead,
        }

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        """Make the probe."""
        with self.sparing():
            if self not in self.trainer.callback_handler.callbacks:
                raise InputError(
                    "the monitor logs by another Trainer than the one that it was added to; make "
                    "one for each: trainer.add_callback(SharpnessMonitor(trainer, batch))"
                )
            self.probe = Probe(
                kwargs["model"], self.loss, self.batch, optimizer=kwargs["optimizer"],
                **self.options,
            )  # fmt: skip

    def on_step_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        """Measure after a step of the optimiser."""
        if self.probe is None:
            return
        scalars: dict[str, float] = {}
        with self.sparing():
            scalars = self.probe(state.global_step)
        if scalars:
            self.trainer.log(scalars)


class SAMTrainer(Trainer):
    """A Trainer that takes the steps of SAM: up, and down with the gradient found there.

    A callback cannot do that. The batches of a step, as many as are accumulated, go through the
    model twice: a step costs two. Clipping acts on the second gradient, the one that is used.

    Args:
        args: those of ``Trainer``.
        rho: the radius of :class:`lowland.optim.SAM`, around the optimiser that the arguments of
            the training name. An optimiser of your own, ``optimizers=(...)``, must have SAM's
            ``first_step`` itself, and a radius of its own.
        options: those of ``Trainer``.
    """

    def __init__(self, *args: Any, rho: float = 0.05, **options: Any) -> None:
        super().__init__(*args, **options)
        self.rho = rho
        self._window: list[dict[str, Any]] = []  # the batches of the step under way
        if self.optimizer is not None and not hasattr(self.optimizer, "first_step"):
            raise InputError(
                f"SAMTrainer makes its optimizer from the training's arguments, or takes one with "
                f"first_step, such as lowland.optim.SAM; got {type(self.optimizer).__name__}"
            )

    def create_optimizer(self, *args: Any, **options: Any) -> Any:
        """The optimiser of the arguments, with SAM around it."""
        optimizer = super().create_optimizer(*args, **options)
        if not hasattr(optimizer, "first_step"):
            self.optimizer = SAM(optimizer.param_groups, type(optimizer), rho=self.rho)
        return self.optimizer

    def training_step(self, model: nn.Module, inputs: dict[str, Any], *rest: Any) -> Tensor:
        """A backward pass; after a step's last one, those of SAM's second gradient."""
        loss = super().training_step(model, inputs, *rest)
        self._window.append(inputs)
        if self.accelerator.sync_gradients:
            window, self._window = self._window, []
            sam: Any = getattr(self.optimizer, "optimizer", self.optimizer)  # out of Accelerate's
            if not getattr(sam, "climbs", True):  # LookSAM, between two climbs
                return loss
            sam.first_step()
            try:
                for place, batch in enumerate(window, start=1):
                    # ranks add up their gradients after the last batch, as they did before
                    waits = place < len(window)
                    with self.accelerator.no_sync(model) if waits else contextlib.nullcontext():
                        super().training_step(model, batch, *rest)
            except BaseException:
                sam.restore()
                raise
        return loss
