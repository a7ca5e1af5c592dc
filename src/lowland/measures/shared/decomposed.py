"""What the measures of the duality share: one decomposition."""

from lowland.budget import Work
from lowland.dual import choose, duality, layers_with_dual, pairing_work, split_work, usual
from lowland.errors import InputError
from lowland.findings import Decomposition
from lowland.measures.registry import Value
from lowland.measures.sharing import once
from lowland.problem import Problem

FEW_PAIRS = 30


def _work(problem: Problem) -> Work:
    """The pairs, and the split of the usual layer."""
    if not problem.has_test:
        return Work()
    try:
        usual_layer = layers_with_dual(problem)[usual(problem)]
    except InputError:  # which the decomposition will say
        return Work()
    return pairing_work(problem) + split_work(problem, [usual_layer], problem.count("test"))


@once(_work)
def decomposition(problem: Problem) -> Decomposition:
    """The gap over the directions of the layer that :func:`lowland.dual.choose` chooses."""
    choice = choose(problem)
    return duality(problem, choice.layer, pairs=choice.pairs)


def useful_decomposition(problem: Problem) -> Decomposition:
    """The decomposition; an error if its dual weights do not stand for the data."""
    shared = decomposition(problem)
    if not shared.trusted:
        raise InputError(f"layer {shared.layer!r} has no useful dual: {shared.fit.doubt}")
    return shared


def method(decomposition: Decomposition) -> str:
    """Which layer was decomposed, over which directions and in which gauge."""
    setting = decomposition.setting
    gauge = ", balanced units" if setting.gauge == "balanced" else ""
    dual = ", output-level dual" if setting.dual == "output" else ""
    return f"layer {setting.layer!r}{dual}{gauge}, directions: {setting.route}"


def part(decomposition: Decomposition, value: float, interval: tuple[float, float]) -> Value:
    """A part of the gap; its error is half the way to the farther end of its 95 % interval.

    With fewer than 30 pairs these intervals hold the truth too seldom, and there is no error.
    """
    if decomposition.pairs < FEW_PAIRS:
        few = f"{method(decomposition)}; {decomposition.pairs} pairs, too few for an error"
        return Value(value, few)
    low, high = interval
    return Value(value, method(decomposition), max(high - value, value - low) / 2)
