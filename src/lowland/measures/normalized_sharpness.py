"""Normalized sharpness: curvature against squared weights, at the best noise per row and column."""

from lowland.budget import Work
from lowland.measures.registry import Value, register
from lowland.measures.shared.noise_variances import as_matrices, best_variances, hessian_diagonal
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
    parts, variance, clipped, total = {}, 0.0, 0.0, 0.0
    for name, groups in best_variances(problem).items():
        parts[name] = sum(b.value for b in groups)
        clipped += float(-h[name].double().clamp_max(0).sum())
        total += float(h[name].double().abs().sum())
        if name in h.stderr:
            # The slope by h_ij is u_i v_j. Two entries of a diagonal estimated with random signs
            # covary by no more than their variances allow: at most twice the independent sum.
            errors = as_matrices(h.stderr[name].double().square(), len(groups))
            for b, e in zip(groups, errors, strict=True):
                variance += 2 * float(((b.u.unsqueeze(1) * b.v * b.kept) ** 2 * e).sum())
    value = sum(parts.values())
    parts["clipped"] = clipped / total if total else 0.0
    how = f"diagonal estimated from {h.samples} products" if variance else "exact diagonal"
    return Value(value, f"{how}, closed-form alternation", variance**0.5 or None, parts)
