"""The probe as a callback of Lightning."""

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import nn
from torch.utils import _pytree as pytree

from lowland.errors import InputError
from lowland.integrations.sparing import Sparing
from lowland.losses import LossLike
from lowland.probe import Probe

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
except ImportError:
    raise ImportError(
        "lowland.integrations.lightning needs Lightning: pip install 'lowland[lightning]'"
    ) from None


class SharpnessMonitor(Sparing, Callback):
    """Logs what a :class:`lowland.Probe` measures to the Trainer's loggers.

    ``trainer.callback_metrics`` has the numbers as well, for other callbacks to watch. What cannot
    be measured is a warning, and the training goes on without it.

    Args:
        loss: as for :class:`lowland.Problem`; the module's ``forward`` gives the outputs. Where it
            takes something else than batches hold (``forward(self, x)`` with batches in dicts), a
            loss of module and batch: ``ll.ModelLoss(lambda module, batch:
            cross_entropy(module(batch.inputs["x"]), batch.targets, reduction="none"))``.
        batch: the samples to measure on; by default the first batch of the training.
        model: the name of the network within the module, if that is not the module itself.
        on: ``"step"`` measures after optimiser steps, critical sharpness along the optimiser's own
            update; ``"validation"`` after each validation, along the gradient.
        every: optimiser steps between two measurements; by default 100, or with
            ``on="validation"`` as often as there is a validation.
        measures: as for the probe.
        max_overhead: as for the probe.
    """

    tried = False  # to make the probe, at the training's first batch

    def __init__(
        self,
        loss: LossLike = "cross_entropy",
        batch: Any = None,
        *,
        model: str | None = None,
        on: Literal["step", "validation"] = "step",
        every: int | None = None,
        measures: Sequence[str] | str | None = None,
        max_overhead: float | None = 0.05,
    ) -> None:
        if on not in ("step", "validation"):
            raise InputError(f"on must be 'step' or 'validation'; got {on!r}")
        self.loss, self.batch, self.model, self.on = loss, batch, model, on
        self.options: dict[str, Any] = {
            "every": (100 if on == "step" else 1) if every is None else every,
            "measures": measures,
            "max_overhead": max_overhead,
        }

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Forget the last training."""
        self.probe, self.tried = None, False

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Make the probe, before the first update."""
        if self.tried:
            return
        self.tried = True
        with self.sparing():
            self.probe = self._made(trainer, pl_module, batch)

    def _made(self, trainer: Trainer, module: LightningModule, batch: Any) -> Probe:
        model = module if self.model is None else _part(module, self.model)
        optimizer = trainer.optimizers[0] if len(trainer.optimizers) == 1 else None
        if self.batch is None:  # a copy, since loaders may write the next batch into its memory
            batch = pytree.tree_map(lambda t: t.clone() if torch.is_tensor(t) else t, batch)
        else:
            batch = self.batch
        return Probe(
            model,
            self.loss,
            batch,
            optimizer=optimizer if self.on == "step" else None,
            **self.options,
        )

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """Measure after a step of the optimiser."""
        if self.on != "step" or self.probe is None:
            return
        scalars: dict[str, float] = {}
        with self.sparing():
            scalars = self.probe(trainer.global_step)
        if scalars:
            # Lightning would only pass on what falls on a multiple of its log_every_n_steps.
            pl_module.log_dict(scalars, logger=False)
            for logger in trainer.loggers:
                logger.log_metrics(scalars, step=trainer.global_step)

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Measure after a validation, but not after the one that precedes the training."""
        if self.on == "validation" and self.probe is not None and not trainer.sanity_checking:
            with self.sparing():
                scalars = self.probe(trainer.global_step)
                pl_module.log_dict(scalars, sync_dist=trainer.world_size > 1)


def _part(module: LightningModule, name: str) -> nn.Module:
    """The part of a module that has this name."""
    parts = {part for part, _ in module.named_modules() if part}
    if name not in parts:
        first = ", ".join(part for part, _ in module.named_children()) or "none"
        raise InputError(f"model names a part of the module, such as {first}; got {name!r}")
    return module.get_submodule(name)
