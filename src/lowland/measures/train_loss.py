"""Mean training loss."""

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
    invariant=("layers", "units"),
)
def train_loss(problem: Problem) -> Value:
    """Mean of the per-sample losses."""
    return Value(float(gathered(problem.losses("train")).double().mean()), "exact")
