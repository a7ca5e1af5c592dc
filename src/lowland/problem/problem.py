"""The one thing every room works on: a model, a per-sample loss, and data."""

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, Literal, ParamSpec, TypeVar

import torch
from torch import Tensor, nn

from lowland.batches import Batches
from lowland.distributed import ranks
from lowland.errors import InputError
from lowland.losses import Loss, LossLike, resolve
from lowland.problem.checks import check_gradients, check_loss, check_model, check_tensors
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
            model made under ``torch.inference_mode`` is measured on a copy, too. Where the model
            has changed, the copy is made again. A copy that would
            take more than an eighth of ``memory`` is not made: the weights stay as they are stored,
            and each is widened when it is read. So are those of a sharded model (``fully_shard``),
            which every rank measures on data of its own.
        initial: the weights that the training started from, as a model or ``state_dict``, for
            measures of the distance travelled.
        training: facts of the training that some measures use: ``learning_rate``, ``batch_size``.
        params: ``"trainable"`` measures the parameters with ``requires_grad``; the frozen ones are
            constants, as they were for the training. ``"all"`` measures every one.

    A problem follows its model: after a change of weights, buffers or ``requires_grad`` its numbers
    are those of the model as it is then. Threads measure one after the other.

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
        with differentiating(), random_state_kept():  # shuffling loaders draw from the generators
            network = Network(model, params, dtype, memory)
            size = batch_size or BATCH
            held = memory // 2  # of both
            asked = resolve(loss)
            how: Any = {"samples": samples, "targets": form_of_targets(network.model, asked)}
            first = Batches(train, "train", size, held=held, **how)
            held -= first.held_bytes
            second = None if test is None else Batches(test, "test", size, held=held, **how)
            self._assemble(
                network=network,
                train=first,
                test=second,
                asked=asked,
                memory=memory,
                batch_size=batch_size,
                training=dict(training or {}),
            )
            if samples is not None and not any(data.streamed for data in self._splits()):
                raise InputError("samples=... is for streams; this data is read as a whole")
            self.loss = self._resolved()
            self._initial = self._matching(initial) if initial is not None else None
            self._check()

    def _assemble(
        self,
        *,
        network: Network,
        train: Batches,
        test: Batches | None,
        asked: Loss,
        memory: int,
        batch_size: int | None,
        training: dict[str, float],
        loss: Loss | None = None,
        initial: dict[str, Tensor] | None = None,
        whole: "Problem | None" = None,
        base: "Problem | None" = None,
    ) -> None:
        """Take the parts of a problem, of which nothing has been found out yet.

        Args:
            asked: the loss as it was given.
            loss: the same for this model and data; by default as it was given.
            whole: the problem that this one is a subset of.
            base: the problem that :meth:`with_loss` was asked of.
        """
        self._network, self.train, self._test = network, train, test
        self._asked, self.loss = asked, loss or asked
        self.memory, self._batch_size, self.training = memory, batch_size, training
        self._initial, self._whole, self._base = initial, whole, base
        self._variants: dict[str, Problem] = {}  # what with_loss made of it, by the loss's name
        self._looked_at, self._found, self._looked_in = None, {}, None

    def _like(self, **parts: Any) -> "Problem":
        """Return a problem with these parts, the others as here, and nothing found out yet."""
        own = {
            "network": self._network,
            "train": self.train,
            "test": self._test,
            "asked": self._asked,
            "loss": self.loss,
            "memory": self.memory,
            "batch_size": self._batch_size,
            "training": self.training,
        }
        other = Problem.__new__(Problem)
        other._assemble(**{**own, **parts})
        return other

    def _check(self) -> None:
        """Raise an error unless the model runs, and has gradients, with this loss and data."""
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

    def _resolved(self) -> Loss:
        """The loss for this model and all of its training data, also where this is a subset."""
        resolved = of_any_outputs(self, as_the_model_has_it(self, self._asked))
        return resolved.on(self.whole.train.targets) if resolved.weighted else resolved

    @property
    def has_initial(self) -> bool:
        """Whether the initial weights were given."""
        return self._initial is not None

    @property
    def initial(self) -> dict[str, Tensor]:
        """The parameters that the training started from, by name."""
        if self._initial is None:
            raise InputError("this needs the initial weights; pass initial=... to Problem")
        names = self._network.names
        if unknown := [name for name in names if name not in self._initial]:
            raise InputError(
                f"the initial weights have no parameter {unknown[0]!r}, which is measured now; "
                "pass initial=... with all of them to Problem"
            )
        return {name: self._initial[name] for name in names}

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
        """Return the same problem at another point of weight space, on a copy of the model.

        ``params`` holds the weights there by name; the others stay as they are.
        """
        if not isinstance(params, Mapping):
            raise InputError(
                "at() takes weights by name, {'0.weight': tensor, ...}; got "
                f"{type(params).__name__}"
            )
        network = self._network.copy()
        own = network.params
        for name, value in params.items():
            if name not in own or value.shape != own[name].shape:
                what = "is not measured" if name not in own else f"is {tuple(own[name].shape)}"
                raise InputError(f"at() got {name!r} {tuple(value.shape)}, which {what} here")
        with torch.no_grad():
            for name, value in params.items():
                own[name].copy_(value)
        return self._with(network, initial=self._initial)

    def copied_model(self) -> nn.Module:
        """A copy of the model; an error where its weights are to stay as they are stored."""
        return self._network.copied()

    def check_tensors(self) -> None:
        """Raise an error if weights or statistics are no numbers, as after a divergence."""
        check_tensors(self.model)

    def check_whole(self) -> None:
        """An error if the model is sharded."""
        self._network.check_whole()

    @differentiating()
    def of(self, model: nn.Module, dtype: torch.dtype | None = None) -> "Problem":
        """The same loss and data with another model, which is checked like that of a new problem.

        It is measured in ``dtype``, by default as this problem was asked to.
        """
        with random_state_kept():
            other = self._with(self._network.of(model, dtype))
            for each in {other.whole, other}:
                each.loss = each._resolved()
            other.whole._check()
        return other

    def _with(self, network: Network, **parts: Any) -> "Problem":
        whole = None if self._whole is None else self._whole._with(network, **parts)
        return self._like(network=network, whole=whole, **parts)

    @property
    def base(self) -> "Problem":
        """The problem whose :meth:`with_loss` made this one; otherwise itself."""
        return self._base or self

    def with_loss(self, loss: LossLike) -> "Problem":
        """The same model and data with another loss.

        The weights of classes are relative to those of all training data, also for a subset: so its
        losses are some of those of the whole.
        """
        if isinstance(loss, str) and loss in self._variants:
            return self._variants[loss]  # so that what is verified of it is verified once
        whole = None if self._whole is None else self._whole.with_loss(loss)
        try:
            other = self._like(
                asked=resolve(loss), initial=self._initial, whole=whole, base=self.base
            )
            other.loss = other._resolved()
            check_loss(other)
        except InputError as error:
            # The advice is about the loss a Problem is made with, not about a measure's own loss.
            raise InputError(error.reason) from error
        if isinstance(loss, str):
            self._variants[loss] = other
        return other

    def subset(self, places: Tensor, split: str = "train") -> "Problem":
        """Return the same model with some of the samples of a split, by their places in the data.

        ``places`` are whole numbers, or a truth value for each sample. The samples are a copy: a
        subset follows changes of the model, but not of the data that it was taken from.
        """
        places, count = torch.as_tensor(places), len(self.data(split))
        if places.dtype == torch.bool and places.shape == (count,):
            places = places.nonzero()[:, 0]
        numbers = places.ndim == 1 and places.dtype in (torch.int32, torch.int64)
        if not numbers or not len(places) or int(places.min()) < 0 or int(places.max()) >= count:
            raise InputError(
                f"a subset takes places between 0 and {count - 1} as a tensor of whole numbers, at "
                f"least one; got {places.dtype} {tuple(places.shape)}"
            )
        base = None if self._base is None else self._base.subset(places, split)
        part = {split: self.data(split).subset(places)}
        return self._like(initial=self._initial, whole=self.whole, base=base, **part)

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
