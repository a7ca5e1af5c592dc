"""A user's model: out of its wrappers, its parameters by name, and how a batch goes into it."""

import copy
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from lowland.errors import InputError

_HALF = (torch.float16, torch.bfloat16)


def measured_names(model: nn.Module, params: str, any_precision: bool = False) -> tuple[str, ...]:
    """The names of the parameters that are measured."""
    every = {n: p for n, p in model.named_parameters() if p.is_floating_point()}
    quantised = [(n, m) for n, m in model.named_modules() if ".quantized" in type(m).__module__]
    if quantised:
        name, module = quantised[0]
        raise InputError(
            f"the model is quantised: {type(module).__name__} {name!r} keeps its weight as packed "
            "integers, which torch does not count among the parameters and which have no gradient; "
            "pass the float model that it was made from"
        )
    if not every and (others := sorted({str(p.dtype) for p in model.parameters()})):
        raise InputError(
            f"the model's parameters are all {', '.join(others)}, which have no gradient; "
            "pass the model with floating-point weights"
        )
    if not every:
        raise InputError("the model has no parameters, so there is no weight space to measure")
    chosen = {n: p for n, p in every.items() if p.requires_grad or params == "all"}
    if not chosen:
        raise InputError(
            "every parameter of the model is frozen (requires_grad=False), so there is no weight "
            "space to measure; pass Problem(params='all') to measure them all the same"
        )
    kinds = {p.dtype for p in chosen.values()}
    if len(kinds) > 1 and not any_precision:
        raise InputError(
            f"the parameters are of several precisions ({', '.join(sorted(map(str, kinds)))}); "
            "pass Problem(dtype=...) to measure a copy in one of them"
        )
    return tuple(chosen)


def precisions(model: nn.Module) -> frozenset[torch.dtype]:
    """The precisions of the model's parameters, in which its forward pass is known to run."""
    return frozenset(p.dtype for p in model.parameters() if p.is_floating_point())


def wider(model: nn.Module) -> torch.dtype | None:
    """The precision to measure a copy in, or None where the model's own will do."""
    return torch.float32 if any(p.dtype in _HALF for p in model.parameters()) else None


def of_inference_mode(model: nn.Module) -> bool:
    """Whether it holds tensors that were made under ``inference_mode`` and have no gradients."""
    own = [t for m in model.modules() for t in vars(m).values() if isinstance(t, Tensor)]
    every = (*model.parameters(), *model.buffers(), *own)
    return any(not nn.parameter.is_lazy(t) and t.is_inference() for t in every)


def copied_bytes(model: nn.Module, dtype: torch.dtype) -> int:
    """What a copy of the model in another precision would take."""
    return sum(p.numel() for p in model.parameters()) * dtype.itemsize


def copy_of(model: nn.Module) -> nn.Module:
    """A deep copy, also of a model that holds what its last forward pass computed.

    Hooks leave their weights there (pruning, the old weight norm), and modules their activations;
    torch copies no tensor that has a graph. Weights are computed anew before the next pass.
    """
    graphed = [t for module in model.modules() for t in _tensors_in(vars(module)) if t.grad_fn]
    return copy.deepcopy(model, {id(t): t.detach().clone() for t in graphed})


def _tensors_in(value: object) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from _tensors_in(inner)
    elif isinstance(value, list | tuple | set):
        for inner in value:
            yield from _tensors_in(inner)


def constant(t: Tensor) -> Tensor:
    """The tensor without its graph; a copy if it is of inference mode, which has no gradients."""
    return t.detach().clone() if t.is_inference() else t.detach()


def unwrap(model: nn.Module) -> nn.Module:
    """The module inside data-parallel and ``torch.compile`` wrappers.

    A compiled model cannot be differentiated twice, and DDP does not synchronise
    ``autograd.grad``: both must come off before curvature is computed.
    """
    while True:
        if type(model).__name__ == "FullyShardedDataParallel":
            raise InputError(
                "FullyShardedDataParallel hides the parameters of the model; shard it in place, by "
                "torch.distributed.fsdp.fully_shard, or pass the model as it was before"
            )
        if isinstance(model, nn.parallel.DistributedDataParallel | nn.DataParallel):
            inner = model.module
        else:
            inner = getattr(model, "_orig_mod", None)
        if not isinstance(inner, nn.Module):
            return model
        model = inner
