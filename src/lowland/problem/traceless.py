"""Running a user's model whatever the caller's context, and leaving no trace of it."""

import contextlib
import copy
import itertools
import os
import random
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
import torch.utils.checkpoint
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from lowland.problem.state import OF_MODULES

# Held while a model is measured. It is one for all models, as some of what is put in place for
# that (:func:`plain_operations`, random states, the default precision) is the whole process's.
ONE_AT_A_TIME = threading.RLock()
if hasattr(os, "register_at_fork"):  # a forked process has none of the threads that may hold it
    os.register_at_fork(after_in_child=ONE_AT_A_TIME._at_fork_reinit)  # type: ignore[attr-defined]
_AUTOCAST = (
    "The model's forward pass asks for autocast, which is off while it is measured: second "
    "derivatives need the digits that autocast rounds away."
)


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
    """Put back what modules hold: which objects their attributes are, and the values in these.

    Values are those of tensors, and the members of lists, sets and dictionaries (activations that
    a forward pass appends to a list would stay there, with their graphs).

    Parameters too: torch's ``functional_call`` leaves others in a module that stands in the model
    twice.
    """
    before = []
    for module in model.modules():
        own = vars(module)
        tensors = [t for t in (*own.values(), *module._buffers.values()) if isinstance(t, Tensor)]
        values = [(t, t.detach().clone()) for t in tensors]
        parts = [dict(own), dict(module._parameters), dict(module._buffers)]
        members = [  # of containers of the user's own
            (each, copy.copy(each))
            for name, each in own.items()
            if name not in OF_MODULES and isinstance(each, list | set | dict | deque)
        ]
        before.append((module, parts, values, members))
    try:
        yield
    finally:
        with torch.inference_mode(False), torch.no_grad():
            for module, (own, parameters, buffers), values, members in before:
                _put_back(vars(module), own)
                for container, was in members:
                    _refill(container, was)
                _put_back(module._parameters, parameters)
                _put_back(module._buffers, buffers)
                for tensor, value in values:
                    if not torch.equal(tensor, value):
                        tensor.copy_(value)


def _refill(container: Any, members: Any) -> None:
    """Make a container hold the very members that it held before."""
    if list(map(id, _parts(container))) == list(map(id, _parts(members))):
        return
    container.clear()
    refill = container.extend if isinstance(container, list | deque) else container.update
    refill(members)


def _parts(container: Any) -> Iterator[Any]:
    values = container.values() if isinstance(container, dict) else ()
    return itertools.chain(container, values)


def _put_back(now: dict, before: dict) -> None:
    """Make a dictionary hold the very objects that it held before."""
    for key in now.keys() - before.keys():
        del now[key]
    now.update(before)


@contextlib.contextmanager
def plain_operations(model: nn.Module, notes: set[str]) -> Iterator[None]:
    """Run the model by operations that can be differentiated twice, and read in the graph.

    Fused attention and the fused LSTM have no second derivative, nor have sparse gradients of
    embeddings. Activation checkpointing runs parts of the model again while it is differentiated,
    when other weights stand in it. What torch.compile made of parts of the model or of functions in
    it cannot be differentiated twice either, and runs as it was written. Where vmap has no rule for
    an operation, it warns of the time that this takes: our plans count it. Autocast rounds to three
    digits; in the forward pass it does nothing, and ``notes`` say so. Use it inside of
    :func:`modules_kept` and :func:`differentiating`.
    """
    for module in model.modules():
        if isinstance(module, nn.Embedding | nn.EmbeddingBag):
            module.sparse = False
    fused, mkldnn = torch.backends.mha.get_fastpath_enabled(), torch.backends.mkldnn.enabled
    replaced: list[tuple[Any, str, Any]] = [
        (torch.utils.checkpoint, "_checkpoint_without_reentrant_generator", _once),
        (torch.utils.checkpoint, "CheckpointFunction", _NoCheckpoint),
        (torch, "set_autocast_enabled", _no_autocast(notes)),
    ]
    before = [getattr(module, name) for module, name, _ in replaced]
    try:
        torch.backends.mha.set_fastpath_enabled(False)
        torch._C._functorch._set_vmap_fallback_warning_enabled(False)  # type: ignore[attr-defined]
        if any(isinstance(module, nn.LSTM) for module in model.modules()):
            torch.backends.mkldnn.set_flags(_enabled=False)
        for module, name, plain in replaced:
            setattr(module, name, plain)
        with sdpa_kernel(SDPBackend.MATH), _uncompiled():
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fused)
        inner = before[1] is _NoCheckpoint  # another model is being measured around this
        torch._C._functorch._set_vmap_fallback_warning_enabled(not inner)  # type: ignore[attr-defined]
        torch.backends.mkldnn.set_flags(_enabled=mkldnn)
        for (module, name, _), value in zip(replaced, before, strict=True):
            setattr(module, name, value)


def _uncompiled() -> contextlib.AbstractContextManager:
    if "torch._dynamo" not in sys.modules:  # slow to import, and nothing is compiled without it
        return contextlib.nullcontext()
    return torch.compiler.set_stance("force_eager")


def _no_autocast(notes: set[str]) -> Callable[..., None]:
    """In place of torch's switch of autocast: it stays off in this thread, and is noted."""
    own, switch = threading.get_ident(), torch.set_autocast_enabled

    def set_autocast_enabled(*args: Any) -> None:
        if threading.get_ident() != own:
            switch(*args)
        elif args[-1]:
            notes.add(_AUTOCAST)

    return set_autocast_enabled


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
