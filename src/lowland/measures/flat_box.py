"""The size of the box around the weights in which the training loss stays low."""

from lowland.budget import Work
from lowland.measures.registry import Value, register
from lowland.measures.shared.half_widths import half_widths
from lowland.problem import Problem


@register(
    title="Flat box",
    family="volume",
    formula="mean_i log2 d_i, d_i = sqrt(2 epsilon / (n h_ii)), epsilon = 0.1 max(L, 0.001)",
    definition="The logarithm of the volume, per parameter, of a box around the weights whose "
    "corners raise the training loss by a tenth, each weight taking an equal share.",
    citation="Hochreiter & Schmidhuber, Neural Computation 1997",
    sharper="lower",
    cost=Work(needs=(half_widths,)),
)
def flat_box(problem: Problem) -> Value:
    """The mean log2 of the half-widths.

    The paper asks for equal shares in the change of the net's outputs, adds them with the signs of
    the worst corner, and evaluates at single inputs. Here the change is that of the mean training
    loss, to second order with the Gauss-Newton diagonal, without products of different weights.
    Parameters that the loss does not bend along are free: they are counted, not averaged.
    """
    box = half_widths(problem)
    parts = {"epsilon": box.epsilon, "free": float(box.free)}
    return Value(float(box.d.log2().mean()), "exact Gauss-Newton diagonal", parts=parts)
