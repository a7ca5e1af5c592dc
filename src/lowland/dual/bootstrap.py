"""How sure the parts of the gap are: the bootstrap over pairs."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from lowland.dual.moments import Moments
from lowland.dual.shifts import Shifts
from lowland.findings import Intervals

SAMPLES = 1000
LEVEL = 0.95

# Up to so many pairs the product of the means is exact; it costs their square for each resample.
_EXACT = 512
# Counts held at once: they stay in the processor's cache.
_COUNTS = 1 << 17


def intervals(
    statistics: Moments, shifts: Shifts, ratio: Tensor, dl: Tensor, sharp: Tensor, seed: int
) -> Intervals:
    """95 % intervals of the paired gap and of its sharp and flat part.

    Pairs are drawn with replacement. The directions stay: they are the training loss's, not the
    pairs'. Of many pairs the product of the means is taken to first order in their change, an error
    of one part in the number of pairs.

    Args:
        statistics: the moments over all pairs.
        shifts: the dual shifts.
        ratio: ``g_k = ratio_k dW_k``.
        dl: the loss changes.
        sharp: the shifts' components along the sharp directions, (K, n_sharp).
        seed: of the draws.
    """
    product = _product_of_means(statistics, shifts, ratio)
    g = ratio.unsqueeze(1) * sharp
    columns = torch.cat([dl.unsqueeze(1), (g * sharp).sum(1, keepdim=True), g, sharp], 1)
    values = []
    for share in draws(len(dl), dl.device, seed):  # (b, K), each row sums to 1
        means = share @ columns
        whole, square = means[:, 0], means[:, 1]
        mean_g, mean_w = means[:, 2:].chunk(2, dim=1)
        part = square - (mean_g * mean_w).sum(1)
        values.append(torch.stack([whole, part, whole - product(share) - part]))
    tail = (1 - LEVEL) / 2
    ends = torch.quantile(torch.cat(values, 1), torch.tensor([tail, 1 - tail]).to(dl), dim=1)
    paired_gap, sharp_part, flat_part = ((low, high) for low, high in ends.T.tolist())
    return Intervals(paired_gap, sharp_part, flat_part)


def _product_of_means(
    statistics: Moments, shifts: Shifts, ratio: Tensor
) -> Callable[[Tensor], Tensor]:
    """The product of the mean gradient and the mean shift of resamples (b, K) -> (b,)."""
    if len(shifts) <= _EXACT:
        inner = ratio.unsqueeze(1) * shifts.inner_products()
        return lambda share: ((share @ inner) * share).sum(1)
    product = statistics.mean_g @ statistics.mean_w
    influence = ratio * shifts.dot(statistics.mean_w) + shifts.dot(statistics.mean_g)
    return lambda share: share @ influence - product


def draws(K: int, device: torch.device, seed: int) -> Iterator[Tensor]:
    """Resamples of K pairs as the share of each pair in them, some resamples at a time (b, K)."""
    generator = torch.Generator().manual_seed(seed)
    left = SAMPLES
    while left:
        b = min(left, max(1, _COUNTS // K))
        drawn = torch.randint(K, (b, K), generator=generator)
        drawn += K * torch.arange(b).unsqueeze(1)
        counts = torch.bincount(drawn.flatten(), minlength=b * K).view(b, K)
        yield counts.to(device, torch.float64) / K
        left -= b
