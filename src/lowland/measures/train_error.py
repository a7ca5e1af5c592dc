"""Misclassified share of the training data."""

from lowland.budget import Work
from lowland.distributed import gathered
from lowland.measures.registry import Value, register
from lowland.problem import Problem


@register(
    title="Training error",
    family="outcome",
    formula="share of training samples with argmax f(x) != y",
    definition="The share of training samples that are classified wrongly.",
    citation="",
    sharper=None,
    cost=Work(forwards=1),
    invariant=("layers", "units", "outputs"),
)
def train_error(problem: Problem) -> Value:
    """The share of wrong predictions, counted on all training samples."""
    return Value(float(gathered(problem.wrong("train")).double().mean()), "exact")
