"""Many networks of one architecture as one: their weights stacked, their steps taken together.

A step of a small network is mostly the overhead of its many operations. With the weights of R
networks stacked, each operation serves all of them. Where the network is a sequence of dense layers
these are batched matrix products, otherwise ``torch.func.vmap`` of the module itself. A stack is
trusted only after it did, on copies, what each of its models does alone.
"""

import copy
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd

Weights = dict[str, Tensor]  # by name, each with the runs as its first dimension
# (weights, inputs, training) -> outputs (runs, batch, ...). Inputs are (runs, batch, ...), or
# (1, batch, ...) where all runs see the same; weights hold masks of Dropouts in training.
Forward = Callable[[Weights, Tensor, bool], Tensor]

# Modules that see each activity alone.
_POINTWISE = (nn.ReLU, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.Softplus)

# Random numbers that a run draws for its dropout at once. It must not depend on the other runs.
_DRAWN = 100_000


def kind_of(model: nn.Module) -> str | None:
    """A key that is equal for models that can share a stack; None for one that trains alone.

    Batch statistics belong to one network, and noise other than ``nn.Dropout`` could not be drawn
    for each run from its own seed. Runs may differ in the rate of dropout, and in nothing else
    that a module keeps beside its tensors. On a CPU, stacked convolutions are no faster than single
    ones, and slower in large batches.
    """
    modules = dict(model.named_modules(remove_duplicate=False))
    params = dict(model.named_parameters(remove_duplicate=False))
    dropouts = [m for m in modules.values() if isinstance(m, nn.Dropout)]
    noise = nn.modules.dropout._DropoutNd
    if (
        any(
            isinstance(m, _NormBase | noise) and type(m) is not nn.Dropout for m in modules.values()
        )
        or any(m._forward_hooks or m._forward_pre_hooks for m in modules.values())
        or any(not p.requires_grad for p in params.values())
        or any(p.dtype not in (torch.float32, torch.float64) for p in params.values())
        or (any(isinstance(m, _ConvNd) for m in modules.values()) and not _on_gpu(model))
        or len(set(params.values())) < len(params)  # tied
        or len(set(dropouts)) < len(dropouts)
    ):
        return None
    shapes = {name: (tuple(v.shape), v.dtype, v.device) for name, v in model.state_dict().items()}
    constants = {name: (type(m), _constants(m)) for name, m in modules.items()}
    return f"{constants}{shapes}"


def _on_gpu(model: nn.Module) -> bool:
    return any(p.is_cuda for p in model.parameters())


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
    return torch.stack([matrix.mT for matrix in same]).mT


class Dropouts:
    """Masks of every ``nn.Dropout`` for every run, each drawn from the run's own seed."""

    def __init__(self, models: Sequence[nn.Module], inputs: Tensor, seeds: Sequence[int]) -> None:
        self.shapes = _seen_by_dropouts(models[0], inputs)
        self.like = next(models[0].parameters())
        self.rates = {
            name: torch.tensor([_dropouts(m)[name].p for m in models]) for name in self.shapes
        }
        self._generators = {
            name: [torch.Generator().manual_seed(seed + 10**6 * (1 + i)) for seed in seeds]
            for i, name in enumerate(self.shapes)
        }
        self._drawn: dict[str, list[Tensor]] = {name: [] for name in self.shapes}

    def ones(self, runs: int, batch: int) -> Weights:
        """Masks that drop nothing."""
        return {
            f"{name}.mask": self.like.new_ones(runs, batch, *shape)
            for name, shape in self.shapes.items()
        }

    def draw(self, batch: int) -> Weights:
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
                scaled = (uniform < kept) / kept.clamp_min(torch.finfo(kept.dtype).tiny)
                # A step's masks are (runs, batch, ...); the first is used first.
                ready = self._drawn[name] = list(scaled.to(self.like).flip(0))
            masks[f"{name}.mask"] = ready.pop()
        return masks

    def keep(self, rows: list[int]) -> None:
        """Keep only these of the runs."""
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
        if not self.training:
            return x
        if self.mask.shape != x.shape:
            raise RuntimeError("this dropout sees another shape than it was drawn for")
        return x * self.mask


def trusted_forward(models: Sequence[nn.Module], inputs: Sequence[Tensor]) -> Forward | None:
    """How to compute the outputs of all models together, if that gives what each gives alone.

    ``inputs`` are some samples for each. Both modes are tried on copies, without dropout. None if
    the outputs differ, or if a forward pass changes the module.
    """
    copies = [copy.deepcopy(model) for model in models]
    for dropout in itertools.chain.from_iterable(_dropouts(c).values() for c in copies):
        dropout.p = 0.0
    weights = stacked(copies)
    try:
        forward = _forward_of(copies[0], inputs[0])
        masks = Dropouts(copies, inputs[0], [0] * len(models)).ones(len(models), len(inputs[0]))
        with torch.no_grad(), torch.random.fork_rng():
            for training in (True, False):
                together = forward({**weights, **masks}, torch.stack(list(inputs)), training)
                alone = [c.train(training)(x) for c, x in zip(copies, inputs, strict=True)]
                if not torch.allclose(together, torch.stack(alone), rtol=1e-3, atol=1e-5):
                    return None
    except Exception:  # whatever a module does that a function of its weights cannot do
        return None
    after = stacked(copies)
    return forward if all(torch.equal(weights[name], after[name]) for name in weights) else None


def activity_bytes(model: nn.Module, inputs: Tensor) -> int:
    """How many bytes the outputs of all modules take for one sample."""
    held = 0

    def count(module: nn.Module, args: Any, output: Any) -> None:
        nonlocal held
        held += output.nbytes if isinstance(output, Tensor) else 0

    probe = copy.deepcopy(model).eval()
    for module in probe.modules():
        module.register_forward_hook(count)
    with torch.no_grad():
        probe(inputs[:1])
    return held


def _forward_of(model: nn.Module, inputs: Tensor) -> Forward:
    if type(model) is nn.Sequential and _is_dense(model, inputs):
        return DenseForward(model)
    # In training mode, so that noise which is not ours is an error of vmap and not left out.
    modes = {mode: copy.deepcopy(model).train(mode) for mode in (True, False)}
    for template in modes.values():
        for name in _dropouts(model):
            masked = _Masked().train(template.training)
            template.set_submodule(name, masked)

    def forward(weights: Weights, inputs: Tensor, training: bool) -> Tensor:
        def network(own: Weights, x: Tensor) -> Tensor:
            return functional_call(modes[training], own, (x,))

        if len(inputs) == 1:
            return vmap(network, in_dims=(0, None))(weights, inputs[0])
        return vmap(network)(weights, inputs)

    return forward


def _is_dense(model: nn.Sequential, inputs: Tensor) -> bool:
    flat = inputs.ndim == 2 or isinstance(model[0], nn.Flatten)
    return flat and all(map(_is_plain, model))


def _is_plain(module: nn.Module) -> bool:
    if isinstance(module, nn.Flatten):
        return (module.start_dim, module.end_dim) == (1, -1)
    return type(module) in (nn.Linear, nn.Dropout, nn.Identity, *_POINTWISE)


@dataclass(frozen=True)
class DenseForward:
    """A sequence of dense layers and functions of single activities, by batched products."""

    model: nn.Sequential

    @property
    def first(self) -> str | None:
        """The weight that multiplies the inputs as they are, if there is one."""
        for name, module in self.model._modules.items():
            if isinstance(module, nn.Linear):
                return f"{name}.weight"
            if not isinstance(module, nn.Flatten | nn.Identity):
                break
        return None

    def __call__(self, weights: Weights, inputs: Tensor, training: bool) -> Tensor:
        """The outputs of all runs: see :data:`Forward`."""
        x = inputs
        for name, module in self.model._modules.items():
            if isinstance(module, nn.Linear):
                x = _dense(x, weights[f"{name}.weight"], weights.get(f"{name}.bias"))
            elif isinstance(module, nn.Dropout):
                x = x * weights[f"{name}.mask"] if training else x
            elif isinstance(module, nn.Flatten):
                x = x.flatten(2)
            elif module is not None:
                x = module(x)
        return x


def _dense(x: Tensor, W: Tensor, b: Tensor | None) -> Tensor:
    """``x W^T + b`` for weights (runs, out, in)."""
    if len(x) < len(W):  # all see the same: one product with the weights of all
        wide = x[0] @ W.mT.transpose(0, 1).flatten(1)  # (batch, runs * out)
        outputs = wide.unflatten(1, (len(W), -1)).transpose(0, 1)
        return outputs if b is None else outputs + b.unsqueeze(1)
    return torch.bmm(x, W.mT) if b is None else torch.baddbmm(b.unsqueeze(1), x, W.mT)


def _dropouts(model: nn.Module) -> dict[str, nn.Dropout]:
    return {name: m for name, m in model.named_modules() if isinstance(m, nn.Dropout)}


def _seen_by_dropouts(model: nn.Module, inputs: Tensor) -> dict[str, torch.Size]:
    """The shape of what each dropout sees of one sample, in training.

    Told from two batches of different size: each dropout must be called once in a pass, and see the
    samples along the first dimension.
    """
    if not _dropouts(model):
        return {}
    probe = copy.deepcopy(model).train()
    seen: list[tuple[str, torch.Size]] = []
    for name, dropout in _dropouts(probe).items():
        dropout.register_forward_hook(
            lambda _, args, out, name=name: seen.append((name, out.shape))
        )
    shapes: list[dict[str, torch.Size]] = []
    for batch in (2, 3):
        seen.clear()
        with torch.no_grad(), torch.random.fork_rng():
            probe(inputs[:1].expand(batch, *inputs.shape[1:]))
        if len(dict(seen)) < len(seen) or any(shape[:1] != (batch,) for _, shape in seen):
            raise RuntimeError("a dropout acts twice, or not on samples")
        shapes.append({name: shape[1:] for name, shape in seen})
    if shapes[0] != shapes[1]:
        raise RuntimeError("what a dropout sees depends on the number of samples")
    return shapes[0]


def column(values: Tensor, like: Tensor) -> Tensor:
    """One number for each run, in a shape that multiplies a stacked parameter."""
    return values.view(-1, *(1 for _ in like.shape[1:]))


def squares(t: Tensor) -> Tensor:
    """The sum of squares of each run."""
    return t.flatten(1).square().sum(1)
