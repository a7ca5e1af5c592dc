"""Normalized sharpness: curvature against squared weights, at the best noise per row and column."""

import torch

from lowland.budget import Work
from lowland.errors import InputError
from lowland.measures.registry import Value, register
from lowland.measures.shared.noise_variances import (
    OPEN,
    best_variances,
    clipped,
    hessian_diagonal,
)
from lowland.problem import Problem


@register(
    title="Normalized sharpness",
    family="normalized",
    formula="sum_l min_(u,v>0) sum_ij max(h_ij, 0) u_i v_j + W_ij^2 / (u_i v_j)",
    definition="The curvature of every weight matrix times noise variances per row and column, "
    "plus the squared weights over them, at the best variances (lambda = 1/2); kernel positions "
    "share theirs, biases and norm scales are left out.",
    citation="Tsuzuku, Sato & Sugiyama, ICML 2020, Eq. 17",
    sampled=True,
    sharper="higher",
    cost=Work(needs=(best_variances,)),
    invariant=("layers", "units", "outputs"),
    loss="normalized_cross_entropy",
)
def normalized_sharpness(problem: Problem) -> Value:
    """The solver's value per layer; negative curvature is clipped, as in Algorithm 1."""
    h = hessian_diagonal(problem)
    parts, variance, cut, total = {}, 0.0, 0.0, 0.0
    for name, groups in best_variances(problem).items():
        # The slope by h_ij is u_i v_j, the same at all positions of a kernel.
        slopes = torch.stack([b.u.unsqueeze(1) * b.v * b.kept for b in groups]).flatten(0, 1)
        slopes = slopes.view(*slopes.shape, *[1] * (h[name].ndim - 2))
        noise = clipped(h, name, slopes)
        parts[name] = max(0.0, sum(b.value for b in groups) - noise.bias)
        variance += noise.variance
        size = float(h[name].double().abs().sum())
        cut, total = cut + noise.share * size, total + size
    value, stderr = sum(parts.values()), variance**0.5
    if not stderr <= OPEN * value:
        raise InputError(f"the estimate leaves it open: {value:.3g} ± {stderr:.1g}")
    parts["clipped"] = cut / total if total else 0.0
    how = f"diagonal estimated from {h.samples} passes" if variance else "exact diagonal"
    return Value(value, f"{how}, closed-form alternation", stderr or None, parts)
