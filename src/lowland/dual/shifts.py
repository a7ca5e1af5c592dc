"""Dual shifts: the change of a layer's weights that stands for a change of its inputs.

A sample shows a layer T positions (one for a plain dense layer; tokens; the patches that a
convolution unfolds), the columns of X (in x T). Replacing X by X' = X + dX changes the layer's
outputs by ``W dX``. The least-squares shift of least norm that does the same to the old sample is

    dW = W dX X^+

For one position it is Eq. 6 of Feng & Tu. It is exact while the columns of X are independent
(T <= in), so many convolutions have a dual, contrary to the paper; otherwise it leaves a residual.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from lowland.batches import Batch
from lowland.curvature import ForwardPass, Layer, layers, matrices, rounding, samples_within
from lowland.curvature import layer as layer_named
from lowland.dual.pairing import Pairs
from lowland.dual.replay import losses_at_own, losses_with_own_changes, shaped
from lowland.errors import InputError
from lowland.findings import DualKind
from lowland.problem import Problem

# Numbers in flight where shifts are written out: 256 MiB in float64.
_SHIFTS = 1 << 25
_LOSSES = 1 << 17  # bytes of one pair where only losses are computed

AskedDual = DualKind | Literal["auto"]


@dataclass(frozen=True)
class Shifts:
    """The dual shifts ``dW_k = left_k right_k`` of K pairs in one layer, in float64.

    Vectors over the weights are in the order of the layer's matrices, (G, out, in). Where the
    product is smaller than its factors, ``left`` is the shift itself and ``right`` is missing. What
    has no dual (inputs that are zero, no change of the outputs) has ``whole`` 0.
    """

    layer: Layer
    dual: DualKind
    left: Tensor  # (K, G, out, r)
    right: Tensor | None  # (K, G, r, in)
    size: Tensor  # (K,), |dW_k|^2
    whole: Tensor  # (K,), that of the shifts of all layers together, where these are joint
    residual: Tensor  # (K,), |dW X - W dX| / |W dX| or the outputs', 0 where nothing changes
    solved: Tensor  # (K,), whether the shift does what it should, as far as it can
    rank: Tensor  # (K,), singular values of X that were used, the least of the groups, or of J
    full_rank: int  # where the columns of X, or its rows, or the outputs are independent
    positions: int  # T
    cut: float  # singular values below this share of the largest were not
    dual_loss: Tensor  # (K,), l(w + dW_k, x_k) for the new sample's target, by the model itself
    dead: Tensor  # (K,), whether x_k = 0
    same: Tensor  # (K,), whether the layer sees no difference
    search: "Search | None" = None  # how the shifts of an output-level dual were found

    def __len__(self) -> int:
        return len(self.size)

    @property
    def kept(self) -> Tensor:
        """Which pairs have a dual shift, (K,)."""
        # By the shift of all layers: a layer without a part in it still carries 0 of the pair.
        return self.solved & (self.whole > 0)

    def where(self, kept: Tensor) -> "Shifts":
        """The shifts of some pairs."""
        rows = {
            name: value[kept]
            for name, value in vars(self).items()
            if isinstance(value, Tensor) and len(value) == len(self)
        }
        return Shifts(**{**vars(self), **rows})

    def written_out(self, size: int | None = None) -> Iterator[Tensor]:
        """The shifts as rows (k, M), some pairs at a time."""
        size = size or max(1, _SHIFTS // self.layer.size)
        right = self.right.split(size) if self.right is not None else [None] * len(self)
        for left, factor in zip(self.left.split(size), right, strict=False):
            yield (left if factor is None else left @ factor).flatten(1)

    def components(self, E: Tensor) -> Tensor:
        """Along each column of E (M, n): ``dW_k . e_n``, (K, n)."""
        groups, out, inputs = self.layer.shape
        n = E.shape[1]
        if self.right is None or n * self.right.shape[2] >= out:
            return torch.cat([rows @ E for rows in self.written_out()])
        # of few directions: the factors one after the other, and no shift is written out
        E = E.reshape(groups, out, inputs * n)
        size = max(1, _SHIFTS // (groups * self.right.shape[2] * inputs * n))
        parts = [
            torch.einsum(
                "kgri,kgrin->kn",
                right,
                torch.einsum("kgor,gom->kgrm", left, E).unflatten(-1, (inputs, n)),
            )
            for left, right in zip(self.left.split(size), self.right.split(size), strict=True)
        ]
        return torch.cat(parts)

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """``sum_k weights_k dW_k``, (M,): one matrix product."""
        left = self.left * weights.view(-1, 1, 1, 1)
        if self.right is None:
            return left.sum(0).flatten()
        return torch.einsum("kgor,kgri->goi", left, self.right).flatten()

    def dot(self, v: Tensor) -> Tensor:
        """``dW_k . v``, (K,): one matrix product."""
        V = v.view(self.layer.shape)
        if self.right is None:
            return torch.einsum("kgoi,goi->k", self.left, V)
        return torch.einsum(
            "kgor,kgor->k", self.left, torch.einsum("kgri,goi->kgor", self.right, V)
        )


@dataclass(frozen=True)
class Search:
    """How shifts were found that solve for the outputs of a network."""

    matched: int  # numbers of each sample
    outputs: int  # that there are
    along: Tensor  # (K,), the share of each shift along the solution set
    again: list[Shifts]  # some of the pairs, once for every random start
    places: Tensor  # which pairs these are


def layers_with_dual(problem: Problem, dual: AskedDual = "activity") -> dict[str, Layer]:
    """The dense and convolutional layers that have a dual.

    Those whose outputs come back to them as inputs have that of the output level only.
    """
    return {
        name: layer
        for name, layer in matrices(problem).items()
        if dual != "activity" or not layer.in_series
    }


def not_one_matrix(problem: Problem) -> dict[str, str]:
    """The layers whose weights enter products, but not as one matrix, and what they are."""
    return {
        name: f"used by {layer.uses} products as different matrices (an embedding that is also "
        "the head?), or in parts"
        for name, layer in layers(problem).items()
        if layer.operation in ("dense", "convolution", "embedding") and not layer.is_matrix
    }


def layer_with_dual(problem: Problem, name: str, dual: AskedDual = "auto") -> Layer:
    """The layer of that name; an error if there is none, or if it has no dual."""
    named = layer_named(problem, name)
    every = layers_with_dual(problem, dual)
    if named.name not in every:
        why = f"a {named.operation}"
        if named.is_matrix:
            why = "used in series, so that it has no activity-level dual (dual='output' works)"
        elif named.name in (several := not_one_matrix(problem)):
            why = several[named.name]
        raise InputError(
            f"layer {name!r} is {why}; the duality is of weights that are one matrix: "
            f"{', '.join(map(repr, every))}"
        )
    return named


def held_bytes(layer: Layer, pairs: int) -> int:
    """How many bytes the :class:`Shifts` of so many pairs take in this layer."""
    groups, out, inputs = layer.shape
    rank = inputs if layer.in_series else min(layer.positions, inputs)
    return 8 * pairs * groups * min(rank * (out + inputs), out * inputs)


@dataclass(frozen=True)
class Paired:
    """Every layer's dual shifts, and the losses of both samples of each pair (K,)."""

    shifts: dict[str, Shifts]
    train_loss: Tensor
    test_loss: Tensor
    target_loss: Tensor  # of the training sample, had it the test sample's target

    @property
    def dl(self) -> Tensor:
        """The change of the loss with the inputs, at the test sample's target, (K,).

        No change of weights stands for another target. Where partners have the same one, it is the
        difference of their losses.
        """
        return self.test_loss - self.target_loss


def dual_shifts(
    problem: Problem, chosen: list[Layer], pairs: Pairs, cut: float | None = None
) -> Paired:
    """The dual shifts of all pairs in every chosen layer, from one pass over them.

    Args:
        problem: the model and data.
        chosen: the layers.
        pairs: of training and test samples.
        cut: singular values of X below this share of the largest are left out of ``X^+``; by
            default those that the rounding of the model's precision makes meaningless.
    """
    if cut is not None and not 0 <= cut < 1:
        raise InputError(f"cut is a share of the largest singular value, from 0 to 1; got {cut}")
    parts: dict[str, list[Shifts]] = {layer.name: [] for layer in chosen}
    train_loss, test_loss, target_loss = [], [], []
    with problem.measuring():
        size = samples_within(problem, max((_bytes(layer) for layer in chosen), default=_LOSSES))
        for train, test in zip(pairs.train.split(size), pairs.test.split(size), strict=True):
            old, new = (
                problem.place(problem.data(split).take(places))
                for split, places in (("train", train), ("test", test))
            )
            before, outputs = _seen(problem, old, chosen)
            after, new_outputs = _seen(problem, new, chosen)
            with torch.no_grad():
                train_loss.append(problem.loss(outputs, old.targets))
                target_loss.append(problem.loss(outputs, new.targets))
                test_loss.append(problem.loss(new_outputs, new.targets))
                for layer in chosen:
                    x, x_new = before[layer.name].double(), after[layer.name].double()
                    asked = Batch(old.inputs, new.targets)
                    parts[layer.name].append(_of_chunk(problem, layer, asked, x, x_new, cut))
    return Paired(
        {name: joined(chunks) for name, chunks in parts.items()},
        torch.cat(train_loss).double(),
        torch.cat(test_loss).double(),
        torch.cat(target_loss).double(),
    )


def _seen(problem: Problem, batch: Batch, chosen: list[Layer]) -> tuple[dict[str, Tensor], Tensor]:
    """What multiplies each layer's matrix, (k, T, G, in), and the model's outputs."""
    seen = ForwardPass(problem, batch, [layer.parameter for layer in chosen])
    for layer in chosen:
        if layer.parameter in seen.opaque:
            raise InputError(f"layer {layer.name!r} {seen.opaque[layer.parameter]}")
    inputs = {layer.name: torch.cat(seen.inputs(layer.parameter), 1) for layer in chosen}
    return inputs, seen.outputs.detach()


def _of_chunk(
    problem: Problem,
    layer: Layer,
    old: Batch,
    x: Tensor,
    x_new: Tensor,
    cut: float | None,
) -> Shifts:
    _, out, inputs = layer.shape
    T = x.shape[1]
    X = x.permute(0, 2, 1, 3)  # (k, G, T, in): positions as rows from here on
    W = layer.matrix(problem.params[layer.parameter].double().flatten())
    target = torch.einsum("kgti,goi->kgto", x_new.permute(0, 2, 1, 3) - X, W)  # W dX
    cut = _default_cut(problem.dtype, max(T, inputs)) if cut is None else cut
    narrow = inputs >= T  # then the Gram matrix of the positions, else that of the inputs
    gram = X @ X.mT if narrow else X.mT @ X
    squares, V = torch.linalg.eigh(gram)  # ascending
    largest = squares[..., -1:].clamp_min(torch.finfo(squares.dtype).tiny)
    used = squares > cut**2 * largest
    inverse = torch.where(used, 1 / torch.where(used, squares, 1), 0)
    if narrow:  # X^+ = X^T V s^-2 V^T
        left, right = target.mT @ (V * inverse.unsqueeze(-2)), V.mT @ X
    else:  # X^+ = U s^-2 U^T X^T
        left, right = (target.mT @ X) @ (V * inverse.unsqueeze(-2)), V.mT
    if right.shape[2] * (out + inputs) > out * inputs:
        left, right = left @ right, None
        size = left.square().sum((1, 2, 3))
        reached = torch.einsum("kgoi,kgti->kgto", left, X)
    else:  # |left right|^2 needs no product of the two
        size = ((left.mT @ left) * (right @ right.mT)).sum((1, 2, 3))
        reached = (left @ (right @ X.mT)).mT
    change = target.square().sum((1, 2, 3)).sqrt()
    miss = (reached - target).square().sum((1, 2, 3)).sqrt()
    return Shifts(
        layer=layer,
        dual="activity",
        left=left,
        right=right,
        size=size,
        whole=size,
        residual=torch.where(change > 0, miss / torch.where(change > 0, change, 1), 0),
        solved=torch.ones_like(size, dtype=torch.bool),
        rank=used.sum(-1).amin(1),
        full_rank=min(T, inputs),
        positions=T,
        cut=cut,
        dual_loss=_dual_losses(problem, layer, old, left, right, reached).double(),
        dead=(x == 0).flatten(1).all(1),
        same=(x == x_new).flatten(1).all(1),
    )


def _dual_losses(
    problem: Problem, layer: Layer, batch: Batch, left: Tensor, right: Tensor | None, added: Tensor
) -> Tensor:
    """Each sample's loss at its own dual weights, by the model itself, (k,).

    A layer that sees one position of each sample gets what the shift adds to its outputs, ``added``
    (k, G, T, out); for others a weight is written out for each pair.
    """
    if _adds(layer):
        changes = added.flatten(1).to(problem.dtype)
        if (losses := losses_with_own_changes(problem, layer, batch, changes)) is not None:
            return losses
    W = layer.matrix(problem.params[layer.parameter].double().flatten())
    size = max(1, _SHIFTS // layer.size)
    rights = [None] * len(left) if right is None else right.split(size)
    parts = []
    for some, factor, samples in zip(left.split(size), rights, batch.split(size), strict=False):
        dW = some if factor is None else some @ factor  # (k, G, out, in)
        moved = shaped(problem, layer, (W + dW).flatten(1))
        parts.append(losses_at_own(problem, samples, {layer.parameter: moved}))
    return torch.cat(parts)


def _adds(layer: Layer) -> bool:
    """Whether a shift only adds one vector to what the layer puts out for a sample."""
    return layer.is_plain and layer.positions == 1 and layer.shape[0] == 1


def _default_cut(dtype: torch.dtype, size: int) -> float:
    """The share below which a singular value is rounding: of the activities, or of the Gram matrix.

    The Gram matrix in float64 squares singular values, so that it knows them to half its digits.
    """
    return max(size * torch.finfo(dtype).eps, (size * rounding(torch.float64)) ** 0.5)


def joined(parts: list[Shifts]) -> Shifts:
    """The shifts of several chunks of pairs as one."""
    first = vars(parts[0])
    rows = {
        name: _stacked([getattr(part, name) for part in parts])
        for name, value in first.items()
        if isinstance(value, Tensor)
    }
    return Shifts(**{**first, **rows})


def _stacked(parts: list[Tensor]) -> Tensor:
    """The rows of all parts; zeros fill up factors of less rank."""
    if parts[0].ndim == 1:
        return torch.cat(parts)
    sizes = [max(sizes) for sizes in zip(*(part.shape[1:] for part in parts), strict=True)]
    whole = parts[0].new_zeros(sum(map(len, parts)), *sizes)
    row = 0
    for part in parts:
        inside = (slice(row, row + len(part)), *(slice(size) for size in part.shape[1:]))
        whole[inside] = part
        row += len(part)
    return whole


def _bytes(layer: Layer) -> int:
    """How many bytes one pair takes while its shifts are computed."""
    groups, out, inputs = layer.shape
    T, small = layer.positions, min(layer.positions, inputs)
    numbers = 4 * T * inputs + 4 * T * out + 3 * small**2
    numbers += 0 if _adds(layer) else 4 * out * inputs
    return 8 * groups * numbers
