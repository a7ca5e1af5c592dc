"""The weights and samples on which ways of differentiating a model are tried."""

import itertools
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from lowland.batches import Batch
from lowland.curvature.graph import has_own_functions
from lowland.curvature.products import Scalar, constants_in_double, in_double
from lowland.problem import Problem

_SAMPLES, _BATCHES = 4, 16
# Samples at a time in the search for those that reach a parameter.
_MANY = 64
# Samples on which functions of the user's own are tried: the others would take too long.
_OF_OWN_FUNCTIONS = 1024
# How far beside the model's weights, relative to these.
_NEARBY = 0.05


def trials(problem: Problem) -> list[tuple[dict[str, Tensor], Batch]]:
    """Weights, in float64, and samples on which ways of differentiating are compared.

    First the samples with the largest losses, beside the model's weights. Then, for parameters that
    these do not depend on (a routed expert, a unit that is off), others that do, if there are any.
    And many where the model has functions of the user's own (``torch.autograd.Function``), which
    may be right for some values and wrong for others.
    """
    weights = nearby(problem, problem.params)
    tried = [(weights, hardest(problem))]
    reached, has_own = _reached(problem, *tried[0])
    for at, batch, also in _reaching(problem, set(weights) - reached, weights):
        tried.append((at, batch))
        has_own |= also
    if has_own:
        every = max(1, problem.count("train") // _OF_OWN_FUNCTIONS)
        tried += [
            (weights, b) for b in itertools.islice(problem.batches("train", _MANY), 0, None, every)
        ]
    return tried


def _reaching(
    problem: Problem, names: set[str], beside: dict[str, Tensor]
) -> Iterator[tuple[dict[str, Tensor], Batch, bool]]:
    """Weights and samples that depend on these parameters, where any do.

    With them comes whether functions of the user's own take part.
    """
    for weights in (beside, {name: p.double() for name, p in problem.params.items()}):
        batches = problem.batches("train", _MANY)
        while names and (batch := next(batches, None)) is not None:
            reached, has_own = _reached(problem, weights, batch)
            if names & reached:
                yield weights, batch, has_own
                names = names - reached


def _reached(problem: Problem, weights: dict[str, Tensor], batch: Batch) -> tuple[set[str], bool]:
    """The parameters that the losses of a batch depend on, and whether by the user's functions.

    All, where the losses cannot be differentiated: the ways that are tried say why.
    """
    leaves = {name: w.detach().requires_grad_() for name, w in weights.items()}
    loss = losses_in_double(problem, batch)(leaves)
    has_own = has_own_functions(loss)
    try:
        slopes = torch.autograd.grad(loss, list(leaves.values()), materialize_grads=True)
    except (RuntimeError, NotImplementedError):
        return set(weights), has_own
    return {name for name, slope in zip(leaves, slopes, strict=True) if slope.any()}, has_own


def hardest(problem: Problem) -> Batch:
    """Some samples of one of the first batches, those with the largest losses."""

    def look() -> Batch:
        batches = list(itertools.islice(problem.batches("train", _SAMPLES), _BATCHES))
        with torch.no_grad():
            losses = [problem.batch_losses(b).max() for b in batches]
        return batches[int(torch.stack(losses).nan_to_num().argmax())]

    return problem.found(hardest, look)


def nearby(problem: Problem, params: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights beside the model's own, in float64.

    At its own a ReLU may stand exactly at its kink (an input of zeros, a bias of zero), where a
    difference has no limit. A way of differentiating that is right nearby is right.
    """
    generator = torch.Generator(device=problem.device).manual_seed(0)
    return {name: beside(p.double(), generator) for name, p in params.items()}


def beside(t: Tensor, generator: torch.Generator) -> Tensor:
    """A tensor a little off this one, by random numbers."""
    noise = torch.randn(t.shape, generator=generator, dtype=t.dtype, device=t.device)
    return t + _NEARBY * (1e-3 + t.square().mean().sqrt()) * noise


def losses_in_double(problem: Problem, batch: Batch) -> Scalar:
    """The sum of a batch's losses as a function of the parameters, in float64."""
    double, constants = batch.map(in_double), constants_in_double(problem)
    return lambda params: problem.batch_losses(double, {**constants, **params}).sum()
