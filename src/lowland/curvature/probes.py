"""The trace of what the model's own curvature adds, by a random shift of each sample's outputs.

A layer's weights act on sample k only through the layer's outputs, so the trace of the remainder
``H - GGN`` is a sum over samples of second derivatives along random shifts ``u_k`` of those
outputs, with the covariance that noise on the weights gives them (``|x_k|^2 I`` for one position).
Every sample has shifts of its own: one pass averages over as many independent draws as there are
samples, where a random vector in weight space would be one draw. Shifts of all layers go through
one pass; their cross terms vanish on average.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lowland.batches import Batch
from lowland.curvature.estimate import Estimate
from lowland.curvature.factors import output_curvature
from lowland.curvature.layers import Layer, MatrixLayer
from lowland.distributed import total
from lowland.problem import Problem

METHOD = "random shifts of each sample's outputs"

# Weights drawn at once for samples that show a layer several positions.
_DRAWN = 1 << 24


def remainder_trace(
    problem: Problem,
    curved: list[Layer],
    names: list[str],
    *,
    target: float,
    max_passes: int = 256,
    seed: int = 0,
) -> Estimate:
    """The trace of ``H - GGN`` over the parameters ``names`` of layers that can be seen through.

    Passes are doubled until the standard error is below ``target``. It is pooled over samples, each
    with as many draws as there were passes.
    """
    draws = _Draws.of(problem, curved, names)
    generator = torch.Generator(device=problem.device).manual_seed(seed)
    count = problem.count()
    # One row for each parameter, and one for all: cross terms make the parts depend on each other.
    shape = len(names) + 1, len(problem.train)
    mean = torch.zeros(shape, dtype=torch.float64, device=problem.device)
    squares = torch.zeros_like(mean)  # sums of squared deviations from the mean
    passes, wanted = 0, 2
    while True:
        while passes < wanted:
            passes += 1
            now = torch.cat(list(draws.one_pass(generator)), dim=1)
            now = torch.cat([now, now.sum(0, keepdim=True)])
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
    places: dict[str, tuple[Layer, bool]]  # by parameter name: its layer, and whether it is a bias

    @classmethod
    def of(cls, problem: Problem, curved: list[Layer], names: list[str]) -> "_Draws":
        known = {at.weight_name: (at, False) for at in curved}
        known |= {at.bias_name: (at, True) for at in curved if at.bias_name}
        return cls(problem, {name: known[name] for name in names})

    def one_pass(self, generator: torch.Generator) -> Iterator[Tensor]:
        """Each sample's estimate for each parameter, (names, n), batch by batch."""
        with self.problem.measuring():
            for batch in self.problem.batches("train"):
                yield self._of_batch(batch, generator)

    def _of_batch(self, batch: Batch, generator: torch.Generator) -> Tensor:
        problem = self.problem
        # How far each sample's outputs are shifted for each parameter.
        t = torch.zeros(
            len(self.places), len(batch), dtype=problem.dtype, device=problem.device
        ).requires_grad_()
        with self._shifted(t, generator):
            z = problem.outputs(batch.inputs)
        losses = problem.loss(z, batch.targets)
        # dz along all shifts: the gradient of c . z is linear in c
        c = torch.zeros_like(z).requires_grad_()
        (linear,) = torch.autograd.grad(z, t, c, create_graph=True)
        (dz,) = torch.autograd.grad(linear.sum(), c, retain_graph=True)
        A = output_curvature(problem, z.detach(), batch.targets)
        Adz = (A @ dz.reshape(len(dz), -1, 1)).view_as(z)
        (gauss_newton,) = torch.autograd.grad(z, t, Adz, retain_graph=True)
        (first,) = torch.autograd.grad(losses.sum(), t, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), t)
        return (second - gauss_newton).double()

    @contextlib.contextmanager
    def _shifted(self, t: Tensor, generator: torch.Generator) -> Iterator[None]:
        rows = dict(zip(self.places, t, strict=True))
        layers = {at.name: at for at, _ in self.places.values()}

        def hook(at: Layer):  # type: ignore[no-untyped-def]
            def shift(module: nn.Module, args: tuple, kwargs: dict, output: Tensor) -> Tensor:
                x = at.inputs((args[0] if args else kwargs["input"]).detach())
                for name, (layer, is_bias) in self.places.items():
                    if layer.name == at.name:
                        u = _response(at, x, is_bias, generator)
                        a = rows[name].view(-1, *[1] * (u.ndim - 1)) * u
                        output = output + at.restored(a, output.shape)
                return output

            return shift

        handles = [
            at.module.register_forward_hook(hook(at), with_kwargs=True, prepend=True)
            for at in layers.values()
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()


def _response(at: Layer, x: Tensor, is_bias: bool, generator: torch.Generator) -> Tensor:
    """How the outputs (n, T, ...) answer to noise of unit variance on the weight or the bias."""
    n, T = x.shape[:2]

    def signs(*shape: int) -> Tensor:
        drawn = torch.randint(2, shape, generator=generator, device=x.device)
        return (2 * drawn - 1).to(x.dtype)

    if not isinstance(at, MatrixLayer):
        z = signs(n, 1, x.shape[2])
        return z.expand(n, T, -1) if is_bias else z * x
    groups, out, inputs = at.shape
    if is_bias:
        return signs(n, 1, groups, out).expand(n, T, -1, -1)
    if T == 1:  # W x for noise W: |x| times noise
        return signs(n, 1, groups, out) * x.norm(dim=3, keepdim=True)
    some = max(1, _DRAWN // at.weight.numel())
    return torch.cat(
        [
            torch.einsum("ngoi,ntgi->ntgo", signs(len(part), groups, out, inputs), part)
            for part in x.split(some)
        ]
    )
