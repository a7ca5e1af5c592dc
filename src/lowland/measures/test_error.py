"""Misclassified share of the test data."""

from lowland.measures.registry import Value, register
from lowland.measures.shared.means import mean_and_error
from lowland.problem import Problem


@register(
    title="Test error",
    family="outcome",
    formula="share of test samples with argmax f(x') != y'",
    definition="The share of unseen samples that are classified wrongly, with its standard error.",
    citation="",
    sharper=None,
    needs_test=True,
    invariant=("layers", "units", "outputs"),
)
def test_error(problem: Problem) -> Value:
    """Counted on the test set, which is a sample: for labels its error is binomial."""
    share, error = mean_and_error(problem.wrong("test"), correction=0)
    return Value(share, "exact on the test set", error)
