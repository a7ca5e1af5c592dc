"""Mean test loss."""

from lowland.budget import Work
from lowland.distributed import gathered
from lowland.measures.registry import Value, register
from lowland.measures.shared.standard_error import loss_error
from lowland.measures.sharing import on_test
from lowland.problem import Problem


@register(
    title="Test loss",
    family="outcome",
    formula="mean over test samples of l(w, x')",
    definition="The mean loss on data the model has not seen, with the standard error of the mean.",
    citation="",
    sharper=None,
    cost=on_test(Work(forwards=1)),
    needs_test=True,
    invariant=("layers", "units"),
)
def test_loss(problem: Problem) -> Value:
    """Mean of the per-sample losses; the test set is a sample, so it has an error."""
    losses = gathered(problem.losses("test")).double()
    value = float(losses.mean())
    return Value(value, "exact on the test set", loss_error(problem, losses))
