"""Trace of the whole network's Hessian."""

from lowland.budget import Work
from lowland.curvature import few_outputs, seen_through
from lowland.curvature import trace as trace_of
from lowland.errors import InputError
from lowland.measures.registry import Value, register
from lowland.measures.shared.diagonals import gauss_newton_diagonal, hessian_work, shifts
from lowland.measures.shared.spectrum import affordable, hessian_spectrum, value_of, whole_hessian
from lowland.problem import Problem

OPEN = 0.25  # a trace with a larger standard error, as a share of it, is none


def _is_sum(problem: Problem) -> bool:
    """Whether it is the sum of all eigenvalues, where layers alone would leave it an error."""
    return affordable(problem) and not problem.sharded and not seen_through(problem)


def _work(problem: Problem) -> Work:
    if _is_sum(problem):
        return Work(needs=(hessian_spectrum,))
    return hessian_work(problem, 2 * shifts(problem))


@register(
    title="Hessian trace",
    family="curvature",
    formula="tr H = sum_i ∂^2 L / ∂w_i^2",
    definition="The sum of all curvatures of the training loss: the average rise under small "
    "isotropic noise on the weights, per unit of half its variance.",
    citation="Keskar et al. 2017; Dinh et al. 2017 (it changes under rescaling)",
    sampled=True,
    sharper="higher",
    cost=_work,
)
def trace(problem: Problem) -> Value:
    """Exact where layers can be seen through or all eigenvalues are known, otherwise estimated.

    The passes of an estimate end when the standard error is 1 %.
    """
    if _is_sum(problem) and (spectrum := hessian_spectrum(problem)).exact:
        return value_of(spectrum.total(lambda eigenvalues: eigenvalues), spectrum)
    gauss_newton = gauss_newton_diagonal(problem) if few_outputs(problem) else None
    estimate = trace_of(
        whole_hessian(problem),
        rtol=0.01,
        max_matvecs=2 * shifts(problem),
        gauss_newton=gauss_newton,
    )
    if not estimate.stderr <= OPEN * abs(estimate.value):
        raise InputError(f"the estimate leaves it open: {estimate!r}")
    return Value(estimate.value, estimate.method, estimate.stderr or None)
