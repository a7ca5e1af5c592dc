"""The trace of what the model's own curvature adds, by a random shift of each sample's outputs.

A layer's weights act on sample k only through the layer's outputs, so the trace of the remainder
``H - GGN`` is a sum over samples of second derivatives along random shifts ``u_k`` of those
outputs, with the covariance that noise on the weights gives them (``|x_k|^2 I`` for one position).
Every sample has shifts of its own: one pass averages over as many independent draws as there are
samples, where a random vector in weight space would be one draw. Shifts of all layers go through
one pass; their cross terms vanish on average.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from lowland.batches import Batch
from lowland.budget import Work
from lowland.curvature.estimate import Estimate
from lowland.curvature.forward import ForwardPass, gradients
from lowland.curvature.layer_search import Layer
from lowland.curvature.sample_factors import output_curvature
from lowland.curvature.uses import Use
from lowland.distributed import total
from lowland.errors import InputError
from lowland.problem import Problem

METHOD = "random shifts of each sample's outputs"

# Draws, over samples and passes, before the first look at their spread.
_DRAWS = 512
_MOST_DRAWS = 1 << 17
# Estimates of single samples that are held at once: 128 MiB.
_HELD = 1 << 24
# Weights drawn at once for samples that show a layer several positions.
_DRAWN = 1 << 24


def remainder_work(problem: Problem) -> Work:
    """What :func:`remainder_trace` takes where its first look is not enough, but the next two are.

    A draw differentiates three times, once through the graph of a gradient.
    """
    return Work(products=1, gradients=2).times(4 * _first_passes(len(problem.train)))


def _first_passes(samples: int) -> int:
    """Passes before the first look: an error from few draws is one itself of little certainty."""
    return 2 ** math.ceil(math.log2(max(4, _DRAWS / samples)))


def remainder_trace(
    problem: Problem,
    curved: list[Layer],
    *,
    target: float,
    max_passes: int | None = None,
    seed: int = 0,
) -> Estimate:
    """The trace of ``H - GGN`` over parameters that can be seen through.

    Passes are doubled until the standard error is below ``target``. It is pooled over samples, each
    with as many draws as there were passes. They end at ``max_passes``: 1,024 or, of few samples,
    as many as make 131,072 draws.
    """
    if max_passes is None:
        max_passes = max(1024, _MOST_DRAWS // len(problem.train))
    names = [layer.parameter for layer in curved]
    draws = _Draws(problem, names)
    generator = torch.Generator(device=problem.device).manual_seed(seed)
    count = problem.count()
    # One row for each parameter, and one for all: cross terms make the parts depend on each other.
    shape = len(names) + 1, len(problem.train)
    mean = torch.zeros(shape, dtype=torch.float64, device=problem.device)
    squares = torch.zeros_like(mean)  # sums of squared deviations from the mean
    passes, wanted = 0, min(max_passes, _first_passes(len(problem.train)))
    most = max(1, _HELD // mean.numel())
    while True:
        while passes < wanted:
            fresh = draws.of_all(generator, min(most, wanted - passes))  # (draws, names, N)
            for now in torch.cat([fresh, fresh.sum(1, keepdim=True)], 1):
                passes += 1
                step = now - mean
                mean += step / passes
                squares += step * (now - mean)
        variance = squares / (passes - 1) / passes  # of each sample's mean
        shares = total(mean.sum(1)) / count
        errors = total(variance.sum(1)).sqrt() / count
        stderr = float(errors[-1])
        if stderr <= target or 2 * passes > max_passes:
            break
        wanted = 2 * passes
    parts = {
        name: Estimate(float(v), float(e), passes, True, METHOD)
        for name, v, e in zip(names, shares[:-1], errors[:-1], strict=True)
    }
    return Estimate(float(shares[-1]), stderr, passes, stderr <= target, METHOD, parts)


@dataclass(frozen=True)
class _Draws:
    problem: Problem
    names: list[str]

    def of_all(self, generator: torch.Generator, count: int) -> Tensor:
        """Each sample's estimate for each parameter, ``count`` times: (count, names, N)."""
        with self.problem.measuring():
            batches = self.problem.batches("train")
            return torch.cat([self._of_batch(b, generator, count) for b in batches], 2)

    def _of_batch(self, batch: Batch, generator: torch.Generator, count: int) -> Tensor:
        problem = self.problem
        seen = ForwardPass(problem, batch, self.names)
        if seen.opaque:
            name, reason = next(iter(seen.opaque.items()))
            raise InputError(f"{name!r} {reason}")
        z = seen.outputs
        losses = problem.loss(z, batch.targets)
        uses = [use for name in self.names for use in seen.uses[name]]
        places = [(name, i) for name in self.names for i in range(len(seen.uses[name]))]
        A = output_curvature(problem, z.detach(), batch.targets)
        c = torch.zeros_like(z).requires_grad_()
        linear = gradients(z, uses, c, create_graph=True)  # linear in c
        slopes = gradients(losses, uses, create_graph=True)
        drawn = []
        for _ in range(count):  # all on one graph
            shifts = [u for name in self.names for u in _shifts(seen, name, generator)]
            # dz along all shifts: the gradient of c . z is linear in c
            (dz,) = torch.autograd.grad(_along(linear, shifts), c, retain_graph=True)
            Adz = (A @ dz.reshape(len(dz), -1, 1)).view_as(z)
            gauss_newton = gradients(z, uses, Adz)
            first = _along(slopes, shifts)
            second = gradients(first, uses) if first.requires_grad else gauss_newton
            rows = {name: losses.new_zeros(len(losses), dtype=torch.float64) for name in self.names}
            for (name, i), u, s, g in zip(places, shifts, second, gauss_newton, strict=True):
                product = seen.by_sample(name, i, (u * (s - g)).unsqueeze(0))
                rows[name] += product.detach().double().flatten(1).sum(1)
            drawn.append(torch.stack(list(rows.values())))
        return torch.stack(drawn)


def _along(every: list[Tensor], shifts: list[Tensor]) -> Tensor:
    """The sum of gradients times how far their outputs are shifted."""
    return torch.stack([(g * u).sum() for g, u in zip(every, shifts, strict=True)]).sum()


def _shifts(seen: ForwardPass, name: str, generator: torch.Generator) -> list[Tensor]:
    """How the outputs of each use answer to noise of unit variance on the parameter.

    Every sample has a noise of its own, the same in all uses.
    """
    uses, inputs = seen.uses[name], seen.inputs(name)
    n, x = seen.count, inputs[0]

    def signs(*shape: int) -> Tensor:
        drawn = torch.randint(2, shape, generator=generator, device=x.device)
        return (2 * drawn - 1).to(x.dtype)

    if len(uses) == 1 and uses[0].places.ndim == 3 and x.shape[1] == 1:
        groups, out, _ = uses[0].places.shape
        answers = [signs(n, 1, groups, out) * x.norm(dim=3, keepdim=True)]  # W x: |x| times noise
    else:
        answers = _answers(uses, inputs, seen.leaves[name].numel(), signs)
    return [seen.as_outputs(name, i, answer[None])[0] for i, answer in enumerate(answers)]


def _answers(
    uses: list[Use], inputs: list[Tensor], size: int, signs: Callable[..., Tensor]
) -> list[Tensor]:
    """(n, T, G, out) or (n, T, m) of each use, from noise on all entries of the parameter."""
    n, some = len(inputs[0]), max(1, _DRAWN // size)
    chunks: list[list[Tensor]] = [[] for _ in uses]
    for start in range(0, n, some):
        noise = signs(min(some, n - start), size)
        for use, x, chunk in zip(uses, inputs, chunks, strict=True):
            part, weights = x[start : start + some], noise[:, use.places]
            if use.places.ndim == 3:
                chunk.append(torch.einsum("ngoi,ntgi->ntgo", weights, part))
            else:
                chunk.append(weights.unsqueeze(1) * part)
    return [torch.cat(chunk) for chunk in chunks]
