"""Margin of the classification."""

import torch

from lowland.budget import Work
from lowland.distributed import gathered
from lowland.measures.registry import Value, register
from lowland.measures.shared.class_scores import class_scores
from lowland.measures.sharing import once
from lowland.problem import Problem

# The smallest margin of all hangs on one sample; the tenth percentile is what Jiang et al. take.
_SHARE = 0.1


@once(Work(forwards=1))
def tenth_percentile(problem: Problem) -> float:
    """The tenth percentile, over samples, of the right class's score less the best other score."""
    margins = []
    for z, y in class_scores(problem, "train"):
        right = z.gather(1, y[:, None])
        best = z.scatter(1, y[:, None], -torch.inf).amax(1, keepdim=True)
        margins.append(right - best)
    ordered = gathered(torch.cat(margins)).flatten().sort().values  # too many for torch.quantile
    place = _SHARE * (len(ordered) - 1)
    low = ordered[int(place)]
    high = ordered[min(int(place) + 1, len(ordered) - 1)]
    return float(torch.lerp(low, high, place % 1))


@register(
    title="Margin",
    family="norms",
    formula="10th percentile over training samples of z_y - max_{c != y} z_c",
    definition="By how much the right class's score leads the best other score, exceeded by nine "
    "of ten training samples; negative where more than one in ten is classified wrongly.",
    citation="Bartlett, Foster & Telgarsky, NeurIPS 2017; Jiang et al., ICLR 2020",
    sharper="lower",
    cost=Work(needs=(tenth_percentile,)),
    invariant=("layers", "units"),
)
def margin(problem: Problem) -> Value:
    """The tenth percentile, interpolated between the two nearest samples."""
    return Value(tenth_percentile(problem), "exact")
