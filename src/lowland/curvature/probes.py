"""Trace and diagonal of what the model's own curvature adds, by random shifts of its layers.

A layer's weights act on sample k only through the layer's outputs, so the trace of the remainder
``H - GGN`` is a sum over samples of second derivatives along random shifts ``u_k`` of those
outputs, with the covariance that noise on the weights gives them (``|x_k|^2 I`` for one position).
Every sample has shifts of its own: one pass averages over as many independent draws as there are
samples, where a random vector in weight space would be one draw. Shifts of all layers go through
one pass; their cross terms vanish on average. Where the Gauss-Newton part is not known either, as
a sample has too many outputs, the same shifts give the whole Hessian (``whole``).
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from scipy.special import stdtrit
from torch import Tensor

from lowland.batches import Batch
from lowland.budget import Forecast, Work
from lowland.curvature.estimate import Estimate, widened
from lowland.curvature.forward import ForwardPass, gradients
from lowland.curvature.layer_search import Layer
from lowland.curvature.sample_factors import Term, output_curvature
from lowland.curvature.uses import Use
from lowland.distributed import total
from lowland.errors import InputError
from lowland.problem import Problem

# What one draw takes: it differentiates three times, once through the graph of a gradient.
SHIFT = Work(products=1, gradients=2)
METHOD = "random shifts of each sample's outputs"

# Draws, over samples and passes, before the first look at their spread.
_DRAWS = 2048
_MOST_DRAWS = 1 << 17
# Passes from which on their spread is an error: of whatever samples, and of so many draws in all.
_SURE, _FEWEST, _DRAWN_AT_ALL = 8, 4, 512
_FREEDOM = 50.0  # with so many degrees of freedom an error is known to a tenth of itself
_TWO_SIGMA = 0.97725  # of a normal distribution is below two standard deviations
# Estimates of single samples that are held at once: 128 MiB.
_HELD = 1 << 24
# Weights drawn at once for samples that show a layer several positions.
_DRAWN = 1 << 24


def first_passes(samples: int) -> int:
    """The passes before an error is first estimated: from few draws it would be uncertain."""
    return 2 ** math.ceil(math.log2(max(4, _DRAWS / samples)))


def remainder_trace(
    problem: Problem,
    curved: list[Layer],
    *,
    target: float = 0.0,
    rtol: float = 0.0,
    beside: float = 0.0,
    max_passes: int | None = None,
    worth: float = math.inf,
    whole: bool = False,
    seed: int = 0,
) -> Estimate:
    """The trace of ``H - GGN``, or of H, over parameters that can be seen through.

    Passes are doubled until the standard error is below ``target``, or below ``rtol`` of the trace
    plus what is known ``beside`` it, and is known itself to a tenth or so. It is pooled over
    samples, each with as many draws as there were passes. They end at ``max_passes``: 1,024 or, of
    few samples, as many as make 131,072 draws. They also end once it would take more passes than
    the trace is ``worth``, as it is had otherwise for so many.
    """
    if max_passes is None:
        max_passes = max(1024, _MOST_DRAWS // len(problem.train))
    names = [layer.parameter for layer in curved]
    draws = _Draws(problem, names, whole)
    generator = torch.Generator(device=problem.device).manual_seed(seed)
    count = problem.count()
    # One row for each parameter, and one for all: cross terms make the parts depend on each other.
    shape = len(names) + 1, len(problem.train)
    moments = _Moments(torch.zeros(shape, dtype=torch.float64, device=problem.device))
    passes, wanted = 0, min(max_passes, first_passes(len(problem.train)))
    most = max(1, _HELD // moments.mean.numel())
    forecast = Forecast()
    while True:
        while passes < wanted:
            fresh = draws.of_all(generator, min(most, wanted - passes))  # (draws, names, N)
            for now in torch.cat([fresh, fresh.sum(1, keepdim=True)], 1):
                passes += 1
                moments.add(now)
        shares = total(moments.mean.sum(1)) / count
        errors, freedom = moments.errors()
        errors = errors / count
        stderr = float(errors[-1])
        allowed = max(target, rtol * abs(beside + float(shares[-1])))
        enough = stderr <= allowed and (float(freedom[-1]) >= _FREEDOM or not stderr)
        needed = passes * (stderr / allowed) ** 2 if allowed else math.inf
        if enough or 2 * passes > max_passes or max(needed, 2 * passes) > worth:
            break
        forecast.tell(passes, min(needed, max_passes) - passes, "passes over the data")
        wanted = 2 * passes
    if math.isnan(widened_by_passes(passes, count)):
        errors, stderr = errors * math.nan, math.nan
    parts = {
        name: Estimate(float(v), float(e), passes, float(e) <= allowed, METHOD)
        for name, v, e in zip(names, shares[:-1], errors[:-1], strict=True)
    }
    return Estimate(float(shares[-1]), stderr, passes, stderr <= allowed, METHOD, parts)


class _Moments:
    """Running moments over the draws of every sample, updated draw by draw (Pebay 2008)."""

    def __init__(self, zeros: Tensor) -> None:
        self.count, self.mean = 0, zeros  # (parameters and all, N)
        self.second, self.third, self.fourth = (zeros.clone() for _ in range(3))

    def add(self, draw: Tensor) -> None:
        """Take one more draw of every sample into the moments."""
        self.count += 1
        n, far = self.count, draw - self.mean
        step = far / n
        square = far * step * (n - 1)
        self.mean = self.mean + step
        self.fourth += square * step**2 * (n**2 - 3 * n + 3)
        self.fourth += 6 * step**2 * self.second - 4 * step * self.third
        self.third += square * step * (n - 2) - 3 * step * self.second
        self.second += square

    def errors(self) -> tuple[Tensor, Tensor]:
        """Standard errors of the sums over samples of their means, and the degrees of freedom.

        Welch and Satterthwaite's degrees, with the draws' own kurtosis: one sample may make up most
        of an error, and a few draws most of that sample's. The errors are widened as Student's
        distribution has it, such that two of them hold what they hold of a normal one.
        """
        n = self.count
        variance = self.second / (n - 1)
        spread = (self.fourth / n - variance**2 * (n - 3) / (n - 1)).clamp_min(0) / n  # of it
        whole, doubt = total((variance / n).sum(1)), total((spread / n**2).sum(1))
        freedom = (2 * whole**2 / doubt).nan_to_num(1.0, math.inf).clamp(1, 1e9)
        # Of few draws the kurtosis is not known: no more than normal ones have.
        normal = total(((variance / n) ** 2).sum(1)) / (n + 1)  # their s^4 is too large by this
        freedom = torch.minimum(freedom, (whole**2 / normal).nan_to_num(1.0, math.inf).clamp_min(1))
        student = torch.as_tensor(stdtrit(freedom.cpu().numpy(), _TWO_SIGMA) / 2).to(whole)
        return student * whole.sqrt(), freedom


@dataclass(frozen=True)
class _Draws:
    problem: Problem
    names: list[str]
    whole: bool

    def of_all(self, generator: torch.Generator, count: int) -> Tensor:
        """Each sample's estimate for each parameter, ``count`` times: (count, names, N)."""
        with self.problem.measuring():
            batches = self.batches()
            return torch.cat([self._of_batch(b, generator, count) for b in batches], 2)

    def batches(self) -> Iterator[Batch]:
        """Training batches so small that noise on all weights fits the memory for each sample."""
        weights = sum(self.problem.params[name].numel() for name in self.names)
        return self.problem.batches("train", max(1, 4 * _DRAWN // weights))

    def _of_batch(self, batch: Batch, generator: torch.Generator, count: int) -> Tensor:
        drawn = []
        for answers in self._answers_of(batch, generator, count):
            rows = {n: torch.zeros(len(batch), dtype=torch.float64) for n in self.names}
            for name, u, response, _ in answers:
                product = (u * response).detach().double().flatten(1).sum(1)
                rows[name] = rows[name].to(product) + product
            drawn.append(torch.stack(list(rows.values())))
        return torch.stack(drawn)

    def diagonal_sums(self, batch: Batch, generator: torch.Generator, count: int) -> Iterator[dict]:
        """Each draw's estimates of the diagonals, summed over the batch, by parameter, (M,)."""
        for answers in self._answers_of(batch, generator, count):
            sums: dict[str, Tensor] = {}
            for name, u, response, shift in answers:
                size = self.problem.params[name].numel()
                flat = shift.use.places.flatten()
                if shift.noise is None:  # one position: the outputs' own second derivatives
                    squares = shift.x[:, 0].square()  # (n, G, in)
                    norm = squares.sum(2, keepdim=True)
                    second = (u * response)[:, 0] / torch.where(norm > 0, norm, 1)
                    share = torch.einsum("ngo,ngi->goi", second, squares).flatten()
                    sums[name] = share.new_zeros(size).index_add(0, flat, share)
                    continue
                terms = Term(shift.x, response.unsqueeze(1), shift.use.places).gradients()[:, 0]
                share = (shift.noise[:, flat] * terms).sum(0)
                previous = sums.get(name, share.new_zeros(size))
                sums[name] = previous.index_add(0, flat, share)
            yield {name: share.detach().double() for name, share in sums.items()}

    def _answers_of(
        self, batch: Batch, generator: torch.Generator, count: int
    ) -> Iterator[list[tuple[str, Tensor, Tensor, "_Shift"]]]:
        """Draw by draw, for each use of a parameter: its name, u, the response, and the shift.

        u is the random shift of the use's outputs and the response the matrix times it, both by
        sample.
        """
        problem = self.problem
        seen = ForwardPass(problem, batch, self.names)
        if seen.opaque:
            name, reason = next(iter(seen.opaque.items()))
            raise InputError(f"{name!r} {reason}")
        z = seen.outputs
        losses = problem.loss(z, batch.targets)
        uses = [use for name in self.names for use in seen.uses[name]]
        places = [(name, i) for name in self.names for i in range(len(seen.uses[name]))]
        slopes = gradients(losses, uses, create_graph=True)
        if not self.whole:
            A = output_curvature(problem, z.detach(), batch.targets)
            c = torch.zeros_like(z).requires_grad_()
            linear = gradients(z, uses, c, create_graph=True)  # linear in c
        for _ in range(count):  # all on one graph
            drawn = [s for name in self.names for s in _shifts(seen, name, generator)]
            shifts = [s.outputs for s in drawn]
            first = _along(slopes, shifts)
            if not self.whole:
                # dz along all shifts: the gradient of c . z is linear in c
                (dz,) = torch.autograd.grad(_along(linear, shifts), c, retain_graph=True)
                Adz = (A @ dz.reshape(len(dz), -1, 1)).view_as(z)
                gauss_newton = gradients(z, uses, Adz)
            elif not first.requires_grad:
                gauss_newton = [torch.zeros_like(u) for u in shifts]
            second = gradients(first, uses) if first.requires_grad else gauss_newton
            answers = []
            for k, ((name, i), shift) in enumerate(zip(places, drawn, strict=True)):
                curved = second[k] if self.whole else second[k] - gauss_newton[k]
                u, response = (
                    seen.by_sample(name, i, t.unsqueeze(0))[:, 0] for t in (shifts[k], curved)
                )
                answers.append((name, u, response, shift))
            yield answers


@dataclass(frozen=True)
class _Shift:
    """A random shift of one use's outputs, and the noise on the parameter that causes it."""

    use: Use
    outputs: Tensor
    x: Tensor  # what multiplies the parameter, by sample
    noise: Tensor | None  # (n, M); None where only its effect on the outputs was drawn


def remainder_diagonal(
    problem: Problem, curved: list[Layer], *, passes: int, whole: bool = False, seed: int = 0
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return the diagonal of ``H - GGN``, or of H, by name, and its spread, in float64.

    That is the standard deviation of the mean of the passes, by their estimates.
    """
    names = [layer.parameter for layer in curved]
    draws = _Draws(problem, names, whole)
    generator = torch.Generator(device=problem.device).manual_seed(seed)
    sums: list[dict[str, Tensor]] = [{} for _ in range(passes)]
    with problem.measuring():
        for batch in draws.batches():
            every = draws.diagonal_sums(batch, generator, passes)
            for so_far, more in zip(sums, every, strict=True):
                for name, share in more.items():
                    so_far[name] = so_far[name] + share if name in so_far else share
    value, spread = {}, {}
    for name in names:
        each = total(torch.stack([s[name] for s in sums])) / problem.count()  # (passes, M)
        shape = problem.params[name].shape
        value[name] = each.mean(0).view(shape)
        spread[name] = (each.var(0) / passes).sqrt().view(shape)
    return value, spread


def widened_by_passes(passes: int, samples: int) -> float:
    """Return by how much the spread of so many passes is widened, as Student's distribution has it.

    Two such errors hold what they hold of a normal distribution. Of few draws of signs some are all
    equal, and their spread is zero whatever the error is: there is none, NaN.
    """
    if passes < _FEWEST or (passes < _SURE and passes * samples < _DRAWN_AT_ALL):
        return math.nan
    return widened(passes)


def _along(every: list[Tensor], shifts: list[Tensor]) -> Tensor:
    """The sum of gradients times how far their outputs are shifted."""
    return torch.stack([(g * u).sum() for g, u in zip(every, shifts, strict=True)]).sum()


def _shifts(seen: ForwardPass, name: str, generator: torch.Generator) -> list[_Shift]:
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
        noise = None
    else:
        noise = signs(n, seen.leaves[name].numel())
        answers = _answers(uses, inputs, noise)
    return [
        _Shift(use, seen.as_outputs(name, i, answer[None])[0], inputs[i], noise)
        for i, (use, answer) in enumerate(zip(uses, answers, strict=True))
    ]


def _answers(uses: list[Use], inputs: list[Tensor], noise: Tensor) -> list[Tensor]:
    """(n, T, G, out) or (n, T, m) of each use, from noise on all entries of the parameter."""
    some = max(1, _DRAWN // noise.shape[1])
    chunks: list[list[Tensor]] = [[] for _ in uses]
    for start in range(0, len(noise), some):
        own = noise[start : start + some]
        for use, x, chunk in zip(uses, inputs, chunks, strict=True):
            part, weights = x[start : start + some], own[:, use.places]
            if use.places.ndim == 3:
                chunk.append(torch.einsum("ngoi,ntgi->ntgo", weights, part))
            else:
                chunk.append(weights.unsqueeze(1) * part)
    return [torch.cat(chunk) for chunk in chunks]
