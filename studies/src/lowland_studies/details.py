"""What runs record beside the rest: equations of the papers, and what backs a reason.

A configuration names these functions in ``details``. Each returns the record with more numbers.
"""

import copy
import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from lowland.curvature import diagonal
from lowland.dual import duality, pair
from lowland.experiment.configuration import FACTORS
from lowland.experiment.recording import Record, of_decomposition
from lowland.findings import Decomposition
from lowland.measures import measure, stress
from lowland.problem import Problem
from lowland.rescaling import rescale

Numbers = dict[str, Any]

_DRAWS = 100  # of Eq. 61
# Of its differences, as a share of the root mean square of a matrix. With 1e-3 some units of a ReLU
# network switch within a step, which adds what the Hessian does not have: 8 standard errors.
_STEP = 1e-6
_RATE, _STEPS = 0.05, 1500  # of Algorithm 1, by Adam


# --- Feng & Tu -----------------------------------------------------------------------------------


def activity(record: Record) -> Record:
    """Record how many units before a layer are active, how far pairs differ there, and Eq. 6.

    ``eq6_residual`` is the largest relative difference between a shift's length and |W dx| / |x|,
    the least that Eq. 2 allows. Nothing for layers that are not dense.
    """
    subject, split = record.subject, record.analysis.results.duality
    if split is None or split.per_pair is None or split.setting.joint:
        return record
    layer = dict(subject.model.named_modules()).get(split.layer)
    if not isinstance(layer, nn.Linear):
        return record
    X, X_test = subject.train[0][: subject.judged], subject.test[0]
    before, after = (_seen(subject.model, layer, inputs) for inputs in (X, X_test))
    if before.ndim != 2 or (len(before), len(after)) != (len(X), len(X_test)):
        return record  # a sample shows the layer several positions, or it is used several times
    places = torch.from_numpy(split.per_pair.train), torch.from_numpy(split.per_pair.test)
    x, shifted = before[places[0]], after[places[1]]
    squares = x.square().sum(1)
    least = ((shifted - x) @ layer.weight.detach().double().cpu().T).square().sum(1) / squares
    lengths = torch.from_numpy(split.per_pair.size)
    worst = float((lengths - least).abs().max() / least.max()) if len(least) else 0.0
    numbers = {
        "active": float((before > 0).double().mean()),
        "relative_shift": float(((shifted - x).square().sum(1) / squares).mean()),
    }
    if split.setting.dual == "activity":
        numbers["eq6_residual"] = worst
    return record.adding(numbers)


@torch.no_grad()
def _seen(model: nn.Module, layer: nn.Linear, inputs: Tensor) -> Tensor:
    """What a layer is given for these inputs, in float64."""
    seen: list[Tensor] = []
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    handle = layer.register_forward_pre_hook(lambda _, args: seen.append(args[0].double()))
    try:
        for batch in inputs.split(4096):
            model(batch)
    finally:
        handle.remove()
        for module, mode in modes:
            module.training = mode
    return torch.cat(seen).cpu()


def after_decay(record: Record) -> Record:
    """Record the loss when the penalty ended, or the training; and how the norm grew afterwards."""
    training = record.training
    last = training.settings.decay_epochs or len(training.epochs)
    epoch = training.epochs[min(last, len(training.epochs)) - 1]
    growth = training.epochs[-1].weight_norm / epoch.weight_norm if epoch.weight_norm else math.nan
    return record.adding({"loss_after_decay": epoch.loss, "norm_growth": growth})


def leading_order(record: Record) -> Record:
    """Record the supplement's approximations, by direction and summed (Eq. 13, 16 and 17)."""
    own = record.analysis.results.duality
    parts = _split(record, record.problem, leading_order=True).approximations
    if own is None or parts is None:
        return record
    sums = {"eq13": parts.finite, "eq16": parts.alone, "eq17": parts.linear}
    numbers = {name: float(part.sum()) for name, part in sums.items()}
    return record.adding(numbers, replace(own, approximations=parts))


def reverse_pairs(record: Record) -> Record:
    """Record the decomposition that pairs each training sample with its nearest test sample."""
    problem = record.problem
    split = _split(record, problem, pairs=pair(problem, each="train"))
    return record.adding({"reverse": of_decomposition(split)})


def rescaled_gap(record: Record) -> Record:
    """Record the decomposition of the same function with other weights, by kind of rescaling.

    ``as_trained`` is in double precision as well, and ``norm`` is that of the layer's weight.
    """
    subject = record.subject
    double = replace(
        subject,
        model=copy.deepcopy(subject.model).double(),
        train=(subject.train[0].double(), subject.train[1]),
        test=(subject.test[0].double(), subject.test[1]),
    ).problem()
    problems: dict[str, Problem] = {"as_trained": double}
    problems["layers"] = rescale(double, "layers", FACTORS["layers"])
    problems["units"] = rescale(double, "units", FACTORS["units"])
    numbers: Numbers = {}
    for by, problem in problems.items():
        split = _split(record, problem)
        numbers[by] = {
            **of_decomposition(split),
            "norm": split.weight_norm,
            "trace": float(split.eigenvalue.sum()),
        }
    return record.adding({"after": numbers})


def _split(record: Record, problem: Problem, **options: Any) -> Decomposition:
    own = {name: getattr(record.configuration, name) for name in ("basis", "n_sharp", "dual")}
    return duality(problem, record.numbers["layer"], **own, **options)


# --- Tsuzuku, Sato & Sugiyama --------------------------------------------------------------------


def algorithm_1(record: Record) -> Record:
    """Record normalized sharpness as in the paper: Eq. 61, clipped, and descent on variances.

    Beside it the same from the exact diagonal, ``descended``, and ``exact``, by our own solver.
    ``deviation`` is that of Eq. 61's sum from the exact one, in its standard errors.
    """
    subject = record.subject
    problem = Problem(
        copy.deepcopy(subject.model).double(),
        "normalized_cross_entropy",
        train=(subject.train[0][: subject.judged].double(), subject.train[1][: subject.judged]),
    )
    weights = {n: p.detach() for n, p in problem.model.named_parameters() if p.ndim == 2}
    exact = {name: diagonal(problem)[name].double() for name in weights}
    draws = _eq61(problem, weights)  # (draws, entries)
    flat = torch.cat([exact[name].flatten() for name in weights])
    sums = draws.sum(1)
    error = float(sums.std() / math.sqrt(len(sums)))
    sizes = [w.numel() for w in weights.values()]
    estimate = dict(zip(weights, draws.mean(0).split(sizes), strict=True))
    clipped = {name: estimate[name].view_as(w).clamp_min(0) for name, w in weights.items()}
    clean = {name: exact[name].clamp_min(0) for name in weights}
    numbers = {
        "sharpness": sum(_descended(clipped[name], w) for name, w in weights.items()),
        "descended": sum(_descended(clean[name], w) for name, w in weights.items()),
        "exact": measure(problem, ["normalized_sharpness"]).whole()["normalized_sharpness"].value,
        "deviation": float(sums.mean() - flat.sum()) / error if error else 0.0,
        "correlation": float(torch.corrcoef(torch.stack([draws.mean(0), flat]))[0, 1]),
    }
    return record.adding({"algorithm_1": numbers})


def _eq61(problem: Problem, weights: dict[str, Tensor]) -> Tensor:
    """Single draws of the paper's estimate of the Hessian's diagonal, (draws, entries)."""
    generator = torch.Generator().manual_seed(0)
    model = problem.model.eval()
    inputs, targets = problem.train.take(slice(None)).inputs, problem.train.targets
    steps = {name: _STEP * w.square().mean().sqrt() for name, w in weights.items()}

    def gradients(sign: int, noise: dict[str, Tensor]) -> list[Tensor]:
        moved = {
            name: (w + sign * steps[name] * noise[name]).requires_grad_()
            for name, w in weights.items()
        }
        outputs = torch.func.functional_call(model, moved, (inputs,))
        return list(torch.autograd.grad(problem.loss(outputs, targets).mean(), [*moved.values()]))

    draws = []
    for _ in range(_DRAWS):
        noise = {
            name: torch.randn(w.shape, generator=generator, dtype=w.dtype).to(w.device)
            for name, w in weights.items()
        }
        pairs = zip(gradients(1, noise), gradients(-1, noise), weights, strict=True)
        # Each matrix has a step of its own, as the paper says: its own curvature is divided by it.
        draws.append(
            torch.cat(
                [(noise[n] * (up - down) / (2 * steps[n])).flatten() for up, down, n in pairs]
            )
        )
    return torch.stack(draws)


def _descended(h: Tensor, W: Tensor) -> float:
    """Eq. 17 of one matrix by descent on the logarithms of its variances, as in Algorithm 1."""
    w = W.square()
    x = torch.zeros(len(w), dtype=w.dtype, requires_grad=True)
    y = torch.zeros(w.shape[1], dtype=w.dtype, requires_grad=True)
    optimizer = torch.optim.Adam([x, y], lr=_RATE)
    value = torch.tensor(math.nan)
    for _ in range(_STEPS):
        optimizer.zero_grad()
        variance = (x.unsqueeze(1) + y).exp()
        value = (h * variance + w / variance).sum()
        value.backward()
        optimizer.step()
    return float(value.detach())


# --- the league table ----------------------------------------------------------------------------


def halves(record: Record) -> Record:
    """Record loss and error on two halves of the test samples, ``first_`` and ``second_``.

    One half can choose among networks, and the other judge the choice. The samples are taken in the
    order of their classes, so that both halves have as many of each.
    """
    _, y = record.subject.test
    order = torch.argsort(y, stable=True) if y.ndim == 1 else torch.arange(len(y))
    numbers = {}
    for begin, half in enumerate(("first", "second")):
        judged = record.problem.subset(order[begin::2], "test")
        for name, row in measure(judged, ["test_loss", "test_error"]).whole().items():
            numbers[f"{half}_{name}"] = row.value
    return record.adding(numbers)


def stressed(record: Record) -> Record:
    """Record what each rescaling does to each measure, as ``lowland measures --stress`` says it."""
    moves = stress(record.problem, list(record.configuration.measures)).moves
    told = {name: {by: move.verdict for by, move in row.items()} for name, row in moves.items()}
    return record.adding({"stress": told})
