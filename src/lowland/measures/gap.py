"""The generalisation gap."""

from lowland.measures.registry import Value, register
from lowland.measures.shared.means import mean_and_error
from lowland.problem import Problem


@register(
    title="Generalisation gap",
    family="outcome",
    formula="mean test loss - mean training loss",
    definition="How much more the model loses on unseen data than on its training data.",
    citation="Feng & Tu, 2022, Fig. S3",
    sharper=None,
    needs_test=True,
    invariant=("layers", "units"),
)
def gap(problem: Problem) -> Value:
    """The difference of the two means; the error is that of the test mean."""
    train, _ = mean_and_error(problem.losses("train"))
    test, error = mean_and_error(problem.losses("test"))
    return Value(test - train, "exact on the test set", error)
