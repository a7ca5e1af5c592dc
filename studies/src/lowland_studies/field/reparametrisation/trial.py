"""A trained network, and the same function with other weights (Dinh et al.): what is measured."""

import copy
import functools
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from lowland.curvature import hessian
from lowland.dual import duality
from lowland.experiment.configuration import Configuration
from lowland.experiment.subject import Subject
from lowland.measures import measure
from lowland.problem import Problem
from lowland.rescaling import rescale
from lowland.training import train

_MEASURES = ("ball_sharpness", "normalized_sharpness", "gap", "test_error")
_LAYER = "3"  # the middle one, whose gap is decomposed


def trial(settings: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """Train on digits with ``label_noise``, rescale layers by ``factor``, and measure.

    Beside each measure stands, as ``trained_...``, that of the network as it was trained, which has
    the factor 1. ``given_...`` and ``balanced_...`` are the two determinants of the middle layer
    and the two parts of its gap, in either gauge.
    """
    which = settings["label_noise"], settings["per_class"], seed
    problem, H, before = _as_trained(*which)
    factor = settings["factor"]
    other = problem if factor == 1 else rescale(problem, "layers", factor)
    after = before if factor == 1 else _measured(other, rescaled_hessian(H, problem, other))
    return {
        **after,
        **{f"trained_{name}": value for name, value in before.items()},
        "output_change": _distance(problem, other),
    }


def _measured(problem: Problem, H: Tensor) -> dict[str, Any]:
    numbers = {name: row.value for name, row in measure(problem, list(_MEASURES)).whole().items()}
    numbers["trace"] = float(H.trace())
    numbers["largest_eigenvalue"] = float(torch.linalg.eigvalsh(H)[-1])
    for gauge in ("given", "balanced"):
        split = duality(problem, _LAYER, gauge=gauge)
        numbers |= {
            f"{gauge}_sigma_g": split.totals.total_g,
            f"{gauge}_sigma_w": split.totals.total_w_data,
            f"{gauge}_sharp": split.sharp,
            f"{gauge}_flat": split.flat,
        }
    return numbers


@functools.lru_cache(maxsize=32)
def _as_trained(
    label_noise: float, per_class: int, seed: int
) -> tuple[Problem, Tensor, dict[str, Any]]:
    """A trained network, its Hessian and what is measured of it: the same for every factor."""
    problem = _trained(label_noise, per_class, seed)
    H = hessian(problem).dense()
    return problem, H, _measured(problem, H)


def _trained(label_noise: float, per_class: int, seed: int) -> Problem:
    """A network of two hidden layers that fits its digits, in double precision."""
    configuration = Configuration(
        data="digits",
        per_class=per_class,
        label_noise=label_noise,
        network="64-12-12-10",
        batch_size=25,
        stop_loss=0.1,
        max_epochs=3000,
        data_seed=seed,
        seed=seed,
    )
    subject = Subject.of(configuration)
    train(subject.model, subject.train, subject.settings, loss=subject.loss)
    return replace(
        subject,
        model=copy.deepcopy(subject.model).double(),
        train=(subject.train[0].double(), subject.train[1]),
        test=(subject.test[0].double(), subject.test[1]),
    ).problem()


def rescaled_hessian(H: Tensor, problem: Problem, other: Problem) -> Tensor:
    """The Hessian at weights D w where the loss is L(D^-1 .): D^-1 H D^-1 (Dinh et al., Thm. 4).

    D is one number for each matrix. Far from balance this is known where differences of gradients,
    by which second derivatives are otherwise confirmed, drown in rounding.
    """
    scales = [
        torch.full((p.numel(),), float(other.params[name].norm() / p.norm()), dtype=H.dtype)
        for name, p in problem.params.items()
    ]
    d = torch.cat(scales)
    return H / d / d[:, None]


def _distance(problem: Problem, other: Problem) -> float:
    """The largest change of an output on the test data, relative to the largest output."""
    with problem.measuring(), other.measuring(), torch.no_grad():
        pairs = [
            (problem.outputs(batch.inputs), other.outputs(batch.inputs))
            for batch in problem.batches("test")
        ]
    largest = max(float(before.abs().max()) for before, _ in pairs)
    return max(float((after - before).abs().max()) for before, after in pairs) / largest
