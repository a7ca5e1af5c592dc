"""Matrix-normalized sharpness: one noise variance for each weight matrix."""

import torch

from lowland.budget import Work
from lowland.errors import InputError
from lowland.measures.registry import Value, register
from lowland.measures.shared.noise_variances import (
    OPEN,
    clipped,
    hessian_diagonal,
    weight_matrices,
)
from lowland.problem import Problem


@register(
    title="Matrix-normalized sharpness",
    family="normalized",
    formula="sum_l sqrt(|W_l|_F^2 H_l), H_l = sum_ij max(∂^2 L / ∂W_ij^2, 0)",
    definition="The Frobenius norm of every weight matrix times the root of the sum of its "
    "curvatures; biases and norm scales are left out.",
    citation="Tsuzuku, Sato & Sugiyama, ICML 2020, Eq. 13",
    sampled=True,
    sharper="higher",
    cost=Work(needs=(hessian_diagonal,)),
    invariant=("layers", "outputs"),
    loss="normalized_cross_entropy",
)
def matrix_normalized_sharpness(problem: Problem) -> Value:
    """Each matrix's term is a part; curvature is clipped entry by entry, as in Algorithm 1."""
    h = hessian_diagonal(problem)
    parts, variance = {}, 0.0
    for name in weight_matrices(problem):
        norm = float(problem.params[name].double().norm())
        noise = clipped(h, name, torch.ones((), dtype=torch.float64, device=problem.device))
        trace = max(0.0, float(h[name].double().clamp_min(0).sum()) - noise.bias)
        parts[name] = norm * trace**0.5
        if noise.variance:
            spread = max(trace, noise.variance**0.5)  # of a root near zero
            variance += norm**2 * noise.variance / (4 * spread)
    value, stderr = sum(parts.values()), variance**0.5
    if not stderr <= OPEN * value:
        raise InputError(f"the estimate leaves it open: {value:.3g} ± {stderr:.1g}")
    how = f"diagonal estimated from {h.samples} passes" if variance else "exact diagonal"
    return Value(value, how, stderr or None, parts)
