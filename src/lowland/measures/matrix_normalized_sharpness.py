"""Matrix-normalized sharpness: one noise variance for each weight matrix."""

from lowland.budget import Work
from lowland.measures.registry import Value, register
from lowland.measures.shared.noise_variances import hessian_diagonal, weight_matrices
from lowland.problem import Problem


@register(
    title="Matrix-normalized sharpness",
    family="normalized",
    formula="sum_l sqrt(|W_l|_F^2 H_l), H_l = sum_ij max(d2L/dW_ij2, 0)",
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
        trace = float(h[name].double().clamp_min(0).sum())
        parts[name] = norm * trace**0.5
        if name in h.stderr and trace:
            # As in normalized_sharpness: covariances at most double the variance of a sum.
            error = 2**0.5 * float(h.stderr[name].double().norm())
            variance += (norm * error / (2 * trace**0.5)) ** 2
    how = f"diagonal estimated from {h.samples} products" if variance else "exact diagonal"
    return Value(sum(parts.values()), how, variance**0.5 or None, parts)
