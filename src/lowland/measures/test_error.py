"""Misclassified share of the test data."""

from lowland.budget import Work
from lowland.distributed import gathered
from lowland.measures.registry import Value, register
from lowland.measures.shared.standard_error import share_error
from lowland.measures.sharing import on_test
from lowland.problem import Problem


@register(
    title="Test error",
    family="outcome",
    formula="share of test samples with argmax f(x') != y'",
    definition="The share of unseen samples that are classified wrongly, with its standard error.",
    citation="",
    sharper=None,
    cost=on_test(Work(forwards=1)),
    needs_test=True,
    invariant=("layers", "units", "outputs"),
)
def test_error(problem: Problem) -> Value:
    """Counted on the test set, which is a sample: its error is Wilson's, never zero."""
    wrong = gathered(problem.wrong("test"))
    return Value(float(wrong.mean()), "exact on the test set", share_error(wrong))
