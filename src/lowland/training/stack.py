"""Many networks of one architecture as one: their weights stacked, their steps taken together.

A step of a small network is mostly the overhead of its many operations. With the weights of R
networks stacked, each operation serves all of them. Where the network is a sequence of dense layers
these are batched matrix products, otherwise ``torch.func.vmap`` of the module itself.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.modules.batchnorm import _NormBase

Weights = dict[str, Tensor]  # by name, each with the runs as its first dimension
# (weights, inputs, training) -> outputs (runs, batch, ...). Inputs are (runs, batch, ...), or
# (1, batch, ...) where all runs see the same; weights may hold masks of Dropouts.
Forward = Callable[[Weights, Tensor, bool], Tensor]

# Modules that see each activity alone.
_POINTWISE = (nn.ReLU, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.Softplus)

# Random numbers that a run draws for its dropout at once. It must not depend on the other runs.
_DRAWN = 1_000_000


def kind_of(model: nn.Module) -> str | None:
    """Equal for models that can share a stack; None for one that must train alone.

    Batch statistics belong to one network, and noise other than ``nn.Dropout`` could not be drawn
    for each run from its own seed. Runs may differ in the rate of dropout, and in nothing else
    that a module keeps beside its tensors.
    """
    noise = nn.modules.dropout._DropoutNd
    if any(isinstance(m, _NormBase | noise) and type(m) is not nn.Dropout for m in model.modules()):
        return None
    if any(not p.requires_grad for p in model.parameters()):
        return None
    shapes = {name: (tuple(v.shape), v.dtype, v.device) for name, v in model.state_dict().items()}
    modules = {name: (type(m), _constants(m)) for name, m in model.named_modules()}
    return f"{modules}{shapes}"


def _constants(module: nn.Module) -> dict[str, Any]:
    own = ["p"] if isinstance(module, nn.Dropout) else []
    return {
        name: value
        for name, value in vars(module).items()
        if isinstance(value, bool | int | float | str | tuple) and name not in ["training", *own]
    }


def stacked(models: Sequence[nn.Module]) -> Weights:
    """Parameters and buffers of all models, each a copy."""
    states = [{**dict(m.named_parameters()), **dict(m.named_buffers())} for m in models]
    return {name: laid_out([s[name].detach() for s in states]) for name in states[0]}


def laid_out(same: Sequence[Tensor]) -> Tensor:
    """One parameter of all runs; matrices are stored by columns, as the products read them."""
    if same[0].ndim != 2:
        return torch.stack(list(same))
    return torch.stack([one.mT for one in same]).mT


class Dropouts:
    """Masks of every ``nn.Dropout`` for every run, each drawn from the run's own seed."""

    def __init__(self, models: Sequence[nn.Module], sample: Tensor, seeds: Sequence[int]) -> None:
        self.shapes = _seen_by_dropouts(models[0], sample)
        self.rates = {
            name: torch.tensor([_dropouts(m)[name].p for m in models], dtype=torch.float64)
            for name in self.shapes
        }
        self._generators = {
            name: [torch.Generator().manual_seed(seed + 10**6 * (1 + i)) for seed in seeds]
            for i, name in enumerate(self.shapes)
        }
        self._drawn: dict[str, list[Tensor]] = {name: [] for name in self.shapes}

    def __bool__(self) -> bool:
        return bool(self.shapes)

    def draw(self, batch: int, like: Tensor) -> Weights:
        """Masks for the next batch, by the name of the buffer that holds them."""
        masks = {}
        for name, shape in self.shapes.items():
            ready = self._drawn[name]
            if not ready or ready[-1].shape[1] != batch:
                steps = max(1, _DRAWN // (batch * max(1, shape.numel())))
                uniform = torch.stack(
                    [torch.rand(steps, batch, *shape, generator=g) for g in self._generators[name]],
                    dim=1,
                )
                kept = 1 - self.rates[name].view(-1, *(1 for _ in uniform.shape[2:]))
                # A step's masks are (runs, batch, ...); the first is used first.
                ready = list(((uniform < kept) / kept).to(like).flip(0))
                self._drawn[name] = ready
            masks[f"{name}.mask"] = ready.pop()
        return masks

    def keep(self, rows: list[int]) -> None:
        """Go on with some of the runs."""
        self.rates = {name: rates[rows] for name, rates in self.rates.items()}
        self._generators = {n: [gs[i] for i in rows] for n, gs in self._generators.items()}
        self._drawn = {n: [m[rows] for m in masks] for n, masks in self._drawn.items()}


class _Masked(nn.Module):
    """A dropout whose mask was drawn before."""

    mask: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.mask


def forward_of(model: nn.Module, sample: Tensor) -> Forward:
    """How to compute the outputs of a stack of such models; ``sample`` is a batch of inputs."""
    if isinstance(model, nn.Sequential) and _is_dense(model, sample):
        return _Dense(model)
    # In training mode, so that noise which is not ours is an error of vmap and not left out.
    modes = {mode: copy.deepcopy(model).train(mode) for mode in (True, False)}
    for template in modes.values():
        for name in _dropouts(model):
            template.set_submodule(name, _Masked())

    def forward(weights: Weights, inputs: Tensor, training: bool) -> Tensor:
        def one(own: Weights, x: Tensor) -> Tensor:
            return functional_call(modes[training], own, (x,))

        if len(inputs) == 1:
            return vmap(one, in_dims=(0, None))(weights, inputs[0])
        return vmap(one)(weights, inputs)

    return forward


def _is_dense(model: nn.Sequential, sample: Tensor) -> bool:
    flat = sample.ndim == 2 or isinstance(model[0], nn.Flatten)
    return flat and all(map(_is_plain, model))


def _is_plain(module: nn.Module) -> bool:
    if isinstance(module, nn.Flatten):
        return (module.start_dim, module.end_dim) == (1, -1)
    return type(module) in (nn.Linear, nn.Dropout, nn.Identity, *_POINTWISE)


@dataclass(frozen=True)
class _Dense:
    """A sequence of dense layers and functions of single activities, by batched products."""

    model: nn.Sequential

    def __call__(self, weights: Weights, inputs: Tensor, training: bool) -> Tensor:
        x = inputs
        for name, module in self.model.named_children():
            if isinstance(module, nn.Linear):
                x = _dense(x, weights[f"{name}.weight"], weights.get(f"{name}.bias"))
            elif isinstance(module, nn.Dropout):
                mask = weights.get(f"{name}.mask")
                x = x if mask is None else x * mask
            elif isinstance(module, nn.Flatten):
                x = x.flatten(2)
            else:
                x = module(x)
        return x


def _dense(x: Tensor, W: Tensor, b: Tensor | None) -> Tensor:
    """``x W^T + b`` for weights (runs, out, in)."""
    if len(x) < len(W):  # all see the same: one product with the weights of all
        wide = x[0] @ W.mT.transpose(0, 1).flatten(1)  # (batch, runs * out)
        found = wide.unflatten(1, (len(W), -1)).transpose(0, 1)
        return found if b is None else found + b.unsqueeze(1)
    return torch.bmm(x, W.mT) if b is None else torch.baddbmm(b.unsqueeze(1), x, W.mT)


def _dropouts(model: nn.Module) -> dict[str, nn.Dropout]:
    return {name: m for name, m in model.named_modules() if isinstance(m, nn.Dropout)}


def _seen_by_dropouts(model: nn.Module, sample: Tensor) -> dict[str, torch.Size]:
    """The shape of what each dropout sees of one sample."""
    shapes: dict[str, torch.Size] = {}
    handles = [
        dropout.register_forward_pre_hook(
            lambda _, args, name=name: shapes.__setitem__(name, args[0].shape[1:])
        )
        for name, dropout in _dropouts(model).items()
    ]
    try:
        with torch.no_grad(), torch.random.fork_rng():
            model(sample)
    finally:
        for handle in handles:
            handle.remove()
    return shapes
