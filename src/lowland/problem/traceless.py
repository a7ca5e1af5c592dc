"""Running a user's model whatever the caller's context, and leaving no trace of it."""

import contextlib
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
import torch.utils.checkpoint
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel


@contextlib.contextmanager
def differentiating() -> Iterator[None]:
    """Gradients, in full precision, whatever the caller has switched on or off.

    Public functions that compute outside of :meth:`Problem.measuring` are decorated with it.
    """
    accelerator = torch.accelerator.current_accelerator()
    kinds = {"cpu", accelerator.type} if accelerator is not None else {"cpu"}
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        for kind in kinds:
            stack.enter_context(torch.autocast(kind, enabled=False))
        yield


@contextlib.contextmanager
def modules_kept(model: nn.Module) -> Iterator[None]:
    """Put back what modules hold: which tensors their attributes are, and the buffers' values.

    Parameters too: torch's ``functional_call`` leaves others in a module that stands in the model
    twice.
    """
    before = []
    for module in model.modules():
        own = vars(module)
        tensors = [t for t in (*own.values(), *module._buffers.values()) if isinstance(t, Tensor)]
        values = [(t, t.detach().clone()) for t in tensors]
        parts = [dict(own), dict(module._parameters), dict(module._buffers)]
        before.append((module, parts, values))
    try:
        yield
    finally:
        with torch.inference_mode(False), torch.no_grad():
            for module, (own, parameters, buffers), values in before:
                _put_back(vars(module), own)
                _put_back(module._parameters, parameters)
                _put_back(module._buffers, buffers)
                for tensor, value in values:
                    if not torch.equal(tensor, value):
                        tensor.copy_(value)


def _put_back(now: dict, before: dict) -> None:
    """Make a dictionary hold the very objects that it held before."""
    for key in now.keys() - before.keys():
        del now[key]
    now.update(before)


@contextlib.contextmanager
def plain_operations(model: nn.Module) -> Iterator[None]:
    """Run the model by operations that can be differentiated twice, and read in the graph.

    Fused attention and the fused LSTM have no second derivative. Activation checkpointing runs
    parts of the model again while it is differentiated, when other weights stand in it.
    """
    fused, mkldnn = torch.backends.mha.get_fastpath_enabled(), torch.backends.mkldnn.enabled
    names = {"_checkpoint_without_reentrant_generator": _once, "CheckpointFunction": _NoCheckpoint}
    before = {name: getattr(torch.utils.checkpoint, name) for name in names}
    try:
        torch.backends.mha.set_fastpath_enabled(False)
        if any(isinstance(module, nn.LSTM) for module in model.modules()):
            torch.backends.mkldnn.set_flags(_enabled=False)
        for name, plain in names.items():
            setattr(torch.utils.checkpoint, name, plain)
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fused)
        torch.backends.mkldnn.set_flags(_enabled=mkldnn)
        for name, value in before.items():
            setattr(torch.utils.checkpoint, name, value)


def _once(*args: Any, **kwargs: Any) -> Iterator[None]:
    """In place of the generator around a checkpointed function: nothing before, nothing after."""
    yield


class _NoCheckpoint:
    """In place of the autograd function that checkpoints: the function itself."""

    @staticmethod
    def apply(function: Callable[..., Any], preserve: bool, *args: Any) -> Any:
        return function(*args)


@contextlib.contextmanager
def random_state_kept() -> Iterator[None]:
    """Put back the state of the random generators of Python, NumPy and torch."""
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices):
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)  # noqa: NPY002
