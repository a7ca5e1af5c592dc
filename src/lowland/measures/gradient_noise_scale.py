"""Gradient noise scale."""

import torch

from lowland.budget import Work
from lowland.errors import InputError
from lowland.measures.gradient_variance import gradient_variance
from lowland.measures.registry import Value, register
from lowland.measures.shared.determined import check_gradient_determined
from lowland.measures.shared.sample_gradients import sample_gradients
from lowland.problem import Problem


@register(
    title="Gradient noise scale",
    family="gradients",
    formula="tr S / |G|^2, S the covariance and G the mean of the samples' gradients",
    definition="The batch size at which the noise of a stochastic gradient is as large as the "
    "gradient itself.",
    citation="McCandlish et al., 2018",
    sharper=None,
    cost=Work(needs=(sample_gradients, check_gradient_determined)),
)
def gradient_noise_scale(problem: Problem) -> Value:
    """Not defined at an exact minimum, where the mean gradient is zero."""
    check_gradient_determined(problem)
    variance = gradient_variance(problem).value
    square = sum(float(g.square().sum()) for g in sample_gradients(problem).mean.values())
    if square <= (10 * torch.finfo(problem.dtype).eps) ** 2 * variance:
        raise InputError(
            f"the mean gradient is zero to rounding (|G|^2 = {square:.1e}, variance "
            f"{variance:.1e}), so the ratio is not defined; measure before the exact minimum"
        )
    parts = {"variance": variance, "squared_gradient": square}
    return Value(variance / square, "exact", parts=parts)
