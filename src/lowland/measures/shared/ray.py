"""The training loss along a direction of weight space; what its points share is done once.

At ``w + t v`` a dense layer whose inputs are the data themselves gives ``F(w) + t F(v)``: one
product serves all points of a ray, and another all rays. Of an MLP, whose first layer is its widest
as a rule, that is half of a forward pass.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from lowland.batches import Batch
from lowland.measures.shared.neighbourhood import Neighbourhood

_FEWEST = 32  # inputs of a layer: with fewer, its product takes no longer than a sum of two tensors
_SHARE = 1 / 8  # of the memory, for the products that are kept


class Ray:
    """The mean training losses ``L(w + t v)``, t any number."""

    def __init__(self, near: Neighbourhood, v: Tensor) -> None:
        self._near, self._v = near, v
        self._products: dict[tuple, tuple[Tensor, Tensor]] = {}  # with w, and with v

    def loss(self, t: float) -> float:
        """L(w + t v): a forward pass over the training data, but for products that are kept."""
        params = self._near.shaped(self._near.w + t * self._v)
        return self._near.mean_loss(lambda batch, place: self._losses(t, params, batch, place))

    def _losses(self, t: float, params: dict[str, Tensor], batch: Batch, place: int) -> Tensor:
        with _FirstLayers(self, t, params, batch, place):
            return self._near.problem.batch_losses(batch, params)

    def outputs(self, t: float, x: Tensor, names: list[str], key: tuple) -> Tensor:
        """Those of the dense layer that has these parameters, for data x that ``key`` stands for.

        ``names`` are those of its weight and, if it has one, of its bias.
        """
        pair = self._products.get(key)
        if pair is None:
            kept, params = self._near.products, self._near.problem.params
            at_w = kept[key] if key in kept else F.linear(x, *(params[name] for name in names))
            direction = self._near.shaped(self._v)
            pair = at_w, F.linear(x, *(direction[name] for name in names))
            if 2 * sum(p.nbytes for p in {**kept, key: at_w}.values()) <= self._room:
                kept[key], self._products[key] = at_w, pair
        return torch.add(*pair, alpha=t)

    @property
    def _room(self) -> float:
        return _SHARE * self._near.problem.memory


class _FirstLayers(TorchFunctionMode):
    """While a batch goes through the model, its dense layers of data are those of a ray."""

    def __init__(
        self, ray: Ray, t: float, params: dict[str, Tensor], batch: Batch, place: int
    ) -> None:
        super().__init__()
        self._ray, self._t, self._params, self._place = ray, t, params, place
        self._names = {id(p): name for name, p in params.items()}
        leaves = pytree.tree_leaves(batch.inputs)
        # Views share both, and a tensor that was written into has another version.
        self._data = {(leaf.untyped_storage().data_ptr(), leaf._version) for leaf in leaves}
        self._versions = {name: p._version for name, p in params.items()}

    def __torch_function__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is F.linear and not torch.is_grad_enabled():
            return self._linear(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))

    def _linear(self, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        names = [self._names.get(id(p)) for p in (weight, bias) if p is not None]
        known = [n for n in names if n is not None and self._is_unchanged(n)]
        storage = input.untyped_storage().data_ptr()
        is_data = (storage, input._version) in self._data
        if len(known) < len(names) or not is_data or input.shape[-1] < _FEWEST:
            return F.linear(input, weight, bias)
        part = (input.storage_offset(), tuple(input.shape), input.stride())
        return self._ray.outputs(self._t, input, known, (self._place, *known, *part))

    def _is_unchanged(self, name: str) -> bool:
        return self._params[name]._version == self._versions[name]
