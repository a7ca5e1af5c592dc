"""A user's model with its measured parameters by name, run so that no trace is left on it."""

import contextlib
import copy
import fnmatch
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.func import functional_call

from lowland.batches import Inputs, arguments
from lowland.errors import InputError
from lowland.problem.checks import check_tensors
from lowland.problem.model import (
    constant,
    copied_bytes,
    copy_of,
    measured_names,
    of_inference_mode,
    precisions,
    unwrap,
    wider,
)
from lowland.problem.precision import all_in, in_precision
from lowland.problem.stored import SHARDED, Stored, is_sharded
from lowland.problem.traceless import (
    differentiating,
    modules_kept,
    plain_operations,
    random_state_kept,
)


class Network:
    """A model, out of its wrappers, and those of its parameters that are measured.

    Args:
        model: the user's own. It is copied if ``dtype`` or its tensors ask for that.
        which: ``"trainable"`` or ``"all"`` parameters.
        dtype: the precision to measure in, where it is not the model's own.
        memory: the bytes that may be used; a copy takes an eighth of them at most.
    """

    def __init__(
        self, model: nn.Module, which: str, dtype: torch.dtype | None, memory: int
    ) -> None:
        model = unwrap(model)
        self._which, self._written_in = which, precisions(model)
        self.notes: set[str] = set()  # what of the model is switched off while it is measured
        self._held: dict[str, Tensor] | None = None  # the model's tensors while it is measured
        dtype = dtype or wider(model)
        self.model = model
        self.stored: Stored | None = None
        if is_sharded(model) or (dtype is not None and copied_bytes(model, dtype) > memory // 8):
            self.stored = Stored(model, dtype or next(model.parameters()).dtype)
        elif dtype is not None or of_inference_mode(model):
            self.model = copy_of(model)
            if dtype is not None:  # Module.to would make real numbers of complex buffers
                self.model._apply(lambda t: in_precision(t, dtype))
        check_tensors(self.model)
        self.names = measured_names(self.model, which, any_precision=self.stored is not None)

    @property
    def params(self) -> dict[str, Tensor]:
        """The measured parameters by name, constants that share the model's memory.

        They are read from the model whenever it is not being measured, so that they are its weights
        also after these were replaced (``vector_to_parameters``, ``load_state_dict(assign=True)``).
        """
        if self.stored is not None:
            return {name: self.stored.widened(name) for name in self.names}
        held = self._held or self._read()
        return {name: held[name] for name in self.names}

    @property
    def sharded(self) -> bool:
        """Whether the parameters are shards of several ranks."""
        return is_sharded(self.model)

    @property
    def frozen(self) -> dict[str, Tensor]:
        """The parameters that are not measured, by name: constants of the model."""
        params = [n for n, _ in self.model.named_parameters() if n not in self.names]
        if self.stored is not None:
            return {name: self.stored.widened(name) for name in params}
        held = self._held or self._read()
        return {name: held[name] for name in params}

    def _read(self) -> dict[str, Tensor]:
        """Every parameter and buffer as a constant, by name."""
        own = dict(self.model.named_parameters())
        constants = {n: constant(p) for n, p in own.items()} if self.stored is None else {}
        missing = [n for n in self.names if n not in own]
        if missing:
            raise InputError(
                f"the model has no parameter {missing[0]!r} any more; make a new Problem after "
                "changing the model's structure"
            )
        buffers = self.model.named_buffers()
        return constants | {n: b.clone() if b.is_inference() else b for n, b in buffers}

    @property
    def device(self) -> torch.device:
        """Where the model's parameters live; data is moved there batch by batch."""
        if self.stored is not None:
            return next(self.model.parameters()).device
        return next(iter(self.params.values())).device

    @property
    def dtype(self) -> torch.dtype:
        """The precision that the model is measured in; floating-point data is cast to it."""
        if self.stored is not None:
            return self.stored.dtype
        return next(iter(self.params.values())).dtype

    def select(self, params: str | list[str] | None = None) -> dict[str, Tensor]:
        """The chosen parameters by name: all, those matching a glob, or those in a list.

        They are for differentiating: where weights stay as they are stored, each is a tensor of
        the parameter's shape that stands for it and has no values.
        """
        patterns = [params] if isinstance(params, str) else params
        chosen = set(self.names) if patterns is None else set()
        for pattern in patterns or ():
            matching = fnmatch.filter(self.names, pattern)
            if not matching:
                raise InputError(
                    f"no parameter matches {pattern!r}; there are {', '.join(self.names)}"
                )
            chosen.update(matching)
        names = [name for name in self.names if name in chosen]
        if self.stored is not None:
            return {name: self.stored.stand_in(name) for name in names}
        params_now = self.params
        return {name: params_now[name] for name in names}

    def run(
        self, inputs: Inputs, params: Mapping[str, Tensor] | None = None, **more: Tensor
    ) -> Any:
        """What the model returns, unchanged, for the inputs and more arguments by name."""
        args, kwargs = arguments(self.model, inputs)
        return self.call(self.model, "", params or {}, args, {**kwargs, **more})

    def _precision(self, dtype: torch.dtype) -> contextlib.AbstractContextManager[None]:
        """A context for a forward pass in ``dtype``; empty where that is the model's own."""
        return contextlib.nullcontext() if dtype in self._written_in else all_in(dtype)

    def call(
        self,
        module: nn.Module,
        prefix: str,
        params: Mapping[str, Tensor],
        args: tuple,
        kwargs: dict | None = None,
    ) -> Any:
        """The output of a module that holds the model under ``prefix``, with these ``params``."""
        # Buffers are handed over too: what a forward pass puts in their place is then undone.
        values = dict(self._held or self._read())
        given: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
        if self.stored is None:
            values.update(params)
            dtype = values[self.names[0]].dtype
        else:
            given, dtype = self.stored.given(params), self.dtype
            values = {n: in_precision(t, dtype) for n, t in values.items()}
        named = {f"{prefix}{name}": value for name, value in values.items()}
        with given, self._precision(dtype):
            return functional_call(module, named, args, kwargs)

    def copied(self) -> nn.Module:
        """A copy of the model; an error where its weights are to stay as they are stored."""
        self.check_whole()
        if self.stored is not None:
            raise InputError(
                "this needs a copy of the model, for which the memory budget is too small; pass "
                "Problem(memory=...) with more bytes"
            )
        return copy_of(self.model)

    def check_whole(self) -> None:
        """An error if the model is sharded."""
        if self.sharded:
            raise InputError(SHARDED)

    def with_model(self, model: nn.Module) -> "Network":
        """The same choices for another model."""
        return self._of(model, measured_names(model, self._which))

    def copy(self) -> "Network":
        """The same parameters of a copy of the model."""
        return self._of(self.copied(), self.names)

    def _of(self, model: nn.Module, names: tuple[str, ...]) -> "Network":
        other = copy.copy(self)
        other.model, other.names, other.stored = model, names, None
        other._held = None
        return other

    @contextlib.contextmanager
    def measuring(self, *, packing: bool = True) -> Iterator[None]:
        """Run the model in eval mode and leave no trace of it.

        Modes, buffers, other attributes of modules and random state are put back on the way out,
        also after an exception. Gradients are enabled whatever the caller's context, in full
        precision, by operations that can be differentiated twice. Weights that stay as they are
        stored are not kept wide by autograd either, unless ``packing`` is switched off.
        """
        if self._held is not None:
            yield
            return
        with differentiating(), random_state_kept(), modules_kept(self.model):
            self.model.eval()
            # Copies: a forward pass that writes into its weights does not write into the user's.
            self._held = {name: t.clone() for name, t in self._read().items()}
            keeping: contextlib.AbstractContextManager = contextlib.nullcontext()
            if self.stored is not None:
                self.stored.install()
                if packing:
                    keeping = saved_tensors_hooks(self.stored.pack, self.stored.unpack)
            try:
                with keeping, plain_operations(self.model, self.notes):
                    yield
            finally:
                self._held = None
