"""The one thing every room works on: a model, a per-sample loss, and data."""

import contextlib
import copy
import fnmatch
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call

from lowland.batches import Batch, Batches, Inputs
from lowland.budget import check_time
from lowland.distributed import total, total_count
from lowland.errors import InputError
from lowland.losses import LossLike, ModelLoss, resolve
from lowland.problem.checks import check_loss, check_model, check_recomputing, check_tensors
from lowland.problem.model import arguments, constant, measured_names, unwrap, wider
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
        loss: ``"cross_entropy"``, ``"mse"``, ``"normalized_cross_entropy"``, a torch loss module,
            a callable ``(outputs, targets) -> (N,)``, or :class:`lowland.ModelLoss` of a callable
            ``(model, batch) -> (N,)``.
        train: ``(inputs, targets)`` as tensors, a ``Dataset`` or a ``DataLoader``. Inputs may be a
            tensor, a tuple (``model(*inputs)``) or a dict (``model(**inputs)``; targets under
            ``"labels"``, as Transformers has it).
        test: the same for unseen data; measures that need it say so when it is missing.
        batch_size: how many samples go through the model at once, at most; by default, as many
            as is quick for the work at hand.
        memory: the bytes that curvature may keep in graphs and factors; what does not fit is
            computed in smaller chunks, or again for each product.
        dtype: compute in this precision, on a copy of the model (``torch.float64``, for example).
            Half-precision models are measured in float32: second derivatives need its digits.
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
        if memory < 1:
            raise InputError(f"memory is a number of bytes, at least 1; got {memory}")
        if params not in ("trainable", "all"):
            raise InputError(f"params must be 'trainable' or 'all'; got {params!r}")
        self.memory, self._batch_size, self._which = memory, batch_size, params
        self._whole: Problem | None = None  # what it is a subset of
        self._depth = 0
        self._held: dict[str, Tensor] | None = None  # the model's tensors while it is measured
        model = unwrap(model)
        check_tensors(model)
        with differentiating(), random_state_kept():  # shuffling loaders draw from the generators
            dtype = dtype or wider(model)
            self.model = copy.deepcopy(model).to(dtype) if dtype is not None else model
            self._names = measured_names(self.model, params)
            size = batch_size or _BATCH
            self.train = Batches(train, "train", size)
            self._test = Batches(test, "test", size) if test is not None else None
            self.loss = resolve(loss).on(self.train.targets)
            self._initial = self._matching(initial) if initial is not None else None
            self.training = dict(training or {})
            check_model(self)
            check_loss(self)
            check_recomputing(self)

    @property
    def params(self) -> dict[str, Tensor]:
        """The measured parameters by name, constants that share the model's memory.

        They are read from the model whenever it is not being measured, so that they are its weights
        also after these were replaced (``vector_to_parameters``, ``load_state_dict(assign=True)``).
        """
        held = self._held or self._read()
        return {name: held[name] for name in self._names}

    @property
    def frozen(self) -> dict[str, Tensor]:
        """The parameters that are not measured, by name: constants of the model."""
        held = self._held or self._read()
        params = dict(self.model.named_parameters())
        return {n: held[n] for n in params if n not in self._names}

    def _read(self) -> dict[str, Tensor]:
        """Every parameter and buffer as a constant, by name."""
        found = {n: constant(p) for n, p in self.model.named_parameters()}
        missing = [n for n in self._names if n not in found]
        if missing:
            raise InputError(
                f"the model has no parameter {missing[0]!r} any more; make a new Problem after "
                "changing the model's structure"
            )
        buffers = self.model.named_buffers()
        return found | {n: b.clone() if b.is_inference() else b for n, b in buffers}

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
        wrong = [n for n, p in self.params.items() if n not in given or given[n].shape != p.shape]
        if wrong:
            raise InputError(
                f"the initial weights do not fit the model: {', '.join(map(repr, wrong[:3]))} is "
                "missing or has another shape"
            )
        return {n: given[n].detach().clone().to(p) for n, p in self.params.items()}

    @property
    def device(self) -> torch.device:
        """Where the model's parameters live; data is moved there batch by batch."""
        return next(iter(self.params.values())).device

    @property
    def dtype(self) -> torch.dtype:
        """The precision of the model's parameters; floating-point data is cast to it."""
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
        return (self.place(batch) for batch in self.data(split).chunks(size))

    def first(self, count: int, split: str = "train") -> Batch:
        """The first ``count`` samples, or those of the first batch if it has fewer."""
        return next(self.batches(split, count))

    def place(self, batch: Batch) -> Batch:
        """The batch where and as the model wants it; the run ends here if its time is up."""
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
        args, kwargs = arguments(inputs)
        # Buffers are handed over too: what a forward pass puts in their place is then undone.
        values = {**(self._held or self._read()), **(params or {})}
        out = functional_call(self.model, values, args, kwargs)
        if isinstance(out, Mapping) and "logits" in out:  # a Transformers ModelOutput
            out = out["logits"]
        if not isinstance(out, Tensor):
            raise InputError(
                f"the model returns {type(out).__name__}; expected a tensor of outputs, or a dict "
                "with 'logits': wrap the model so that it returns one of these"
            )
        return out

    def batch_losses(self, batch: Batch, params: Mapping[str, Tensor] | None = None) -> Tensor:
        """Every sample's loss, (n,), with some parameters replaced; call inside :meth:`measuring`.

        All rooms that need no outputs ask here, so that a loss may run the model as it likes.
        """
        if not isinstance(self.loss, ModelLoss):
            return self.loss(self.outputs(batch.inputs, params), batch.targets)
        values = {**(self._held or self._read()), **(params or {})}
        named = {f"model.{name}": value for name, value in values.items()}
        with torch.enable_grad():  # the loss may differentiate on its way
            losses = functional_call(_Evaluation(self.model, self.loss), named, (batch,))
        return losses if torch.is_grad_enabled() else losses.detach()

    def batch_wrong(self, batch: Batch, params: Mapping[str, Tensor] | None = None) -> Tensor:
        """The share of each sample's predictions that are wrong, (n,), in float64."""
        return self.loss.wrong(self.outputs(batch.inputs, params), batch.targets)

    def losses(self, split: str = "train") -> Tensor:
        """Every sample's loss, (N,), in data order."""
        with self.measuring(), torch.no_grad():
            losses = torch.cat([self.batch_losses(batch) for batch in self.batches(split)])
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
            return torch.cat([self.batch_wrong(batch) for batch in self.batches(split)])

    def gradient(
        self, params: Mapping[str, Tensor] | None = None
    ) -> tuple[float, dict[str, Tensor]]:
        """The mean training loss and its gradient by parameter, summed in float64.

        ``params`` replaces parameters; the gradient is with respect to all that are measured.
        """
        with self.measuring():
            values = {**self.params, **(params or {})}
            leaves = {n: p.detach().clone().requires_grad_() for n, p in values.items()}
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
        """The chosen parameters by name: all, those matching a glob, or those in a list."""
        if params is None:
            return dict(self.params)
        patterns = [params] if isinstance(params, str) else params
        chosen = {}
        for pattern in patterns:
            found = fnmatch.filter(self.params, pattern)
            if not found:
                raise InputError(
                    f"no parameter matches {pattern!r}; there are {', '.join(self.params)}"
                )
            chosen.update({name: self.params[name] for name in found})
        return {name: p for name, p in self.params.items() if name in chosen}

    @differentiating()
    def at(self, params: Mapping[str, Tensor]) -> "Problem":
        """The same problem at another point of weight space, on a copy of the model."""
        other = self._with(copy.deepcopy(self.model), self._names)
        other._initial = self._initial
        with torch.no_grad():
            for name, value in params.items():
                other.params[name].copy_(value)
        return other

    def of(self, model: nn.Module) -> "Problem":
        """The same loss and data with another model."""
        return self._with(model, measured_names(model, self._which))

    def _with(self, model: nn.Module, names: tuple[str, ...]) -> "Problem":
        other = copy.copy(self)
        other.model, other._names = model, names
        other._whole = None if self._whole is None else self._whole._with(model, names)
        other._depth, other._held, other._initial = 0, None, None
        check_loss(other)
        return other

    def with_loss(self, loss: LossLike) -> "Problem":
        """The same model and data with another loss."""
        other = copy.copy(self)
        other.loss = resolve(loss).on(self.train.targets)
        other._whole = None if self._whole is None else self._whole.with_loss(loss)
        check_loss(other)
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
    def measuring(self) -> Iterator[None]:
        """Run the model in eval mode and leave no trace of it.

        Modes, buffers, other attributes of modules and random state are put back on the way out,
        also after an exception. Gradients are enabled whatever the caller's context, in full
        precision, by operations that can be differentiated twice.
        """
        if self._depth:
            yield
            return
        with differentiating(), random_state_kept(), modules_kept(self.model):
            self.model.eval()
            # Copies: a forward pass that writes into its weights does not write into the user's.
            self._depth, self._held = 1, {name: t.clone() for name, t in self._read().items()}
            try:
                with plain_operations(self.model):
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
