"""The one thing every room works on: a model, a per-sample loss, and data."""

import copy
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, Literal, ParamSpec, TypeVar

import torch
from torch import Tensor, nn

from lowland.batches import Batches
from lowland.distributed import ranks
from lowland.errors import InputError
from lowland.losses import Loss, LossLike, resolve
from lowland.problem.checks import check_gradients, check_loss, check_model
from lowland.problem.conventions import as_the_model_has_it, form_of_targets, of_any_outputs
from lowland.problem.evaluation import BATCH, Evaluation
from lowland.problem.model import unwrap
from lowland.problem.network import Network
from lowland.problem.traceless import differentiating, random_state_kept


class Problem(Evaluation):
    """A model at the point of weight space where it is, with its loss and data.

    Args:
        model: any ``torch.nn.Module``. Data-parallel and compiled wrappers are taken off. It is
            measured in eval mode and left exactly as it was, also after an error.
        loss: ``"cross_entropy"``, ``"mse"``, ``"normalized_cross_entropy"``, ``"next_token"``, a
            torch loss module, a callable ``(outputs, targets) -> (N,)``, or
            :class:`lowland.ModelLoss` of a callable ``(model, batch) -> (N,)``. Cross-entropy of a
            language model of Transformers, with its tokens as labels, is that of the next token.
            Outputs and targets of a callable may be tuples or dicts; what needs a tensor of them
            (the GGN, the duality) then does not apply.
        train: ``(inputs, targets)`` as tensors or arrays, a ``Dataset`` or what looks like one, a
            list of samples or batches, a ``DataLoader`` or any iterable of batches. Inputs may be a
            tensor, a tuple (``model(*inputs)``) or a dict. A dict goes in by name, or as it is if
            the model takes one argument of another name; its targets are under ``"labels"``, as
            Transformers has it, whose encoder-decoders get them as well. A loss that runs the
            model itself can do with inputs alone. Tensors that are mapped from a file stay so.
            What a loader gives is kept while it fits half of ``memory``; otherwise it is read again
            on each pass. A stream (an ``IterableDataset``, a generator) is read once; ``notes`` say
            how much of it was taken.
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
        self.memory, self._batch_size = memory, batch_size
        self._whole: Problem | None = None  # what it is a subset of
        self._base: Problem | None = None  # that with_loss was asked of
        self._variants: dict[str, Problem] = {}  # what with_loss made of it, by the loss's name
        with differentiating(), random_state_kept():  # shuffling loaders draw from the generators
            self._network = Network(model, params, dtype, memory)
            size = batch_size or BATCH
            held = memory // 2  # of both
            how: Any = {"samples": samples, "targets": form_of_targets(self.model, resolve(loss))}
            self.train = Batches(train, "train", size, held=held, **how)
            held -= self.train.held_bytes
            self._test = None
            if test is not None:
                self._test = Batches(test, "test", size, held=held, **how)
            if samples is not None and not any(data.streamed for data in self._splits()):
                raise InputError("samples=... is for streams; this data is read as a whole")
            self.loss = self._resolved(loss)
            self._initial = self._matching(initial) if initial is not None else None
            self.training = dict(training or {})
            check_model(self)
            check_loss(self)
            check_gradients(self)

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
        resolved = of_any_outputs(self, as_the_model_has_it(self, resolve(loss)))
        return resolved.on(self.train.targets) if resolved.weighted else resolved

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
        names = self._network.names
        return {n: given[n].detach().clone().to(self.device, self.dtype) for n in names}

    @differentiating()
    def at(self, params: Mapping[str, Tensor]) -> "Problem":
        """The same problem at another point of weight space, on a copy of the model."""
        other = self._with(self._network.copy())
        other._initial = self._initial
        with torch.no_grad():
            for name, value in params.items():
                other.params[name].copy_(value)
        return other

    def copied_model(self) -> nn.Module:
        """A copy of the model; an error where its weights are to stay as they are stored."""
        return self._network.copied()

    def check_whole(self) -> None:
        """An error if the model is sharded."""
        self._network.check_whole()

    def of(self, model: nn.Module) -> "Problem":
        """The same loss and data with another model."""
        return self._with(self._network.with_model(model))

    def _with(self, network: Network) -> "Problem":
        other = copy.copy(self)
        other._network, other._initial, other._base = network, None, None
        other._variants = {}
        other._whole = None if self._whole is None else self._whole._with(network)
        check_loss(other)
        return other

    @property
    def base(self) -> "Problem":
        """The problem whose :meth:`with_loss` made this one; otherwise itself."""
        return self._base or self

    def with_loss(self, loss: LossLike) -> "Problem":
        """The same model and data with another loss."""
        if isinstance(loss, str) and loss in self._variants:
            return self._variants[loss]  # so that what is verified of it is verified once
        other = copy.copy(self)
        other._base, other._variants = self.base, {}
        other._whole = None if self._whole is None else self._whole.with_loss(loss)
        try:
            other.loss = self._resolved(loss)
            check_loss(other)
        except InputError as error:
            # The advice is about the loss a Problem is made with, not about a measure's own loss.
            raise InputError(error.reason) from error
        if isinstance(loss, str):
            self._variants[loss] = other
        return other

    def subset(self, places: Tensor, split: str = "train") -> "Problem":
        """The same model with some of the samples of a split, by their places in the data."""
        other = copy.copy(self)
        other._whole, other._variants = self.whole, {}
        other._base = None if self._base is None else self._base.subset(places, split)
        setattr(other, {"test": "_test"}.get(split, split), self.data(split).subset(places))
        return other

    @property
    def whole(self) -> "Problem":
        """The problem with all training samples, which this one is a subset of or the same as."""
        return self if self._whole is None else self._whole


_P = ParamSpec("_P")
_T = TypeVar("_T")


def of_a_problem(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """Run a public function with gradients on; an error if its first argument is no problem."""

    @wraps(function)
    def checked(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        for given in args[:1] or (kwargs[name] for name in kwargs if name == "problem"):
            if not isinstance(given, Problem):
                raise InputError(
                    f"{function.__name__} takes a lowland.Problem; got {type(given).__name__}; "
                    "make one of model, loss and data: "
                    "ll.Problem(model, 'cross_entropy', train=(inputs, targets))"
                )
        with differentiating():
            return function(*args, **kwargs)

    return checked
