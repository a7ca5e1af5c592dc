"""Running a user's model whatever the caller's context, and leaving no trace of it."""

import contextlib
import random
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor, nn


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
    """Put back the modules' attributes and buffers: which tensors they are, and their values."""
    before = []
    for module in model.modules():
        own = vars(module)
        tensors = [t for t in (*own.values(), *module._buffers.values()) if isinstance(t, Tensor)]
        values = [(t, t.detach().clone()) for t in tensors]
        before.append((module, dict(own), dict(module._buffers), values))
    try:
        yield
    finally:
        with torch.inference_mode(False), torch.no_grad():
            for module, own, buffers, values in before:
                _put_back(vars(module), own)
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
