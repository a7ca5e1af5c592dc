"""The one thing every room works on: a model, a per-sample loss, and data."""

import contextlib
import copy
import fnmatch
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.func import functional_call

from lowland.batches import Batch, Batches, Inputs
from lowland.budget import check_time
from lowland.distributed import most, of_first_rank, ranks, total, total_count
from lowland.errors import InputError
from lowland.losses import Loss, LossLike, ModelLoss, resolve
from lowland.problem.checks import check_loss, check_model, check_recomputing, check_tensors
from lowland.problem.conventions import as_the_model_has_it
from lowland.problem.model import (
    arguments,
    constant,
    copied_bytes,
    measured_names,
    of_inference_mode,
    precisions,
    unwrap,
    wider,
    without_targets,
)
from lowland.problem.precision import all_in
from lowland.problem.stored import SHARDED, Stored, is_sharded
from lowland.problem.traceless import (
    differentiating,
    modules_kept,
    plain_operations,
    random_state_kept,
)

_BATCH = 1024  # samples at once, where nothing else decides


class Problem:
    """A model at the point of weight space where it is, with its loss and data.

    Args:
        model: any ``torch.nn.Module``. Data-parallel and compiled wrappers are taken off. It is
            measured in eval mode and left exactly as it was, also after an error.
        loss: ``"cross_entropy"``, ``"mse"``, ``"normalized_cross_entropy"``, ``"next_token"``, a
            torch loss module, a callable ``(outputs, targets) -> (N,)``, or
            :class:`lowland.ModelLoss` of a callable ``(model, batch) -> (N,)``. Cross-entropy of a
            language model of Transformers, with its tokens as labels, is that of the next token.
        train: ``(inputs, targets)`` as tensors, a ``Dataset``, a ``DataLoader`` or any iterable of
            batches. Inputs may be a tensor, a tuple (``model(*inputs)``) or a dict
            (``model(**inputs)``; targets under ``"labels"``, as Transformers has it). A loss that
            runs the model itself can do with a tensor of inputs alone. Tensors that are mapped from
            a file stay so. What a loader gives is kept while it fits half of ``memory``; otherwise
            it is read again on each pass. A stream (an ``IterableDataset``, a generator) is read
            once; ``notes`` say how much of it was taken.
        test: the same for unseen data; measures that need it say so when it is missing.
        batch_size: how many samples go through the model at once, at most; by default, as many
            as is quick for the work at hand.
        memory: the bytes that curvature may keep in graphs, factors and bases, and half of it in
            data; what does not fit is computed in smaller chunks, or again for each product.
        samples: how many samples to take of a stream; by default as many as may be kept.
        dtype: compute in this precision, on a copy of the model (``torch.float64``, for example).
            Half-precision models are measured in float32: second derivatives need its digits. A
            model made under ``torch.inference_mode`` is measured on a copy, too. A copy that would
            take more than an eighth of ``memory`` is not made: the weights stay as they are stored,
            and each is widened when it is read. So are those of a sharded model (``fully_shard``),
            which every rank measures on data of its own.
        initial: the weights that the training started from, as a model or ``state_dict``, for
            measures of the distance travelled.
        training: facts of the training that some measures use: ``learning_rate``, ``batch_size``.
        params: ``"trainable"`` measures the parameters with ``requires_grad``; the frozen ones are
            constants, as they were for the training. ``"all"`` measures every one.

    >>> model = nn.Linear(2, 3)
    >>> problem = Problem(model, train=(torch.randn(8, 2), torch.arange(8) % 3))
    >>> problem.losses("train").shape
    torch.Size([8])
    """

    def __init__(
        self,
        model: nn.Module,
        loss: LossLike = "cross_entropy",
        train: Any = None,
        test: Any = None,
        *,
        batch_size: int | None = None,
        memory: int = 2 << 30,
        samples: int | None = None,
        dtype: torch.dtype | None = None,
        initial: nn.Module | Mapping[str, Tensor] | None = None,
        training: Mapping[str, float] | None = None,
        params: Literal["trainable", "all"] = "trainable",
    ) -> None:
        if not isinstance(model, nn.Module):
            raise InputError(f"model must be a torch.nn.Module; got {type(model).__name__}")
        if train is None:
            raise InputError(
                "no training data; pass train=(inputs, targets), a Dataset or a loader"
            )
        if isinstance(model, torch.jit.ScriptModule):
            raise InputError(
                "a TorchScript model cannot be measured; pass the module that it was made from"
            )
        if batch_size is not None and (not isinstance(batch_size, int) or batch_size < 1):
            raise InputError(f"batch_size must be at least 1, and whole; got {batch_size}")
        if dtype is not None and not dtype.is_floating_point:
            raise InputError(f"dtype must be a floating-point type; got {dtype}")
        if samples is not None and (not isinstance(samples, int) or samples < 1):
            raise InputError(f"samples must be at least 1, and whole; got {samples}")
        if memory < 1:
            raise InputError(f"memory is a number of bytes, at least 1; got {memory}")
        if params not in ("trainable", "all"):
            raise InputError(f"params must be 'trainable' or 'all'; got {params!r}")
        self.memory, self._batch_size, self._which = memory, batch_size, params
        self._whole: Problem | None = None  # what it is a subset of
        self._depth = 0
        self._base: Problem | None = None  # that with_loss was asked of
        self._held: dict[str, Tensor] | None = None  # the model's tensors while it is measured
        model = unwrap(model)
        self._written_in = precisions(model)
        with differentiating(), random_state_kept():  # shuffling loaders draw from the generators
            dtype = dtype or wider(model)
            self.model, self.stored = model, None
            if is_sharded(model) or (
                dtype is not None and copied_bytes(model, dtype) > memory // 8
            ):
                self.stored = Stored(model, dtype or next(model.parameters()).dtype)
            elif dtype is not None or of_inference_mode(model):
                self.model = copy.deepcopy(model).to(dtype)
            check_tensors(self.model)
            self._names = measured_names(self.model, params, any_precision=self.stored is not None)
            size = batch_size or _BATCH
            if resolve(loss).needs_model:
                train, test = without_targets(train), without_targets(test)
            held = memory // 2  # of both
            self.train = Batches(train, "train", size, held=held, samples=samples)
            held -= self.train.held_bytes
            self._test = None
            if test is not None:
                self._test = Batches(test, "test", size, held=held, samples=samples)
            if samples is not None and not any(data.streamed for data in self._splits()):
                raise InputError("samples=... is for streams; this data is read as a whole")
            self.loss = self._resolved(loss)
            self._initial = self._matching(initial) if initial is not None else None
            self.training = dict(training or {})
            check_model(self)
            check_loss(self)
            check_recomputing(self)

    def __repr__(self) -> str:
        weights, frozen = (
            sum(p.numel() for p in named.values()) for named in (self.params, self.frozen)
        )
        # Of this rank: a sum over ranks would wait for the others, which may not print.
        test = f" and {len(self.test):,} test" if self.has_test else ""
        here = f" on this of {ranks()} ranks" if ranks() > 1 else ""
        precision = str(self.dtype).removeprefix("torch.")
        return (
            f"Problem({type(self.model).__name__}: {weights:,} weights"
            + (f", and {frozen:,} frozen\n" if frozen else "\n")
            + f"        {self.loss.name}, {len(self.train):,} training{test} samples{here}\n"
            f"        {precision} on {self.device})"
        )

    def _resolved(self, loss: LossLike) -> Loss:
        """The loss for this model and its training data."""
        resolved = as_the_model_has_it(self, resolve(loss))
        return resolved.on(self.train.targets) if resolved.weighted else resolved

    @property
    def params(self) -> dict[str, Tensor]:
        """The measured parameters by name, constants that share the model's memory.

        They are read from the model whenever it is not being measured, so that they are its weights
        also after these were replaced (``vector_to_parameters``, ``load_state_dict(assign=True)``).
        """
        if self.stored is not None:
            return {name: self.stored.widened(name) for name in self._names}
        held = self._held or self._read()
        return {name: held[name] for name in self._names}

    @property
    def sharded(self) -> bool:
        """Whether the parameters are shards of several ranks."""
        return is_sharded(self.model)

    @property
    def frozen(self) -> dict[str, Tensor]:
        """The parameters that are not measured, by name: constants of the model."""
        params = [n for n, _ in self.model.named_parameters() if n not in self._names]
        if self.stored is not None:
            return {name: self.stored.widened(name) for name in params}
        held = self._held or self._read()
        return {name: held[name] for name in params}

    def _read(self) -> dict[str, Tensor]:
        """Every parameter and buffer as a constant, by name."""
        own = dict(self.model.named_parameters())
        constants = {n: constant(p) for n, p in own.items()} if self.stored is None else {}
        missing = [n for n in self._names if n not in own]
        if missing:
            raise InputError(
                f"the model has no parameter {missing[0]!r} any more; make a new Problem after "
                "changing the model's structure"
            )
        buffers = self.model.named_buffers()
        return constants | {n: b.clone() if b.is_inference() else b for n, b in buffers}

    @property
    def test(self) -> Batches:
        """The test data; an error that says what to pass when there is none."""
        if self._test is None:
            raise InputError("this needs test data; pass test=(inputs, targets) to Problem")
        return self._test

    @property
    def has_test(self) -> bool:
        """Whether test data was given."""
        return self._test is not None

    def _splits(self) -> list[Batches]:
        return [self.train] if self._test is None else [self.train, self._test]

    @property
    def notes(self) -> tuple[str, ...]:
        """What to know of the data: how much of a stream was taken."""
        return tuple(data.note for data in self._splits() if data.note is not None)

    @property
    def has_initial(self) -> bool:
        """Whether the initial weights were given."""
        return self._initial is not None

    @property
    def initial(self) -> dict[str, Tensor]:
        """The parameters that the training started from, by name."""
        if self._initial is None:
            raise InputError("this needs the initial weights; pass initial=... to Problem")
        return self._initial

    def _matching(self, initial: nn.Module | Mapping[str, Tensor]) -> dict[str, Tensor]:
        given = unwrap(initial).state_dict() if isinstance(initial, nn.Module) else dict(initial)
        wrong = [n for n, p in self.select().items() if n not in given or given[n].shape != p.shape]
        if wrong:
            raise InputError(
                f"the initial weights do not fit the model: {', '.join(map(repr, wrong[:3]))} is "
                "missing or has another shape"
            )
        return {n: given[n].detach().clone().to(self.device, self.dtype) for n in self._names}

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

    def data(self, split: str) -> Batches:
        """The train or test batches."""
        return self.train if split == "train" else self.test

    def count(self, split: str = "train") -> int:
        """How many samples the split has, over all data-parallel ranks together."""
        return total_count(len(self.data(split)))

    def batches(self, split: str = "train", size: int = _BATCH) -> Iterator[Batch]:
        """Batches on the model's device, floating-point data in its precision.

        ``size`` is what suits the work; a batch size of the user's own limits it.
        """
        if self._batch_size is not None:
            size = min(size, self._batch_size)
        data = self.data(split)
        if self.sharded:  # all ranks must gather the same parameters at the same time
            count = min(most(-(-len(data) // size)), -most(-len(data)))
            return (self.place(batch) for batch in data.parts(count))
        return (self.place(batch) for batch in data.chunks(size))

    def first(self, count: int, split: str = "train") -> Batch:
        """The first ``count`` samples, or those of the first batch if it has fewer."""
        if self.sharded:
            return self.place(self.data(split).take(slice(count)))
        return next(self.batches(split, count))

    def same_everywhere(self, batch: Batch) -> Batch:
        """The batch; for a sharded model that of the first rank, so that ranks decide alike."""
        return of_first_rank(batch) if self.sharded else batch

    def place(self, batch: Batch) -> Batch:
        """The batch on the model's device, in its precision; an error if the time is up."""
        check_time()
        device, dtype = self.device, self.dtype
        with torch.inference_mode(False):
            return batch.map(
                lambda t: constant(t).to(device, dtype if t.is_floating_point() else None)
            )

    def outputs(self, inputs: Inputs, params: Mapping[str, Tensor] | None = None) -> Tensor:
        """The model's outputs; call inside :meth:`measuring`.

        ``params`` replaces some of the parameters; the others enter as constants, so that no
        gradient ever reaches the user's own tensors.
        """
        out = self.run(inputs, params)
        if isinstance(out, Mapping) and "logits" in out:  # a Transformers ModelOutput
            out = out["logits"]
        if not isinstance(out, Tensor):
            raise InputError(
                f"the model returns {type(out).__name__}; expected a tensor of outputs, or a dict "
                "with 'logits': wrap the model so that it returns one of these"
            )
        return out

    def run(
        self, inputs: Inputs, params: Mapping[str, Tensor] | None = None, **more: Tensor
    ) -> Any:
        """What the model returns, unchanged, for the inputs and more arguments by name."""
        args, kwargs = arguments(inputs)
        return self._called(self.model, "", params or {}, args, {**kwargs, **more})

    def _precision(self, dtype: torch.dtype) -> contextlib.AbstractContextManager[None]:
        """A context for a forward pass in ``dtype``; empty where that is the model's own."""
        return contextlib.nullcontext() if dtype in self._written_in else all_in(dtype)

    def batch_losses(self, batch: Batch, params: Mapping[str, Tensor] | None = None) -> Tensor:
        """Every sample's loss, (n,), with some parameters replaced; call inside :meth:`measuring`.

        All rooms that need no outputs ask here, so that a loss may run the model as it likes.
        """
        if not isinstance(self.loss, ModelLoss):
            return self.loss(self.outputs(batch.inputs, params), batch.targets)
        with torch.enable_grad():  # the loss may differentiate on its way
            module = _Evaluation(self.model, self.loss)
            losses = self._called(module, "model.", params or {}, (batch,))
        return losses if torch.is_grad_enabled() else losses.detach()

    def _called(
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
            dtype = values[self._names[0]].dtype
        else:
            given, dtype = self.stored.given(params), self.dtype
            values = {n: t.to(dtype) if t.is_floating_point() else t for n, t in values.items()}
        named = {f"{prefix}{name}": value for name, value in values.items()}
        with given, self._precision(dtype):
            return functional_call(module, named, args, kwargs)

    def batch_wrong(self, batch: Batch, params: Mapping[str, Tensor] | None = None) -> Tensor:
        """The share of each sample's predictions that are wrong, (n,), in float64."""
        return self.loss.wrong(self.outputs(batch.inputs, params), batch.targets)

    def losses(self, split: str = "train") -> Tensor:
        """Every sample's loss, (N,), in data order."""
        with self.measuring(), torch.no_grad():
            losses = self._of_each(split, self.batch_losses)
        if not losses.isfinite().all():
            raise InputError(
                f"{int((~losses.isfinite()).sum())} of {len(losses)} {split} losses are NaN or "
                "infinite; the model's outputs overflow, or the loss does not fit them"
            )
        return losses

    def wrong(self, split: str = "train") -> Tensor:
        """The share of each sample's predictions that are wrong, (N,), in float64.

        0 or 1 for one label per sample; an error where targets are neither right nor wrong.
        """
        with self.measuring(), torch.no_grad():
            return self._of_each(split, self.batch_wrong)

    def _of_each(self, split: str, numbers: Callable[[Batch], Tensor]) -> Tensor:
        """One number for each sample, (N,), written into a single tensor batch by batch.

        Small tensors that stay between large ones that go would keep the memory of these.
        """
        place, count = None, 0
        for batch in self.batches(split):
            part = numbers(batch)
            if place is None:
                place = part.new_empty(len(self.data(split)))
            place[count : count + len(part)] = part
            count += len(part)
        assert place is not None  # no data set is empty
        return place

    def gradient(
        self, params: Mapping[str, Tensor] | None = None
    ) -> tuple[float, dict[str, Tensor]]:
        """The mean training loss and its gradient by parameter, summed in float64.

        ``params`` replaces parameters; the gradient is with respect to all that are measured.
        """
        with self.measuring():
            values = {**self.select(), **(params or {})}
            leaves = {n: p.detach().requires_grad_() for n, p in values.items()}
            loss = torch.zeros((), dtype=torch.float64, device=self.device)
            sums = {n: torch.zeros_like(p, dtype=torch.float64) for n, p in leaves.items()}
            for batch in self.batches():
                losses = self.batch_losses(batch, leaves)
                if not losses.requires_grad:
                    raise InputError(
                        f"loss {self.loss.name!r} has no gradient with respect to the "
                        "parameters: it is not differentiable, or does not depend on them"
                    )
                parts = torch.autograd.grad(
                    losses.sum(), list(leaves.values()), materialize_grads=True
                )
                loss += losses.detach().double().sum()
                for name, part in zip(sums, parts, strict=True):
                    sums[name] += part
            count = self.count()
            return float(total(loss) / count), {n: total(s) / count for n, s in sums.items()}

    def select(self, params: str | list[str] | None = None) -> dict[str, Tensor]:
        """The chosen parameters by name: all, those matching a glob, or those in a list.

        They are for differentiating: where weights stay as they are stored, each is a tensor of
        the parameter's shape that stands for it and has no values.
        """
        patterns = [params] if isinstance(params, str) else params
        chosen = set(self._names) if patterns is None else set()
        for pattern in patterns or ():
            matching = fnmatch.filter(self._names, pattern)
            if not matching:
                raise InputError(
                    f"no parameter matches {pattern!r}; there are {', '.join(self._names)}"
                )
            chosen.update(matching)
        names = [name for name in self._names if name in chosen]
        if self.stored is not None:
            return {name: self.stored.stand_in(name) for name in names}
        params_now = self.params
        return {name: params_now[name] for name in names}

    @differentiating()
    def at(self, params: Mapping[str, Tensor]) -> "Problem":
        """The same problem at another point of weight space, on a copy of the model."""
        other = self._with(self.copied_model(), self._names)
        other._initial = self._initial
        with torch.no_grad():
            for name, value in params.items():
                other.params[name].copy_(value)
        return other

    def copied_model(self) -> nn.Module:
        """A copy of the model; an error where its weights are to stay as they are stored."""
        self.check_whole()
        if self.stored is not None:
            raise InputError(
                "this needs a copy of the model, for which the memory budget is too small; pass "
                "Problem(memory=...) with more bytes"
            )
        return copy.deepcopy(self.model)

    def check_whole(self) -> None:
        """An error if the model is sharded."""
        if self.sharded:
            raise InputError(SHARDED)

    def of(self, model: nn.Module) -> "Problem":
        """The same loss and data with another model."""
        return self._with(model, measured_names(model, self._which))

    def _with(self, model: nn.Module, names: tuple[str, ...]) -> "Problem":
        other = copy.copy(self)
        other.model, other._names, other.stored = model, names, None
        other._whole = None if self._whole is None else self._whole._with(model, names)
        other._depth, other._held, other._initial = 0, None, None
        other._base = None
        check_loss(other)
        return other

    @property
    def base(self) -> "Problem":
        """The problem whose :meth:`with_loss` made this one; otherwise itself."""
        return self._base or self

    def with_loss(self, loss: LossLike) -> "Problem":
        """The same model and data with another loss."""
        other = copy.copy(self)
        other._base = self.base
        other._whole = None if self._whole is None else self._whole.with_loss(loss)
        try:
            other.loss = self._resolved(loss)
            check_loss(other)
        except InputError as error:
            # The advice is about the loss a Problem is made with, not about a measure's own loss.
            raise InputError(error.reason) from error
        return other

    def subset(self, places: Tensor) -> "Problem":
        """The same model with some of the training samples, by their places in the data."""
        other = copy.copy(self)
        other._whole = self.whole
        other.train = self.train.subset(places)
        return other

    @property
    def whole(self) -> "Problem":
        """The problem with all training samples, which this one is a subset of or the same as."""
        return self if self._whole is None else self._whole

    @contextlib.contextmanager
    def measuring(self, *, packing: bool = True) -> Iterator[None]:
        """Run the model in eval mode and leave no trace of it.

        Modes, buffers, other attributes of modules and random state are put back on the way out,
        also after an exception. Gradients are enabled whatever the caller's context, in full
        precision, by operations that can be differentiated twice. Weights that stay as they are
        stored are not kept wide by autograd either, unless ``packing`` is switched off.
        """
        if self._depth:
            yield
            return
        with differentiating(), random_state_kept(), modules_kept(self.model):
            self.model.eval()
            # Copies: a forward pass that writes into its weights does not write into the user's.
            self._depth, self._held = 1, {name: t.clone() for name, t in self._read().items()}
            keeping: contextlib.AbstractContextManager = contextlib.nullcontext()
            if self.stored is not None:
                self.stored.install()
                if packing:
                    keeping = saved_tensors_hooks(self.stored.pack, self.stored.unpack)
            try:
                with keeping, plain_operations(self.model):
                    yield
            finally:
                self._depth, self._held = 0, None


class _Evaluation(nn.Module):
    """A loss that runs the model, as a module: its parameters can then be replaced for the call."""

    def __init__(self, model: nn.Module, loss: ModelLoss) -> None:
        super().__init__()
        self.model, self.loss = model, loss

    def forward(self, batch: Batch) -> Tensor:
        return self.loss.of_model(self.model, batch)
