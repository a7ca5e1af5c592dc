"""The one thing every room works on: a model, a per-sample loss, and data."""

import contextlib
import copy
import fnmatch
import random
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils import _pytree as pytree

from lowland.batches import Batch, Batches, Inputs
from lowland.distributed import total_count
from lowland.errors import InputError
from lowland.losses import LossLike, resolve

_BATCH = 1024  # samples at once, where nothing else decides
_HALF = (torch.float16, torch.bfloat16)


class Problem:
    """A model at the point of weight space where it is, with its loss and data.

    Args:
        model: any ``torch.nn.Module``. Data-parallel and compiled wrappers are taken off. It is
            measured in eval mode and left exactly as it was, also after an error.
        loss: ``"cross_entropy"``, ``"mse"``, ``"normalized_cross_entropy"``, a torch loss module,
            or a callable ``(outputs, targets) -> (N,)``.
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
    ) -> None:
        if not isinstance(model, nn.Module):
            raise InputError(f"model must be a torch.nn.Module; got {type(model).__name__}")
        if train is None:
            raise InputError(
                "no training data; pass train=(inputs, targets), a Dataset or a loader"
            )
        if batch_size is not None and batch_size < 1:
            raise InputError(f"batch_size must be at least 1; got {batch_size}")
        if memory < 1:
            raise InputError(f"memory is a number of bytes, at least 1; got {memory}")
        self.memory, self._batch_size = memory, batch_size
        model = unwrap(model)
        _check_tensors(model)
        if dtype is None and any(p.dtype in _HALF for p in model.parameters()):
            dtype = torch.float32
        self.model = copy.deepcopy(model).to(dtype) if dtype is not None else model
        self.loss = resolve(loss)
        self.params: dict[str, Tensor] = {
            name: p.detach() for name, p in self.model.named_parameters()
        }
        if not self.params:
            raise InputError("the model has no parameters, so there is no weight space to measure")
        with _random_state_kept():  # shuffling loaders draw from the global generators
            size = batch_size or _BATCH
            self.train = Batches(train, "train", size)
            self._test = Batches(test, "test", size) if test is not None else None
        self._depth = 0
        self._initial = self._matching(initial) if initial is not None else None
        self.training = dict(training or {})
        self._check()

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

    def place(self, batch: Batch) -> Batch:
        """The batch where and as the model wants it."""
        return batch.map(lambda t: t.to(self.device, self.dtype if t.is_floating_point() else None))

    def outputs(self, inputs: Inputs, params: Mapping[str, Tensor] | None = None) -> Tensor:
        """The model's outputs; call inside :meth:`measuring`.

        ``params`` replaces some of the parameters; the others enter as constants, so that no
        gradient ever reaches the user's own tensors.
        """
        args, kwargs = _arguments(inputs)
        values = {**self.params, **params} if params else self.params
        out = functional_call(self.model, values, args, kwargs)
        if isinstance(out, Mapping) and "logits" in out:  # a Transformers ModelOutput
            out = out["logits"]
        if not isinstance(out, Tensor):
            raise InputError(
                f"the model returns {type(out).__name__}; expected a tensor of outputs, or a dict "
                "with 'logits': wrap the model so that it returns one of these"
            )
        return out

    def losses(self, split: str = "train") -> Tensor:
        """Every sample's loss, (N,), in data order."""
        with self.measuring(), torch.no_grad():
            parts = [self.loss(self.outputs(b.inputs), b.targets) for b in self.batches(split)]
        losses = torch.cat(parts)
        if not losses.isfinite().all():
            raise InputError(
                f"{int((~losses.isfinite()).sum())} of {len(losses)} {split} losses are NaN or "
                "infinite; the model's outputs overflow, or the loss does not fit them"
            )
        return losses

    def wrong(self, split: str = "train") -> Tensor:
        """Whether each sample is misclassified, (N,); an error where targets are not classes."""
        if not self.loss.classes or self.data(split).targets.is_floating_point():
            raise InputError(
                f"a classification error needs class labels; the loss is {self.loss.name!r}"
            )
        with self.measuring(), torch.no_grad():
            parts = [self.outputs(b.inputs).argmax(1) != b.targets for b in self.batches(split)]
        return torch.cat(parts)

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

    def at(self, params: Mapping[str, Tensor]) -> "Problem":
        """The same problem at another point of weight space, on a copy of the model."""
        other = self.of(copy.deepcopy(self.model))
        other._initial = self._initial
        with torch.no_grad():
            for name, value in params.items():
                other.params[name].copy_(value)
        return other

    def of(self, model: nn.Module) -> "Problem":
        """The same loss and data with another model."""
        other = copy.copy(self)
        other.model, other._depth, other._initial = model, 0, None
        other.params = {name: p.detach() for name, p in model.named_parameters()}
        other._check()
        return other

    def with_loss(self, loss: LossLike) -> "Problem":
        """The same model and data with another loss."""
        other = copy.copy(self)
        other.loss = resolve(loss)
        other._check()
        return other

    @contextlib.contextmanager
    def measuring(self) -> Iterator[None]:
        """Run the model in eval mode and leave no trace of it.

        Modes, buffers and random state are put back on the way out, also after an exception.
        Gradients are enabled whatever the caller's context, in full precision, and attention uses
        the implementation that can be differentiated twice.
        """
        if self._depth:
            yield
            return
        modules = list(self.model.modules())
        modes = [m.training for m in modules]
        buffers = [(b, b.clone()) for b in self.model.buffers()]
        self._depth += 1
        try:
            self.model.eval()
            with (
                _random_state_kept(),
                differentiating(self.device),
                sdpa_kernel(SDPBackend.MATH),
            ):
                yield
        finally:
            self._depth -= 1
            for module, mode in zip(modules, modes, strict=True):
                module.training = mode
            with torch.no_grad():
                for buffer, before in buffers:
                    if not torch.equal(buffer, before):
                        buffer.copy_(before)

    def _check(self) -> None:
        """Fail here, in words, rather than later inside torch."""
        batch = next(self.batches("train"))
        few = batch.map(lambda t: t[:2])
        with self.measuring(), torch.no_grad():
            try:
                out = self.outputs(few.inputs)
            except (RuntimeError, TypeError, IndexError) as error:
                raise InputError(
                    f"the model cannot run on the training inputs ({_describe(few.inputs)}): "
                    f"{error}"
                ) from error
            if not out.isfinite().all():
                raise InputError(
                    "the model's outputs on the training inputs are NaN or infinite; are its "
                    "weights or inputs too large for its precision?"
                )
            if not torch.equal(out, self.outputs(few.inputs)):
                raise InputError(
                    "the model returns other outputs for the same inputs, even in eval mode; "
                    "switch off its randomness (functional dropout without training=self.training?)"
                )
            if not self._is_alone_as_in_a_batch(few, out):
                raise InputError(
                    "a sample's outputs depend on the other samples of its batch (BatchNorm "
                    "without running statistics?), so no sample has a loss of its own"
                )
        if self.loss.classes and out.ndim == 2:
            for data in [self.train, *([self._test] if self._test else [])]:
                _check_labels(data, out.shape[1])
        self.loss(out, few.targets)

    def _is_alone_as_in_a_batch(self, few: Batch, out: Tensor) -> bool:
        try:
            alone = self.outputs(few.map(lambda t: t[:1]).inputs)
        except ValueError:  # torch's BatchNorm refuses to normalise a single sample by itself
            return False
        return torch.allclose(out[:1], alone, rtol=1e-2, atol=1e-3 * float(out.abs().max()))


def _check_tensors(model: nn.Module) -> None:
    """Every parameter and buffer must hold finite numbers."""
    for kind, named in (("parameter", model.named_parameters()), ("buffer", model.named_buffers())):
        for name, t in named:
            if nn.parameter.is_lazy(t) or t.is_meta:
                raise InputError(
                    f"{kind} {name!r} has no values yet (a lazy layer, or the meta device); run "
                    "the model once, or load its weights"
                )
            if t.is_floating_point() and not t.isfinite().all():
                raise InputError(
                    f"{kind} {name!r} holds {int((~t.isfinite()).sum())} NaN or infinite "
                    "value(s); the training diverged, or the checkpoint is damaged"
                )


def unwrap(model: nn.Module) -> nn.Module:
    """The module inside data-parallel and ``torch.compile`` wrappers.

    A compiled model cannot be differentiated twice, and DDP does not synchronise
    ``autograd.grad``: both must come off before curvature is computed.
    """
    while True:
        if isinstance(model, nn.parallel.DistributedDataParallel | nn.DataParallel):
            inner = model.module
        else:
            inner = getattr(model, "_orig_mod", None)
        if not isinstance(inner, nn.Module):
            return model
        model = inner


def _arguments(inputs: Inputs) -> tuple[tuple, dict]:
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    if isinstance(inputs, tuple | list):
        return tuple(inputs), {}
    return (inputs,), {}


def _describe(inputs: Inputs) -> str:
    shapes = pytree.tree_map(lambda t: f"{tuple(t.shape[1:])} {t.dtype}", inputs)
    return f"one sample is {shapes}"


def _check_labels(data: Batches, classes: int) -> None:
    targets = data.targets
    if targets.is_floating_point() or targets.ndim != 1:
        return  # class probabilities: the loss itself checks their shape
    low, high = int(targets.min()), int(targets.max())
    if low < 0 or high >= classes:
        raise InputError(
            f"{data.split} labels run from {low} to {high}, but the model has {classes} outputs; "
            f"labels must be 0 to {classes - 1}"
        )


@contextlib.contextmanager
def differentiating(device: torch.device) -> Iterator[None]:
    """Gradients, in full precision, whatever the caller has switched on or off."""
    with (
        torch.inference_mode(False),
        torch.enable_grad(),
        torch.autocast(device.type, enabled=False),
    ):
        yield


@contextlib.contextmanager
def _random_state_kept() -> Iterator[None]:
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices):
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)  # noqa: NPY002
