"""Is this a minimum? Flat and sharp are words for one, and mean little anywhere else.

The limits were set on small networks for digits, MNIST and a regression. Their training was none,
half done, at a constant learning rate, or ended by a falling one, with and without weight decay, or
by a loss of 5e-4. ``|G + a w|`` over the standard error of G was 0.1 to 0.4 where it had ended, and
0.55 to 10 where it had not, on plateaus too.
"""

import math
from dataclasses import replace

import torch

from lowland.budget import Work
from lowland.distributed import total
from lowland.errors import InputError
from lowland.findings import Convergence, Decomposition, State, TrainingRecord
from lowland.measures.shared.sample_gradients import sample_gradients
from lowland.problem import Problem

FITTED = 0.01  # of the constant prediction's loss: what is left is too little to call unfinished
LEARNED = 0.05  # share of the constant's loss or error that a trained network is below it
# In more samples than these any gradient is beyond its standard error, for SGD never stands still.
SAMPLES = 1000

# Outputs of all samples for which the best constant takes no time that a budget would notice.
_QUICK = 1 << 22

CONVERGENCE_WORK = Work(needs=(sample_gradients,))


def convergence(
    problem: Problem,
    train_loss: float,
    train_error: float | None,
    split: Decomposition | None = None,
    training: TrainingRecord | None = None,
) -> Convergence:
    """Say whether the weights are a minimum of the training loss, and by what.

    A network is *untrained* if its training loss is hardly below that of the best constant
    prediction, nor its training error. It is a *minimum* if its training loss is next to nothing.
    Otherwise it is *unfinished* if the mean gradient is beyond what chance leaves of it in so many
    samples, if the loss curves downwards in the layer shown, or if a training that never reached
    its goal was still falling.

    Weight decay holds the gradient at ``-a w``, so that the part of it along the weights, where it
    would make them larger, does not count.
    """
    constant_loss, constant_error = constant_prediction(problem)
    gradient, noise = _gradient(problem)
    numbers = Convergence(
        state="unknown",
        constant_loss=constant_loss,
        constant_error=constant_error,
        gradient=gradient,
        gradient_noise=noise,
        curvature=_curvature(split),
        fall=_fall(training),
    )
    return replace(numbers, state=_state(numbers, train_loss, train_error))


def convergence_by_loss(
    problem: Problem, train_loss: float, train_error: float | None
) -> Convergence:
    """The same where there was no time for more: what the losses tell, and no gradient.

    Nothing is known where a sample has so many outputs that this takes long, too.
    """
    known: tuple[float | None, float | None] = None, None
    if problem.loss.needs_model or _numbers(problem) <= _QUICK:
        known = constant_prediction(problem)
    numbers = Convergence("unknown", *known, None, None, None, None)
    return replace(numbers, state=_state(numbers, train_loss, train_error))


def _numbers(problem: Problem) -> int:
    """How many numbers the model puts out for all training samples."""
    with problem.measuring(), torch.no_grad():
        return problem.outputs(problem.first(1).inputs).numel() * problem.count()


def _state(numbers: Convergence, train_loss: float, train_error: float | None) -> State:
    constant, chance = numbers.constant_loss, numbers.constant_error
    if constant is not None and constant > 0:
        unlearned = train_error is None or chance is None or train_error > (1 - LEARNED) * chance
        if unlearned and train_loss > (1 - LEARNED * numbers.steep) * constant:
            return "untrained"
        if 0 <= train_loss <= FITTED * constant:
            return "minimum"
    if numbers.steep or numbers.saddle or numbers.falling:
        return "unfinished"
    return "unknown" if numbers.gradient_noise is None else "minimum"


def _gradient(problem: Problem) -> tuple[float | None, float | None]:
    """The gradient's norm without what weight decay would hold, and its standard error.

    The error is None where the samples show no spread.
    """
    try:
        moments = sample_gradients(problem)
    except InputError:  # a loss that runs the model itself, or has no gradient
        return None, None
    weights = {name: problem.params[name].double() for name in moments.mean}
    along = sum(float((g * weights[name]).sum()) for name, g in moments.mean.items())
    size = sum(float(w.square().sum()) for w in weights.values())
    decay = max(0.0, -along / size) if size else 0.0
    rest = sum(float((g + decay * weights[n]).square().sum()) for n, g in moments.mean.items())
    squares = sum(float(s.sum()) for s in moments.squares.values())
    spread = squares - sum(float(g.square().sum()) for g in moments.mean.values())
    # One sample, or many with the same gradient, have no spread that chance could be told by; what
    # is left of one is rounding.
    if problem.count() < 2 or spread <= _rounding(problem.dtype) * squares:
        return math.sqrt(rest), None
    return math.sqrt(rest), math.sqrt(spread / min(problem.count() - 1, SAMPLES))


def _rounding(dtype: torch.dtype) -> float:
    """What rounding may leave, relatively, of a mean of squares less the squared mean."""
    return 100 * torch.finfo(dtype).eps


def constant_prediction(problem: Problem) -> tuple[float | None, float | None]:
    """Training loss and error of the best outputs that are the same for every sample."""
    loss = problem.loss
    if loss.needs_model:
        return None, None
    with problem.measuring(), torch.no_grad():
        first = problem.first(1)
        outputs = problem.outputs(first.inputs)
    targets = problem.train.targets.to(problem.device)
    if targets.is_floating_point():
        targets = targets.to(problem.dtype)
    count = problem.count()
    rest = outputs.shape[1:]
    shape = loss.constant_shape(outputs, first.targets)
    constant = torch.zeros((1, *shape), dtype=outputs.dtype, device=outputs.device)
    constant.requires_grad_()
    solver = torch.optim.LBFGS([constant], max_iter=50, line_search_fn="strong_wolfe")

    def everywhere() -> torch.Tensor:
        return constant.expand(len(targets), *rest)

    def closure() -> torch.Tensor:
        with torch.enable_grad():
            here = loss(everywhere(), targets).sum() / count
            (slope,) = torch.autograd.grad(here, constant)
        constant.grad = total(slope)
        return total(here.detach())

    solver.step(closure)
    with torch.no_grad():
        least_loss = float(total(loss(everywhere(), targets).double().sum()) / count)
        if not math.isfinite(least_loss):
            return None, None
        if not loss.has_errors(targets):
            return least_loss, None
        return least_loss, float(total(loss.wrong(everywhere(), targets).sum()) / count)


def _curvature(split: Decomposition | None) -> float | None:
    """The least eigenvalue of the layer's Hessian over the largest, where all are known."""
    if split is None or split.setting.basis != "hessian" or not split.complete:
        return None
    largest = float(split.eigenvalue.max())
    return float(split.eigenvalue.min()) / largest if largest > 0 else None


def _fall(training: TrainingRecord | None) -> float | None:
    """By which share the loss fell from the last tenth of the epochs but one to the last tenth.

    None where the training ended because its loss had reached the goal.
    """
    if training is None or training.converged:
        return None
    losses = training.curves.get("loss")
    if losses is None or len(losses) < 4:
        return None
    tenth = max(1, len(losses) // 10)
    before, after = float(losses[-2 * tenth : -tenth].mean()), float(losses[-tenth:].mean())
    return 1 - after / before if before > 0 else None
