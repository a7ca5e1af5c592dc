"""The generalisation gap."""

from lowland.budget import Work
from lowland.distributed import gathered
from lowland.measures.registry import Value, register
from lowland.measures.shared.standard_error import loss_error
from lowland.measures.sharing import on_test
from lowland.problem import Problem


@register(
    title="Generalisation gap",
    family="outcome",
    formula="mean test loss - mean training loss",
    definition="How much more the model loses on unseen data than on its training data.",
    citation="Feng & Tu, 2022, Fig. S3",
    sharper=None,
    cost=lambda problem: Work(forwards=1) + on_test(Work(forwards=1))(problem),
    needs_test=True,
    invariant=("layers", "units"),
)
def gap(problem: Problem) -> Value:
    """The difference of the two means; the error is that of the test mean."""
    train, test = (gathered(problem.losses(split)).double() for split in ("train", "test"))
    value = float(test.mean() - train.mean())
    return Value(value, "exact on the test set", loss_error(problem, test))
