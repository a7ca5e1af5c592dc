"""Mean test loss."""

from lowland.measures.registry import Value, register
from lowland.measures.shared.means import mean_and_error
from lowland.problem import Problem


@register(
    title="Test loss",
    family="outcome",
    formula="mean over test samples of l(w, x')",
    definition="The mean loss on data the model has not seen, with the standard error of the mean.",
    citation="",
    sharper=None,
    needs_test=True,
    invariant=("layers", "units"),
)
def test_loss(problem: Problem) -> Value:
    """Mean of the per-sample losses; the test set is a sample, so it has an error."""
    mean, error = mean_and_error(problem.losses("test"))
    return Value(mean, "exact on the test set", error)
