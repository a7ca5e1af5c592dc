"""The supplement's leading-order approximations of the gap, direction by direction (Eq. 13-17)."""

import torch
from torch import Tensor

from lowland.batches import Batch
from lowland.curvature import ForwardPass, Layer, sample_gradients
from lowland.dual.replay import losses_with_changes
from lowland.dual.shifts import Shifts
from lowland.errors import InputError
from lowland.problem import Problem

# Numbers in flight in the layer's outputs: 32 MiB in float64.
_OUTPUTS = 1 << 22
# And in gradients of single samples: 64 MiB.
_GRADIENTS = 1 << 23


def expansion(
    problem: Problem, shifts: Shifts, E: Tensor, train: Tensor, test: Tensor
) -> dict[str, Tensor]:
    """Three forms of the contribution of each direction, from exact to linear, and what they need.

    ``finite`` is the loss change when direction n joins those before it (Eq. 13): its sum over all
    directions is the gap that the dual weights make, without what other targets make of it: every
    training sample is asked for its test sample's target. ``alone`` is the loss change by direction
    n on its own (Eq. 14, 16), ``linear`` that of its gradient (Eq. 17), and ``gradient_square`` the
    mean square of the gradient along n, the leading order of ``sigma_g^2``.

    Args:
        problem: the model and data.
        shifts: the dual shifts of K pairs.
        E: the directions as columns, (M, n), in the order in which they join.
        train: the training sample of each pair, (K,).
        test: its test sample, (K,).
    """
    layer = shifts.layer
    sums = torch.zeros(4, E.shape[1], dtype=torch.float64, device=E.device)
    size = max(1, min(problem.train.batch_size, _GRADIENTS // len(E)))
    w = shifts.components(E)  # (K, n)
    for old, new, steps in zip(train.split(size), test.split(size), w.split(size), strict=True):
        targets = problem.data("test").take(new).targets
        batch = problem.place(Batch(problem.train.take(old).inputs, targets))
        sums += _of_chunk(problem, layer, batch, steps, E)
    finite, alone, linear, square = sums / len(shifts)
    return {"finite": finite, "alone": alone, "linear": linear, "gradient_square": square}


def obstacle(problem: Problem, layer: Layer) -> str | None:
    """Why the contributions of a layer cannot be expanded; None where they can."""
    E = torch.zeros(layer.size, 1, dtype=torch.float64, device=problem.device)
    batch = problem.first(1)
    try:
        with problem.measuring(), torch.no_grad():
            _losses_along(problem, layer, batch, E[:1].expand(len(batch), 1), E)
    except InputError as error:
        return str(error)
    return None


def _of_chunk(problem: Problem, layer: Layer, batch: Batch, w: Tensor, E: Tensor) -> Tensor:
    with problem.measuring():
        gradients = sample_gradients(problem, batch, layer).double()  # (k, M)
        gradient = layer.matrix(gradients.T).flatten(0, 2).T @ E  # (k, n)
        with torch.no_grad():
            losses = problem.batch_losses(batch).double()
            finite, alone = _losses_along(problem, layer, batch, w, E)
    before = torch.cat([losses.unsqueeze(0), finite[:-1]])
    return torch.stack(
        [
            (finite - before).sum(1),
            (alone - losses).sum(1),
            (gradient * w).sum(0),
            gradient.square().sum(0),
        ]
    )


def _losses_along(
    problem: Problem, layer: Layer, batch: Batch, w: Tensor, E: Tensor
) -> tuple[Tensor, Tensor]:
    """The losses (n, k) after the first n steps together, and after step n alone."""
    with torch.enable_grad():
        seen = ForwardPass(problem, batch, [layer.parameter])
    if seen.opaque or layer.uses > 1:
        raise InputError(f"layer {layer.name!r} is used more than once, or not seen through")
    x = seen.inputs(layer.parameter)[0].double()  # (k, T, G, in)
    finite: list[Tensor] = []
    alone: list[Tensor] = []
    walked = torch.zeros((), dtype=torch.float64, device=x.device)
    block = max(1, _OUTPUTS // (layer.outputs * len(x)))
    for part, steps in zip(E.split(block, dim=1), w.split(block, dim=1), strict=True):
        directions = part.T.unflatten(1, layer.shape)  # (b, G, out, in)
        answers = torch.einsum("bgoi,ktgi->bktgo", directions, x)
        each = answers * steps.T.reshape(-1, len(x), 1, 1, 1)
        together = walked + each.cumsum(0)
        walked = together[-1]
        for changes, losses in ((together, finite), (each, alone)):
            moves = seen.as_outputs(layer.parameter, 0, changes).to(problem.dtype)
            losses.append(losses_with_changes(problem, layer, batch, moves).double())
    return torch.cat(finite), torch.cat(alone)
