"""Other models of the same kind, as points of weight space."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lowland.checkpoint import load_weights
from lowland.errors import InputError
from lowland.landscape.points import Weights
from lowland.problem import Problem, copy_of, unwrap

ModelLike = nn.Module | Mapping[str, Tensor] | str | Path


def state_of(problem: Problem, model: ModelLike | None = None) -> dict[str, Tensor]:
    """A model's parameters and floating-point buffers, in the problem's precision.

    ``model`` is another one of the same architecture, a state dict, or a checkpoint; by default the
    problem's own. Buffers are part of a point: the statistics of a normalisation belong to the
    weights that they were estimated with.
    """
    own = {n: t for n, t in _tensors(problem.model).items() if t.is_floating_point()}
    if model is None:
        given: Mapping[str, Tensor] = own
    elif isinstance(model, str | Path):
        other = problem.copied_model()
        load_weights(other, Path(model))
        given = _tensors(other)
    elif isinstance(model, nn.Module):
        given = _tensors(unwrap(model))
    elif isinstance(model, Mapping):
        given = model
    else:
        raise InputError(
            "a model is a torch.nn.Module, a state dict or a checkpoint; got "
            f"{type(model).__name__}"
        )
    wrong = [n for n, t in own.items() if n not in given or given[n].shape != t.shape]
    if wrong:
        raise InputError(
            f"the models differ in their architecture: {', '.join(map(repr, wrong[:3]))} is "
            "missing or has another shape"
        )
    state = {n: given[n].detach().to(t.device, t.dtype).clone() for n, t in own.items()}
    bad = [n for n, t in state.items() if not t.isfinite().all()]
    if bad:
        raise InputError(f"{bad[0]!r} of the other model holds values that are not finite")
    return state


def names_of(models: Sequence[ModelLike]) -> list[str]:
    """The files' names of checkpoints, or their paths where names are alike; letters for others."""
    files = [Path(model) for model in models if isinstance(model, str | Path)]
    names = []
    for i, model in enumerate(models):
        if not isinstance(model, str | Path):
            names.append(f"model {chr(ord('a') + i)}")
        else:
            alike = sum(file.name == Path(model).name for file in files) > 1
            names.append(str(model) if alike else Path(model).name)
    return names


def measured(problem: Problem, state: Weights) -> dict[str, Tensor]:
    """The measured parameters of a state: those that have a place in weight space."""
    return {name: state[name] for name in problem.params if name in state}


def differing(problem: Problem, *states: Weights) -> list[str]:
    """The names of what differs between states, without the measured parameters."""
    first, *others = states
    rest = [n for n in first if n not in problem.params]
    return [n for n in rest if any(not torch.equal(first[n], s[n]) for s in others if n in s)]


def model_at(problem: Problem, state: Weights) -> nn.Module:
    """A copy of the problem's model with other parameters and buffers."""
    model = copy_of(problem.model)
    with torch.no_grad():
        for name, t in _tensors(model).items():
            if name in state:
                t.copy_(state[name])
    return model


def _tensors(model: nn.Module) -> dict[str, Any]:
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}
