"""Learning rate over batch size."""

import math
from numbers import Real

from lowland.errors import InputError
from lowland.measures.registry import Value, register
from lowland.measures.sharing import FREE
from lowland.problem import Problem


@register(
    title="Learning rate over batch size",
    family="gradients",
    formula="alpha / B",
    definition="The temperature of stochastic gradient descent: the more of it, the flatter the "
    "minima that it stays in.",
    citation="Jastrzebski et al., 2018; Smith & Le, ICLR 2018",
    sharper="lower",
    cost=FREE,
    invariant=("layers", "units", "outputs"),
)
def learning_rate_over_batch(problem: Problem) -> Value:
    """The ratio of the two facts as given: of the training, not of the point that it reached."""
    facts = problem.training
    for fact in ("learning_rate", "batch_size"):
        if fact not in facts:
            raise InputError(
                f"needs the training's {fact}; pass Problem(training={{'learning_rate': ..., "
                "'batch_size': ...})"
            )
        value = facts[fact]
        if not (isinstance(value, Real) and 0 < value < math.inf):
            raise InputError(f"the training's {fact} must be a positive number; got {value!r}")
    return Value(float(facts["learning_rate"] / facts["batch_size"]), "as given")
