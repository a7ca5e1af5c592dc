"""Expected calibration error."""

import torch

from lowland.budget import Work
from lowland.distributed import total, total_count
from lowland.measures.registry import Value, register
from lowland.measures.shared.class_scores import class_scores
from lowland.measures.sharing import on_test
from lowland.problem import Problem

_BINS = 15  # as in Guo et al.


@register(
    title="Calibration error",
    family="outcome",
    formula="sum_b n_b/N |share right in b - mean confidence in b|, 15 bins of equal width",
    definition="How far the confidence of the predictions on unseen data (the largest softmax "
    "probability) is from the share of them that is right, in the mean over bins of confidence.",
    citation="Naeini et al., AAAI 2015; Guo et al., ICML 2017",
    sharper=None,
    cost=on_test(Work(forwards=1)),
    needs_test=True,
    invariant=("layers", "units"),
)
def calibration_error(problem: Problem) -> Value:
    """The error over bins of confidence that are open below and closed above."""
    excess = torch.zeros(_BINS, dtype=torch.float64, device=problem.device)
    count = 0
    for z, y in class_scores(problem, "test"):
        confidence, predicted = z.softmax(1).max(1)
        bins = (confidence * _BINS).ceil().long().clamp(1, _BINS) - 1
        excess.index_add_(0, bins, (predicted == y).double() - confidence)
        count += len(y)
    excess = total(excess)  # before their size is taken: a bin may hold samples of several ranks
    return Value(float(excess.abs().sum() / total_count(count)), "exact on the test set")
