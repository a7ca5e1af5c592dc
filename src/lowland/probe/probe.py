"""The probe: a few scalars of the loss's geometry, from inside a training loop."""

import math
import operator
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from lowland.curvature import eigsh, hessian
from lowland.distributed import is_first_rank, total
from lowland.errors import InputError
from lowland.landscape import Trajectory
from lowland.losses import LossLike
from lowland.measures import chosen_measures, measure
from lowland.probe.critical_step import critical_step
from lowland.probe.pace import Pace
from lowland.probe.records import Log, log_function
from lowland.probe.update import Along, Before, check_optimizer, learning_rate, weights
from lowland.problem import Problem, differentiating, unwrap

if TYPE_CHECKING:
    import pandas as pd

CRITICAL, EIGENVALUE = "critical_sharpness", "largest_eigenvalue"
_RATE = "critical_learning_rate"
_RESIDUAL = 0.01  # of the largest eigenvalue, as a share of it
_PRODUCTS = 200  # with the Hessian, at most


class Probe:
    """Measures a model while it is trained, on one fixed batch, and leaves no trace on it.

    Call it last in each step of the loop, after the optimiser and the schedule::

        probe = ll.Probe(model, "cross_entropy", (X, y), optimizer=optimizer, log="probe.csv")
        for step, batch in enumerate(loader):
            ...
            probe(step)

    The training stays, bit for bit, what it would have been. The model is measured in eval mode and
    in full precision, whatever the loop does. In a distributed training every rank makes a probe
    and calls it at the same steps; each may have samples of its own, and all get the same numbers.

    Args:
        model: the model that is trained; wrapped, compiled or sharded ones too.
        loss: as for :class:`lowland.Problem`.
        batch: the samples that everything is measured on: ``(inputs, targets)``, a dict with
            ``"labels"``, or a data set or loader, all of which is used.
        every: steps between two measurements.
        measures: by default ``["critical_sharpness"]``. ``"largest_eigenvalue"`` starts from the
            eigenvector of the last time; any other measure that :func:`lowland.measure` knows and
            that needs neither test data nor initial weights may be named as well.
        max_overhead: the share of the training's own time that the probe may take. Where a
            measurement costs more, the next one comes later, at a multiple of ``every``. None
            measures at every one, whatever it costs.
        optimizer: the one that trains the model. Critical sharpness is then that of its own last
            update; without it, that of a step of plain gradient descent on the batch.
        log: a CSV file, or a function of the scalars and the step.
        trajectory: a :class:`lowland.Trajectory` of the same model; it records at each call.

    Critical sharpness (Kalra et al. 2026, arXiv:2601.16979) is ``2 / eta_c``. The critical learning
    rate ``eta_c``, which is logged beside it, is the smallest at which the update would have raised
    the loss. On a quadratic, critical sharpness is the curvature along the update in the
    optimiser's own metric; for gradient descent it is at most the largest eigenvalue. It takes
    fewer than ten forward passes and no second derivative. With several parameter groups ``eta_c``
    is that of the first one, and the others' are in proportion.

    >>> model = nn.Linear(2, 1, bias=False)
    >>> X, y = torch.tensor([[1.0, 0.0], [0.0, 2.0]]), torch.zeros(2, 1)
    >>> probe = Probe(model, "mse", (X, y), every=10, measures="largest_eigenvalue")
    >>> scalars = probe(0)
    >>> round(scalars["lowland/largest_eigenvalue"], 4)  # of X^T X
    4.0
    >>> probe(1)
    {}
    """

    def __init__(
        self,
        model: nn.Module,
        loss: LossLike,
        batch: Any,
        *,
        every: int = 100,
        measures: Sequence[str] | str | None = None,
        max_overhead: float | None = 0.05,
        optimizer: Optimizer | None = None,
        log: str | Path | Log | None = None,
        trajectory: Trajectory | None = None,
    ) -> None:
        self._pace = Pace(every, max_overhead)
        self.measures = _as_names(CRITICAL if measures is None else measures)
        self._others = [name for name in self.measures if name not in (CRITICAL, EIGENVALUE)]
        _check_names(self._others)
        if not isinstance(model, nn.Module):
            raise InputError(f"model must be a torch.nn.Module; got {type(model).__name__}")
        self.model = unwrap(model)
        if optimizer is not None:
            check_optimizer(optimizer, self.model)
        self.optimizer = optimizer if CRITICAL in self.measures else None
        self.problem = Problem(self.model, loss, batch)
        if trajectory is not None:
            _check_trajectory(trajectory, self.model)
            self.problem.check_whole()
        self.trajectory = trajectory
        self.history: list[dict[str, float]] = []  # a row for each measured step
        self._before: Before | None = None
        self._last: int | None = None  # the step of the last call
        self._guess: float | None = None  # of the next critical learning rate: the last one
        self._eigenvector: Tensor | None = None
        self._check_measures()
        self.columns = [f"lowland/{name}" for name in self._names()]
        # Only one rank writes; all know, by then, that the file can be written.
        self._log = log_function(log if is_first_rank() else None, self.columns)
        self._pace.leave()  # what making it took is a cost of the probe

    def _names(self) -> list[str]:
        critical = [CRITICAL, _RATE] if CRITICAL in self.measures else []
        rest = [name for name in self.measures if name != CRITICAL]
        return [*critical, *rest, "overhead"]

    def _check_measures(self) -> None:
        """An error now, and not in the middle of a training, if a measure does not apply."""
        if EIGENVALUE in self.measures:
            hessian(self.problem)
        for name, row in measure(self.problem, self._others).items() if self._others else ():
            if row.value is None:
                raise InputError(f"measure {name!r} of the probe: {row.reason}")

    def __repr__(self) -> str:
        return (
            f"Probe({', '.join(self.measures)} on {len(self.problem.train)} samples, "
            f"{len(self.history)} measured, overhead {self._pace.overhead:.1%})"
        )

    def to_frame(self) -> "pd.DataFrame":
        """A table with a row for each measured step."""
        import pandas as pd

        return pd.DataFrame(self.history, columns=["step", *self.columns]).set_index("step")

    def __call__(self, step: int) -> dict[str, float]:
        """Measure, if it is time to: the scalars by name, or nothing.

        ``step`` counts updates of the weights. A second call at the same step does nothing, so that
        it may also be called between the backward passes of an accumulated gradient. A number that
        could not be had at this step (the loss rises at once along the update) is left out.
        """
        step = _whole_number(step)
        if step == self._last:
            return {}
        self._check_consecutive(step)
        due = self._is_due(step)
        if due:
            self._synchronise()
        self._pace.enter(step)
        if self.trajectory is not None and is_first_rank():
            with differentiating():
                self.trajectory.record(step)
        scalars = self._logged(step) if due and self._pace.affords(step) else {}
        self._last, self._before = step, None
        if self.optimizer is not None and self._pace.is_due(step + 1):
            with differentiating():
                now = weights(self.model, self.problem)
                self._before = Before(step, now, learning_rate(self.optimizer))
        self._pace.leave()
        return scalars

    @differentiating()
    def _logged(self, step: int) -> dict[str, float]:
        """The scalars of this step, after they went to history and log."""
        spent = self._pace.spent
        scalars = self._measured()
        self._synchronise()
        self._pace.leave()
        self._pace.plan(step, self._pace.spent - spent)
        scalars["lowland/overhead"] = self._pace.overhead
        self.history.append({"step": step, **scalars})
        self._log(scalars, step)
        return scalars

    def _check_consecutive(self, step: int) -> None:
        """An error at the second call of all, if steps are not counted one by one."""
        second = self._last is not None and not self.history
        if second and self.optimizer is not None and step != self._last + 1:  # type: ignore[operator]
            raise InputError(
                f"the critical sharpness of an update needs the weights before and after it, and "
                f"probe was called at steps {self._last} and {step}; call it after each step of "
                "the optimizer, or leave optimizer=... out, to go along the gradient instead"
            )

    def _is_due(self, step: int) -> bool:
        known = self.optimizer is None or (self._before and self._before.step == step - 1)
        return bool(known) and self._pace.is_due(step)

    def _synchronise(self) -> None:
        """Wait for what an accelerator still computes: its time is the training's."""
        if self.problem.device.type != "cpu":
            torch.accelerator.synchronize()

    def _measured(self) -> dict[str, float]:
        scalars: dict[str, float | None] = {}
        for name in self.measures:
            if name == CRITICAL:
                rate = self._rate()
                scalars |= {CRITICAL: 2 / rate if rate else None, _RATE: rate}
            elif name == EIGENVALUE:
                scalars[name] = self._eigenvalue()
        if self._others:
            rows = measure(self.problem, self._others)
            scalars |= {name: row.value for name, row in rows.items()}
            for name, row in rows.items():
                if row.value is None:  # by default Python shows each text once
                    warnings.warn(f"the probe has no {name}: {row.reason}", stacklevel=4)
        return {
            f"lowland/{name}": float(scalars[name])  # type: ignore[arg-type]
            for name in self._names()
            if scalars.get(name) is not None
        }

    def _rate(self) -> float | None:
        """The critical learning rate of the last update, or of gradient descent."""
        now = weights(self.model, self.problem)
        if self._before is not None:
            start, end, unit, slope = self._before.weights, now, self._before.learning_rate, None
            guess = 1.0
        else:
            loss, gradient = self.problem.gradient()
            start, unit = {name: t.to(gradient[name]) for name, t in self._whole(now).items()}, 1.0
            end = {name: t - gradient[name] for name, t in start.items()}
            squared = sum(float(g.square().sum()) for g in gradient.values())
            slope, guess = -squared, 4 * loss / max(squared, 1e-300)  # of 1/2 c x^2: 2 / c
        if not unit > 0:
            return None
        if self._guess is not None:
            guess = self._guess / unit
        with self.problem.measuring(), torch.no_grad():
            rise = self._rise(start, end)
            if rise is None:
                return None
            search = critical_step(rise, guess, slope)
        self._guess = search.guess * unit
        return None if search.step is None else search.step * unit

    def _whole(self, now: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        return {n: t.full_tensor() if hasattr(t, "full_tensor") else t for n, t in now.items()}

    def _rise(
        self, start: Mapping[str, Tensor], end: Mapping[str, Tensor]
    ) -> Callable[[float], float] | None:
        """The loss after so much of the way from start to end, less that at the start.

        Differences are taken sample by sample, so that small ones are not lost in the mean. None if
        the loss at the start is not finite.
        """
        problem = self.problem
        count = problem.count()

        def losses(size: float) -> list[Tensor]:
            params = Along(start, end, size, problem.dtype)
            return [problem.batch_losses(b, params).double() for b in problem.batches()]

        def mean(parts: list[Tensor]) -> float:
            return float(total(torch.stack([part.sum() for part in parts]).sum())) / count

        at_start = losses(0.0)
        if not math.isfinite(mean(at_start)):
            return None

        def rise(size: float) -> float:
            return mean([a - b for a, b in zip(losses(size), at_start, strict=True)])

        return rise

    def _eigenvalue(self) -> float | None:
        """The largest eigenvalue, from the last eigenvector on; None if it was not found."""
        start, self._eigenvector = self._eigenvector, None
        try:
            H = hessian(self.problem)
            if start is not None and len(start) != H.size:  # others are trained now
                start = None
            pairs = eigsh(
                H, k=1, which="largest", tol=_RESIDUAL, start=start, max_matvecs=_PRODUCTS
            )
        except InputError:  # weights that are no numbers: a training may go on from a checkpoint
            return None
        self._eigenvector = pairs.vectors[:, 0]
        return float(pairs.values[0]) if pairs.converged else None


def _as_names(measures: Sequence[str] | str) -> tuple[str, ...]:
    """The names of measures, each once; an error if they are none."""
    names = [measures] if isinstance(measures, str) else measures
    if not isinstance(names, Sequence) or not all(isinstance(name, str) for name in names):
        raise InputError(f"measures must be names, such as {CRITICAL!r}; got {measures!r}")
    if not names:
        raise InputError(f"measures must name at least one, such as {CRITICAL!r}; got none")
    return tuple(dict.fromkeys(names))


def _whole_number(step: Any) -> int:
    """The step as a number of Python's; an error if it is not whole."""
    if not isinstance(step, bool) and hasattr(step, "__index__"):
        try:
            return operator.index(step)
        except TypeError:  # tensors have the method for all numbers
            pass
    raise InputError(f"step counts updates, in whole numbers; got {step!r}")


def _check_trajectory(trajectory: Any, model: nn.Module) -> None:
    """An error unless it records this model."""
    if not isinstance(trajectory, Trajectory) or trajectory.model is not model:
        raise InputError(
            "trajectory must be a lowland.Trajectory of this model: "
            f"trajectory=lowland.Trajectory(model); got {trajectory!r}"
        )


def _check_names(names: list[str]) -> None:
    """An error for a name that is no measure, or one of a measure that a probe cannot have."""
    if not names:
        return
    try:
        chosen = chosen_measures(names)
    except InputError as error:
        raise InputError(f"{error}; a probe also has {CRITICAL!r}") from None
    for name, chosen_measure in chosen.items():
        needs = {
            "test data": chosen_measure.needs_test,
            "the initial weights": chosen_measure.needs_initial,
        }
        for what, needed in needs.items():
            if needed:
                raise InputError(
                    f"measure {name!r} needs {what}, which a probe has not; leave it out, and "
                    "measure it after the training by lowland.measure"
                )
