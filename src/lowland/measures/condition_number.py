"""Condition number of the whole network's Hessian."""

import torch

from lowland.budget import Work
from lowland.curvature import (
    Hessian,
    rounding,
)
from lowland.curvature import (
    condition_number as condition_of,
)
from lowland.errors import InputError
from lowland.measures.registry import Value, register
from lowland.measures.shared.spectrum import hessian_spectrum, value_of, whole_hessian
from lowland.problem import Problem


@register(
    title="Condition number",
    family="curvature",
    formula="|l|_max / |l|_min",
    definition="The sharpest against the flattest curvature. A network with more parameters than "
    "data, or with softmax outputs, has directions without curvature, and then there is none.",
    citation="Sagun et al. 2017, arXiv:1706.04454",
    sharper="higher",
    cost=Work(products=2, needs=(whole_hessian, hessian_spectrum)),
)
def condition_number(problem: Problem) -> Value:
    """From all eigenvalues of a small network, and from both ends of a large one's spectrum."""
    if _blind_to_shifts(problem, whole_hessian(problem)):
        raise InputError("it is infinite: the loss does not see a common shift of the outputs")
    spectrum = hessian_spectrum(problem)
    condition = condition_of(spectrum)
    if not condition.converged or condition.value == float("inf"):
        raise InputError(f"it is infinite or out of reach ({condition.method})")
    return value_of(condition, spectrum)


def _blind_to_shifts(problem: Problem, H: Hessian) -> bool:
    """Whether the same change of all rows of the last matrix is a direction without curvature.

    So it is in front of a softmax, and one product finds out at once.
    """
    matrices = [name for name, p in problem.params.items() if p.ndim == 2]
    if not matrices or matrices[-1] not in H.slices:
        return False
    name, weight = matrices[-1], problem.params[matrices[-1]]
    v = torch.zeros(H.size, dtype=H.dtype, device=H.device)
    row = torch.randn(weight.shape[1], generator=torch.Generator().manual_seed(0)).to(v)
    v[H.slices[name]] = (row / row.norm()).expand_as(weight).flatten() / len(weight) ** 0.5
    other = torch.randn(H.size, generator=torch.Generator().manual_seed(1)).to(v)
    typical = (H @ (other / other.norm())).norm()
    return bool((H @ v).norm() <= rounding(H.dtype) * H.size**0.5 * typical)
