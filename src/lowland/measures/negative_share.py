"""Share of negative eigenvalues."""

from lowland.curvature import negative_eigenvalues
from lowland.measures.registry import Value, register
from lowland.measures.spectrum import density, whole_hessian
from lowland.problem import Problem


@register(
    title="Share of negative eigenvalues",
    family="curvature",
    formula="#{n: l_n < -threshold} / n",
    definition="The share of directions along which the training loss curves downwards: zero at a "
    "minimum, so that it tells how far from one the training stopped.",
    citation="Sagun et al. 2017, arXiv:1706.04454",
    sharper=None,
)
def negative_share(problem: Problem) -> Value:
    """Counted below what can be told from zero; the method states the threshold.

    Rescaling does not change how many eigenvalues are negative (Sylvester's law of inertia), but it
    changes how many of them can be told from zero.
    """
    H = whole_hessian(problem)
    found = negative_eigenvalues(H, density=density(problem))
    return Value(found.value / H.size, found.method, found.stderr / H.size or None)
