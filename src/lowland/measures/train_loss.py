"""Mean training loss."""

from lowland.budget import Work
from lowland.distributed import gathered
from lowland.measures.registry import Value, register
from lowland.problem import Problem


@register(
    title="Training loss",
    family="outcome",
    formula="L = mean over training samples of l(w, x)",
    definition="The mean loss on the data the model was fitted to.",
    citation="",
    sharper=None,
    cost=Work(forwards=1),
    invariant=("layers", "units"),
)
def train_loss(problem: Problem) -> Value:
    """Mean of the per-sample losses."""
    return Value(float(gathered(problem.losses("train")).double().mean()), "exact")
