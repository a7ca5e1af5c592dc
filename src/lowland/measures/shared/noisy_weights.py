"""Models whose weights are drawn anew: averages over the training data, and what they certify."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping

import torch
from torch import Tensor

from lowland.batches import Batch
from lowland.distributed import total
from lowland.problem import BATCH, Problem


def draws(
    mean: Mapping[str, Tensor],
    std: Mapping[str, Tensor | float],
    count: int,
    seed: int,
    signs: tuple[int, ...] = (1,),
) -> Iterator[dict[str, Tensor]]:
    """Weights ``mean + sign * std * noise``: for each of ``count`` noises, one per sign.

    Both signs together cancel what is odd in the noise, but are not independent.
    """
    for noise in noises(mean, std, count, seed):
        for sign in signs:
            yield {n: w + sign * noise[n] for n, w in mean.items()}


def noises(
    mean: Mapping[str, Tensor], std: Mapping[str, Tensor | float], count: int, seed: int
) -> Iterator[dict[str, Tensor]]:
    """So many times ``std * noise``, in the shapes of ``mean``.

    It is drawn in float32, so that it is the same for models of every precision.
    """
    device = next(iter(mean.values())).device
    generator = torch.Generator(device=device).manual_seed(seed)
    for _ in range(count):
        yield {
            n: std[n] * torch.randn(w.shape, generator=generator, device=device).to(w.dtype)
            for n, w in mean.items()
        }


def averages(
    problem: Problem,
    weights: Iterable[dict[str, Tensor]],
    score: Callable[[Batch, dict[str, Tensor]], Tensor],
    parts: int = 1,
) -> Tensor:
    """Each model's mean of ``score(batch, params)`` over the training samples, (models,).

    With several ``parts`` of the samples each model goes through one of them, in turn, and the mean
    is its sum times their number over the number of all samples. Equally many models of every part
    then have the same mean as if each had seen all samples.
    """
    sums = []
    with problem.measuring(), torch.no_grad():
        for k, params in enumerate(weights):
            batches = _part(problem, k % parts, parts) if parts > 1 else problem.batches()
            sums.append(parts * sum(float(score(b, params).double().sum()) for b in batches))
    return total(torch.tensor(sums, dtype=torch.float64)) / problem.count()


def _part(problem: Problem, first: int, parts: int) -> Iterator[Batch]:
    """The training samples ``first``, ``first + parts``, ``first + 2 parts`` and so on."""
    for batch in problem.batches(size=parts * BATCH):
        if first < len(batch):
            yield batch.map(lambda t, first=first: t[first::parts])  # type: ignore[misc]
        first = (first - len(batch)) % parts


def squared_distance(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> float:
    """``|a - b|^2`` over all parameters."""
    return sum(float((a[n].double() - b[n].double()).square().sum()) for n in a)


def prior_mean(problem: Problem) -> dict[str, Tensor]:
    """The initial weights where they are known, otherwise 0: nothing that the data has chosen."""
    if problem.has_initial:
        return problem.initial
    return {n: torch.zeros_like(p) for n, p in problem.params.items()}


def kl_inverse(q: float, c: float) -> float:
    """The largest p with ``kl(q || p) <= c`` between coins of bias q and p, rounded up.

    If q is the mean of n draws from [0, 1], the true mean is at most, with probability 1 - delta,
    ``kl_inverse(q, ln(1 / delta) / n)`` (Chernoff); PAC-Bayes bounds have the same form.

    >>> round(kl_inverse(0.0, math.log(2)), 12)  # -ln(1 - p) = ln 2
    0.5
    """
    low, high = q, 1.0
    while low < (middle := (low + high) / 2) < high:
        if _kl(q, middle) > c:
            high = middle
        else:
            low = middle
    return high


def _kl(q: float, p: float) -> float:
    """``kl(q || p)`` for 0 < p < 1."""
    return (q * math.log(q / p) if q > 0 else 0.0) + (
        (1 - q) * (math.log1p(-q) - math.log1p(-p)) if q < 1 else 0.0
    )
