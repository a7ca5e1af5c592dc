"""The bits that it takes to write down the weights."""

from lowland.budget import Work
from lowland.measures.registry import Value, register
from lowland.measures.shared.half_widths import half_widths
from lowland.problem import Problem


@register(
    title="Description length",
    family="volume",
    formula="sum_i max(0, log2(|w_i| / d_i)), d_i the half-widths of the flat box",
    definition="How many bits the weights take when each is written only as precisely as the flat "
    "box demands: flat minima have short descriptions.",
    citation="Hochreiter & Schmidhuber, Neural Computation 1997",
    sampled=True,
    sharper="higher",
    cost=Work(needs=(half_widths,)),
    invariant=("layers", "units"),
)
def description_length(problem: Problem) -> Value:
    """Signs and the cost of the precisions themselves are left out; free parameters take none."""
    box = half_widths(problem)
    bits = float((box.w.abs() / box.d).log2().clamp_min(0).sum())
    parts = {"bits_per_parameter": bits / (len(box.d) + box.free), "free": float(box.free)}
    return Value(bits, "exact Gauss-Newton diagonal", parts=parts)
