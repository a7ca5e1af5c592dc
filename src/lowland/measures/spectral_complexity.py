"""Spectrally normalised margin complexity."""

import math
from collections.abc import Mapping

from torch import Tensor

from lowland.budget import Work
from lowland.errors import InputError
from lowland.measures.margin import tenth_percentile
from lowland.measures.registry import Value, register
from lowland.measures.shared.layer_spectra import layer_matrices, spectral
from lowland.problem import Problem


@register(
    title="Spectral complexity over margin",
    family="norms",
    formula="prod_l s_l (sum_l (|W_l^T|_{2,1} / s_l)^(2/3))^(3/2) / margin",
    definition="Spectral norms s_l of the dense and convolutional layers with the row norms of "
    "their weights, over the margin of the training samples; activations count as Lipschitz with "
    "constant 1. The scale of a normalisation counts with the layer after it, where the two can be "
    "traded for each other. A part holds the same for the distance from the initial weights.",
    citation="Bartlett, Foster & Telgarsky, NeurIPS 2017",
    sharper="higher",
    cost=Work(needs=(spectral, tenth_percentile)),
    invariant=("layers", "outputs"),
)
def spectral_complexity(problem: Problem) -> Value:
    """The norm |A^T|_{2,1} is the sum of the lengths of A's rows."""
    norms = spectral(problem)
    zero = [name for name, s in norms.items() if s == 0]
    if zero:
        raise InputError(f"the weight of layer {zero[0]!r} is zero, so a ratio is not defined")
    gap = tenth_percentile(problem)
    if gap <= 0:
        raise InputError(
            f"needs a positive margin on nine of ten training samples; the tenth percentile is "
            f"{gap:.2g}: train the model until it fits its data"
        )
    product = math.prod(norms.values())

    def complexity(matrices: Mapping[str, Tensor]) -> float:
        rows = {name: float(matrix.norm(dim=2).sum()) for name, matrix in matrices.items()}
        total = sum((rows[name] / norms[name]) ** (2 / 3) for name in rows)
        return product * total**1.5 / gap

    weights = layer_matrices(problem, problem.params)
    parts = {"margin": gap, "product": product}
    if problem.has_initial:
        initial = layer_matrices(problem, problem.initial)
        parts["from_initial"] = complexity({n: W - initial[n] for n, W in weights.items()})
    return Value(complexity(weights), "exact", parts=parts)
