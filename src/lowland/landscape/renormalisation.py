"""Statistics of activities, estimated again at a point between two models.

Units of an average of two models vary less than those of either: its activities collapse. Models
with BatchNorm get the statistics of their own activities (as Garipov et al. and Ainsworth et al.
do). Others are corrected as REPAIR does it (Jordan et al., 2023): the outputs of every hidden dense
and convolutional layer are shifted and scaled, unit by unit, to the mean and standard deviation
that lie between those of the two models.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from lowland.errors import InputError
from lowland.landscape.models import model_at
from lowland.problem import Problem

_LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
SAMPLES = 1024  # training samples that statistics are of

Moments = dict[str, tuple[Tensor, Tensor]]  # mean and standard deviation of each unit, by layer


def renormalised(
    problem: Problem, first: Mapping[str, Tensor], second: Mapping[str, Tensor]
) -> Callable[[float, Mapping[str, Tensor]], nn.Module]:
    """A function from t and the weights there to a model whose statistics are put right.

    At the ends, where the model's own statistics are right, they stay.
    """
    norms = [m for m in problem.model.modules() if isinstance(m, _BatchNorm)]
    if any(m.running_mean is not None for m in norms):
        return lambda t, state: _reestimated(problem, state, at_end=t in (0.0, 1.0))
    ends = [_moments(problem, model_at(problem, state)) for state in (first, second)]
    layers = list(ends[0])[:-1]  # in the order of the forward pass: the last gives the outputs
    if not layers:
        raise InputError("the model has neither BatchNorm nor hidden layers to renormalise")

    def repaired(t: float, state: Mapping[str, Tensor]) -> nn.Module:
        goal: Moments = {}
        for name in layers:
            (mean, std), (other_mean, other_std) = (end[name] for end in ends)
            goal[name] = (1 - t) * mean + t * other_mean, (1 - t) * std + t * other_std
        return _repaired(problem, model_at(problem, state), goal)

    return repaired


def _run(problem: Problem, model: nn.Module) -> None:
    """One forward pass over the samples that statistics are of, in one batch."""
    batch = next(problem.batches("train", SAMPLES))
    inputs: Any = batch.inputs
    with torch.no_grad():
        args, kwargs = ((), inputs) if isinstance(inputs, Mapping) else ((inputs,), {})
        if isinstance(inputs, tuple | list):
            args = tuple(inputs)
        model(*args, **kwargs)


def _reestimated(problem: Problem, state: Mapping[str, Tensor], at_end: bool) -> nn.Module:
    model = model_at(problem, state).eval()
    if at_end:
        return model
    norms = [m for m in model.modules() if isinstance(m, _BatchNorm)]
    before = [m.momentum for m in norms]
    for m in norms:
        m.train()
        m.momentum = 1.0  # the statistics of this one batch
    _run(problem, model)
    for m, momentum in zip(norms, before, strict=True):
        m.momentum = momentum
        m.eval()
    return model


@contextlib.contextmanager
def _hooked(
    model: nn.Module, layers: list[str], hook: Callable[[str, Tensor], Tensor | None]
) -> Iterator[None]:
    modules = dict(model.named_modules())
    handles = [
        modules[name].register_forward_hook(lambda m, i, out, name=name: hook(name, out))
        for name in layers
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _axis(layer: nn.Module) -> int:
    """Along which dimension of its outputs a layer's units lie."""
    return -1 if isinstance(layer, nn.Linear) else 1


def _statistics(out: Tensor, layer: nn.Module) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of each unit over samples and positions."""
    rows = out.movedim(_axis(layer), -1).flatten(0, -2)
    return rows.mean(0), rows.std(0, unbiased=False)


def _moments(problem: Problem, model: nn.Module) -> Moments:
    """Of all dense and convolutional layers, in the order in which they run."""
    found: Moments = {}
    modules = dict(model.named_modules())
    layers = [name for name, m in modules.items() if isinstance(m, _LAYERS)]

    def note(name: str, out: Tensor) -> None:
        found[name] = _statistics(out, modules[name])

    with _hooked(model, layers, note):
        _run(problem, model.eval())
    return found


def _repaired(problem: Problem, model: nn.Module, goal: Moments) -> nn.Module:
    """Scale and shift the layers of a copy, in the order of the forward pass."""
    modules = dict(model.named_modules())

    def correct(name: str, out: Tensor) -> Tensor:
        layer = modules[name]
        mean, std = _statistics(out, layer)
        wanted_mean, wanted_std = goal[name]
        scale = torch.where(std > 0, wanted_std / torch.where(std > 0, std, 1), 1)
        shift = wanted_mean - mean * scale
        with torch.no_grad():
            layer.weight.mul_(scale.view(-1, *[1] * (layer.weight.ndim - 1)))
            if layer.bias is None:
                layer.bias = nn.Parameter(shift.clone())
            else:
                layer.bias.mul_(scale).add_(shift)
        axis = _axis(layer)
        return (out.movedim(axis, -1) * scale + shift).movedim(-1, axis)

    with _hooked(model, list(goal), correct):
        _run(problem, model.eval())
    return model
