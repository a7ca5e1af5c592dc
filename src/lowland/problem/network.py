"""A user's model with its measured parameters by name, run so that no trace is left on it."""

import contextlib
import fnmatch
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field
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
from lowland.problem.state import state_of_model
from lowland.problem.stored import SHARDED, Stored, is_sharded
from lowland.problem.traceless import (
    ONE_AT_A_TIME,
    differentiating,
    modules_kept,
    plain_operations,
    random_state_kept,
)


@dataclass(frozen=True)
class _Held:
    """The model as it is while it is measured: its tensors, what is measured, and its state."""

    tensors: dict[str, Tensor]
    names: tuple[str, ...]
    state: Hashable
    device: torch.device
    dtype: torch.dtype
    sharded: bool
    block: object = field(default_factory=object)  # differs each time, and holds no tensor


class Network:
    """A model, out of its wrappers, and those of its parameters that are measured.

    It follows the model: weights, buffers and ``requires_grad`` are read whenever it is not being
    measured, and a copy is made again where the model has changed.

    Args:
        model: the user's own. It is copied if ``dtype`` or its tensors ask for that.
        which: ``"trainable"`` or ``"all"`` parameters.
        dtype: the precision to measure in, where it is not the model's own.
        memory: the bytes that may be used; a copy takes an eighth of them at most.
        written_in: the precisions that the forward pass is known to run in; by default the model's.
    """

    def __init__(
        self,
        model: nn.Module,
        which: str,
        dtype: torch.dtype | None,
        memory: int,
        *,
        written_in: frozenset[torch.dtype] | None = None,
    ) -> None:
        model = unwrap(model)
        self._which, self._asked, self._memory = which, dtype, memory
        self._written_in = written_in or precisions(model)
        self.notes: set[str] = set()  # what of the model is switched off while it is measured
        self._held: _Held | None = None
        self._model, self._source = model, model
        self._copied_at: Hashable = None  # the state of the source
        self._wide = dtype or wider(model)
        self.stored: Stored | None = None
        large = self._wide is not None and copied_bytes(model, self._wide) > memory // 8
        if is_sharded(model) or large:
            self.stored = Stored(model, self._wide or next(model.parameters()).dtype)
        self._copies = self.stored is None and (self._wide is not None or of_inference_mode(model))
        check_tensors(self.model)
        self._every = {name for name, _ in self.model.named_parameters()}
        self._names(self.model)  # an error if nothing can be measured

    @property
    def model(self) -> nn.Module:
        """The model that is measured: the user's own, or a copy of it as it is now."""
        with ONE_AT_A_TIME:
            if self._copies and self._held is None:
                now = state_of_model(self._source)
                if now != self._copied_at:
                    self._model, self._copied_at = self._copy_of_source(), now
            return self._model

    def _copy_of_source(self) -> nn.Module:
        copied, dtype = copy_of(self._source), self._wide
        if dtype is not None:  # Module.to would make real numbers of complex buffers
            copied._apply(lambda t: in_precision(t, dtype))
        return copied

    @property
    def state(self) -> Hashable:
        """A value that changes when anything of the model does that its numbers depend on."""
        with ONE_AT_A_TIME:
            return state_of_model(self.model) if self._held is None else self._held.state

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the measured parameters."""
        return self._names(self.model) if self._held is None else self._held.names

    def _names(self, model: nn.Module) -> tuple[str, ...]:
        every = {name for name, _ in model.named_parameters()}
        if lost := sorted(self._every - every):
            how = f"no parameter {lost[0]!r} any more"
        elif new := sorted(every - self._every):
            how = f"a new parameter {new[0]!r}"
        else:
            how = ""
        if how:
            raise InputError(
                f"the model has {how}; make a new Problem after changing the model's structure"
            )
        names = measured_names(model, self._which, any_precision=self.stored is not None)
        if self.stored is None and wider(model) is not None:
            raise InputError(
                "the model was brought to half precision, which second derivatives need more "
                "digits than; make a new Problem, which measures a copy in float32"
            )
        return names

    @property
    def params(self) -> dict[str, Tensor]:
        """The measured parameters by name, constants that share the model's memory.

        They are read from the model whenever it is not being measured, so that they are its weights
        also after these were replaced (``vector_to_parameters``, ``load_state_dict(assign=True)``).
        """
        if self.stored is not None:
            return {name: self.stored.widened(name) for name in self.names}
        if (held := self._held) is not None:
            return {name: held.tensors[name] for name in held.names}
        model = self.model
        tensors = self._tensors(model)
        return {name: tensors[name] for name in self._names(model)}

    @property
    def sharded(self) -> bool:
        """Whether the parameters are shards of several ranks."""
        return is_sharded(self._model) if self._held is None else self._held.sharded

    @property
    def frozen(self) -> dict[str, Tensor]:
        """The parameters that are not measured, by name: constants of the model."""
        names = self.names
        params = [n for n, _ in self._model.named_parameters() if n not in names]
        if self.stored is not None:
            return {name: self.stored.widened(name) for name in params}
        tensors = self._tensors(self.model) if self._held is None else self._held.tensors
        return {name: tensors[name] for name in params}

    def _tensors(self, model: nn.Module) -> dict[str, Tensor]:
        """Every parameter and buffer as a constant, by name."""
        constants: dict[str, Tensor] = {}
        if self.stored is None:
            constants = {n: constant(p) for n, p in model.named_parameters()}
        buffers = model.named_buffers()
        return constants | {n: b.clone() if b.is_inference() else b for n, b in buffers}

    @property
    def device(self) -> torch.device:
        """Where the model's parameters live; data is moved there batch by batch."""
        if self._held is not None:
            return self._held.device
        if self.stored is not None:
            return next(self.model.parameters()).device
        return next(iter(self.params.values())).device

    @property
    def dtype(self) -> torch.dtype:
        """The precision that the model is measured in; floating-point data is cast to it."""
        if self.stored is not None:
            return self.stored.dtype
        if self._held is not None:
            return self._held.dtype
        return next(iter(self.params.values())).dtype

    def select(self, params: str | list[str] | None = None) -> dict[str, Tensor]:
        """The chosen parameters by name: all, those matching a glob, or those in a list.

        They are for differentiating: where weights stay as they are stored, each is a tensor of
        the parameter's shape that stands for it and has no values.
        """
        patterns, every = [params] if isinstance(params, str) else params, self.names
        chosen = set(every) if patterns is None else set()
        for pattern in patterns or ():
            matching = fnmatch.filter(every, pattern)
            if not matching:
                raise InputError(f"no parameter matches {pattern!r}; there are {', '.join(every)}")
            chosen.update(matching)
        names = [name for name in every if name in chosen]
        if self.stored is not None:
            return {name: self.stored.stand_in(name) for name in names}
        params_now = self.params
        return {name: params_now[name] for name in names}

    def run(
        self, inputs: Inputs, params: Mapping[str, Tensor] | None = None, **more: Tensor
    ) -> Any:
        """What the model returns, unchanged, for the inputs and more arguments by name."""
        model = self.model
        args, kwargs = arguments(model, inputs)
        return self.call(model, "", params or {}, args, {**kwargs, **more})

    def call(
        self,
        module: nn.Module,
        prefix: str,
        params: Mapping[str, Tensor],
        args: tuple,
        kwargs: dict | None = None,
    ) -> Any:
        """The output of a module that holds the model under ``prefix``, with these ``params``."""
        held = self._held
        # Buffers are handed over too: what a forward pass puts in their place is then undone.
        values = dict(self._tensors(self.model) if held is None else held.tensors)
        names = self.names if held is None else held.names
        given: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
        if self.stored is None:
            values.update(params)
            dtype = values[names[0]].dtype
        else:
            given, dtype = self.stored.given(params), self.dtype
            values = {n: in_precision(t, dtype) for n, t in values.items()}
        named = {f"{prefix}{name}": value for name, value in values.items()}
        usual = dtype in self._written_in
        with given, contextlib.nullcontext() if usual else all_in(dtype):
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

    def of(self, model: nn.Module, dtype: torch.dtype | None = None) -> "Network":
        """Return a network of another model, with the same choices where no dtype is given."""
        model = unwrap(model)
        # It may be a copy of this one, whose forward pass was written for another precision.
        written_in = self._written_in if precisions(model) == {self.dtype} else None
        dtype = dtype or self._asked
        return Network(model, self._which, dtype, self._memory, written_in=written_in)

    def copy(self) -> "Network":
        """Return a network of a copy of the model, which follows nobody."""
        return Network(self.copied(), self._which, None, self._memory, written_in=self._written_in)

    @property
    def block(self) -> object:
        """What tells one block of :meth:`measuring` from others; None outside of them."""
        return None if self._held is None else self._held.block

    @contextlib.contextmanager
    def measuring(self, *, packing: bool = True) -> Iterator[None]:
        """Run the model in eval mode and leave no trace of it.

        Modes, buffers, other attributes of modules and random state are put back on the way out,
        also after an exception. Gradients are enabled whatever the caller's context, in full
        precision, by operations that can be differentiated twice. Weights that stay as they are
        stored are not kept wide by autograd either, unless ``packing`` is switched off. One thread
        measures at a time; others wait for it.
        """
        with ONE_AT_A_TIME:
            if self._held is not None:
                yield
                return
            model = self.model
            names, state, sharded = self._names(model), state_of_model(model), is_sharded(model)
            with differentiating(), random_state_kept(), modules_kept(model):
                model.eval()
                # Copies: a forward pass that writes into its weights does not write into the
                # user's.
                tensors = {name: t.clone() for name, t in self._tensors(model).items()}
                one = next(model.parameters()) if self.stored is not None else tensors[names[0]]
                self._held = _Held(tensors, names, state, one.device, one.dtype, sharded)
                keeping: contextlib.AbstractContextManager = contextlib.nullcontext()
                if self.stored is not None:
                    self.stored.install()
                    if packing:
                        keeping = saved_tensors_hooks(self.stored.pack, self.stored.unpack)
                try:
                    with keeping, plain_operations(model, self.notes):
                        yield
                finally:
                    self._held = None
