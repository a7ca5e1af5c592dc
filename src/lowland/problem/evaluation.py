"""A network on data: batches where it can use them, every sample's loss, and the gradient."""

import contextlib
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from lowland.batches import Batch, Batches, Inputs
from lowland.budget import check_time
from lowland.distributed import most, of_first_rank, total, total_count
from lowland.errors import InputError
from lowland.losses import Loss, ModelLoss
from lowland.problem.conventions import loss_of_outputs, tensor_of
from lowland.problem.graphs import graph_bytes
from lowland.problem.model import constant
from lowland.problem.network import Network
from lowland.problem.precision import in_precision
from lowland.problem.state import state_of_data, state_of_loss
from lowland.problem.stored import Stored
from lowland.problem.traceless import ONE_AT_A_TIME

T = TypeVar("T")

BATCH = 1024  # samples at once, where nothing else decides
_GRAPHS = 1 / 4  # of the memory, for the graphs of a gradient


class Evaluation:
    """What a network, a loss and data give together; :class:`Problem` says how they are chosen."""

    loss: Loss
    train: Batches
    memory: int
    _network: Network
    _test: Batches | None
    _batch_size: int | None
    _looked_at: Hashable  # the state in which all of these were found
    _found: dict[Hashable, Any]
    _looked_in: object  # the block of measuring then, within which nothing changes

    @property
    def whole(self) -> "Evaluation":
        """The problem with all training samples, which this one is a subset of or the same as."""
        return self

    @property
    def model(self) -> nn.Module:
        """The model that is measured: the user's own, out of its wrappers, or a copy of it."""
        return self._network.model

    @property
    def state(self) -> Hashable:
        """A value that changes when the model, the training data or the loss does."""
        return self._network.state, state_of_data(self.train.held()), state_of_loss(self.loss)

    def changed_since(self, state: Hashable) -> bool:
        """Return whether the problem has another state; of a sharded model on any rank."""
        return self._anywhere(self.state != state)

    def _anywhere(self, changed: bool) -> bool:
        return bool(most(changed)) if self.sharded else changed

    def found(self, key: Hashable, look: Callable[[], T]) -> T:
        """Return what ``look`` finds out about the problem, once for as long as it is the same.

        Everything that is known of a problem from an earlier look is kept here, so that nothing
        of it outlives a change of weights, buffers, ``requires_grad``, data or the loss.
        """
        with ONE_AT_A_TIME:
            block = self._network.block
            if block is None or block is not self._looked_in:
                state = self.state
                if self._anywhere(state != self._looked_at):
                    self._looked_at, self._found = state, {}
                self._looked_in = block
            if key not in self._found:
                self._found[key] = look()
            return self._found[key]

    @property
    def stored(self) -> Stored | None:
        """The weights that stay as they are stored, if they do."""
        return self._network.stored

    @property
    def sharded(self) -> bool:
        """Whether the parameters are shards of several ranks."""
        return self._network.sharded

    @property
    def params(self) -> dict[str, Tensor]:
        """The measured parameters by name, constants that share the model's memory.

        They are read from the model whenever it is not being measured, so that they are its weights
        also after these were replaced (``vector_to_parameters``, ``load_state_dict(assign=True)``).
        """
        return self._network.params

    @property
    def frozen(self) -> dict[str, Tensor]:
        """The parameters that are not measured, by name: constants of the model."""
        return self._network.frozen

    def select(self, params: str | list[str] | None = None) -> dict[str, Tensor]:
        """The chosen parameters by name: all, those matching a glob, or those in a list.

        They are for differentiating: where weights stay as they are stored, each is a tensor of
        the parameter's shape that stands for it and has no values.
        """
        return self._network.select(params)

    @property
    def device(self) -> torch.device:
        """Where the model's parameters live; data is moved there batch by batch."""
        return self._network.device

    @property
    def dtype(self) -> torch.dtype:
        """The precision that the model is measured in; floating-point data is cast to it."""
        return self._network.dtype

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
        """What to know of model and data: what was switched off, how much of a stream was taken."""
        of_data = (data.note for data in self._splits() if data.note is not None)
        return (*sorted(self._network.notes), *of_data)

    def data(self, split: str) -> Batches:
        """Return the train or test batches."""
        if split not in ("train", "test"):
            raise InputError(f"a split is 'train' or 'test'; got {split!r}")
        return self.train if split == "train" else self.test

    def count(self, split: str = "train") -> int:
        """How many samples the split has, over all data-parallel ranks; 0 if there is none."""
        if split == "test" and not self.has_test:
            return 0
        return total_count(len(self.data(split)))

    def batches(self, split: str = "train", size: int = BATCH) -> Iterator[Batch]:
        """Batches on the model's device, floating-point data in its precision.

        ``size`` is what suits the work; a batch size of the user's own limits it.
        """
        if self._batch_size is not None:
            size = min(size, self._batch_size)
        data = self.data(split)
        if self._network.sharded:  # all ranks must gather the same parameters at the same time
            count = min(most(-(-len(data) // size)), -most(-len(data)))
            return (self.place(batch) for batch in data.parts(count))
        return (self.place(batch) for batch in data.chunks(size))

    def first(self, count: int, split: str = "train") -> Batch:
        """The first ``count`` samples, or those of the first batch if it has fewer."""
        if self._batch_size is not None:
            count = min(count, self._batch_size)
        return self.place(self.data(split).first(count))

    def same_everywhere(self, batch: Batch) -> Batch:
        """The batch; for a sharded model that of the first rank, so that ranks decide alike."""
        return of_first_rank(batch) if self.sharded else batch

    def place(self, batch: Batch) -> Batch:
        """The batch on the model's device, in its precision; an error if the time is up."""
        check_time()
        device, dtype = self._network.device, self._network.dtype
        with torch.inference_mode(False):
            return batch.map(lambda t: in_precision(constant(t).to(device), dtype))

    def measuring(self, *, packing: bool = True) -> contextlib.AbstractContextManager[None]:
        """Run the model in eval mode and leave no trace of it.

        Modes, buffers, other attributes of modules and random state are put back on the way out,
        also after an exception. Gradients are enabled whatever the caller's context, in full
        precision, by operations that can be differentiated twice. Weights that stay as they are
        stored are not kept wide by autograd either, unless ``packing`` is switched off.
        """
        return self._network.measuring(packing=packing)

    def outputs(self, inputs: Inputs, params: Mapping[str, Tensor] | None = None) -> Tensor:
        """The model's outputs; call inside :meth:`measuring`.

        ``params`` replaces some of the parameters; the others enter as constants, so that no
        gradient ever reaches the user's own tensors.
        """
        out = tensor_of(self._network.run(inputs, params))
        if not isinstance(out, Tensor):
            raise InputError(
                f"the model returns {type(out).__name__}; expected a tensor of outputs, or a dict "
                f"with 'logits': compute the loss from what it returns, {loss_of_outputs(inputs)}"
            )
        return out

    def run(
        self, inputs: Inputs, params: Mapping[str, Tensor] | None = None, **more: Tensor
    ) -> Any:
        """What the model returns, unchanged, for the inputs and more arguments by name."""
        return self._network.run(inputs, params, **more)

    def batch_losses(self, batch: Batch, params: Mapping[str, Tensor] | None = None) -> Tensor:
        """Every sample's loss, (n,), with some parameters replaced; call inside :meth:`measuring`.

        All rooms that need no outputs ask here, so that a loss may run the model as it likes.
        """
        if not isinstance(self.loss, ModelLoss):
            return self.loss(self.outputs(batch.inputs, params), batch.targets)
        with torch.enable_grad():  # the loss may differentiate on its way
            module = _LossOfModel(self.model, self.loss)
            losses = self._network.call(module, "model.", params or {}, (batch,))
        return losses if torch.is_grad_enabled() else losses.detach()

    def check_differentiable(self, losses: Tensor, names: Iterable[str] = ()) -> None:
        """Raise an error if losses have no graph that leads to the parameters."""
        if not losses.requires_grad:
            raise InputError(
                f"loss {self.loss.name!r} has no gradient with respect to "
                f"{', '.join(names) or 'the parameters'}: it is not differentiable, or does not "
                "depend on them"
            )

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
            for batch in self.batches(size=self._samples_of_graphs(leaves)):
                losses = self.batch_losses(batch, leaves)
                self.check_differentiable(losses)
                parts = torch.autograd.grad(
                    losses.sum(), list(leaves.values()), materialize_grads=True
                )
                loss += losses.detach().double().sum()
                for name, part in zip(sums, parts, strict=True):
                    sums[name] += part
            count = self.count()
            return float(total(loss) / count), {n: total(s) / count for n, s in sums.items()}

    def _samples_of_graphs(self, leaves: dict[str, Tensor]) -> int:
        """How many samples a gradient takes at once: as many as have graphs that fit the memory."""

        def look() -> int:
            try:
                each = graph_bytes(self, lambda batch: self.batch_losses(batch, leaves))
            except Exception:  # whatever it is, the gradient itself will say
                each = 1
            return max(1, min(BATCH, int(_GRAPHS * self.memory) // each))

        return self.whole.found("samples of graphs", look)  # its subsets have the same graphs


class _LossOfModel(nn.Module):
    """A loss that runs the model, as a module: its parameters can then be replaced for the call."""

    def __init__(self, model: nn.Module, loss: ModelLoss) -> None:
        super().__init__()
        self.model, self.loss = model, loss

    def forward(self, batch: Batch) -> Tensor:
        return self.loss.of_model(self.model, batch.given)
