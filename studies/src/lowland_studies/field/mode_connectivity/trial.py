"""Two networks trained on the same data, and what lies on the ways between them."""

from dataclasses import replace
from typing import Any

from torch import nn

from lowland.experiment.configuration import Configuration
from lowland.experiment.subject import Subject
from lowland.findings import Path
from lowland.landscape import path
from lowland.problem import Problem
from lowland.training import train, train_many

_STEPS = 25  # points along each way
_NEVER = 1e-12  # a training loss that is not reached


def trial(settings: dict[str, Any], seed: int) -> dict[str, Any]:
    """Barriers and errors on the straight line, the line after alignment, and a Bezier curve.

    ``iterations`` are those of the curve's training; for the others see :func:`trained_pair`.
    """
    own = dict(settings)
    iterations = own.pop("iterations")
    problem, ends, converged = trained_pair(own, seed)
    curved = path(problem, *ends, _STEPS, iterations=iterations, seed=seed)
    aligned = path(problem, *ends, _STEPS, alignment=True, renormalize=True, curve=False, seed=seed)
    return {"converged": converged, **ways(curved, aligned)}


def trained_pair(
    settings: dict[str, Any], seed: int
) -> tuple[Problem, tuple[nn.Module, nn.Module], bool]:
    """Two trained networks with the problem that both solve, and whether both reached the goal.

    ``settings`` are those of a configuration but for two: the network has three hidden layers of
    ``width`` units, and shares ``common`` epochs with the other one, after which each sees the data
    in an order of its own. Where ``common`` is None, each begins with weights of its own as well.
    """
    own = dict(settings)
    width, common, inputs = own.pop("width"), own.pop("common"), own.pop("inputs")
    first, second = (
        Subject.of(
            Configuration(**own, network=f"{inputs}-{width}-{width}-{width}-10", seed=number)
        )
        for number in (2 * seed, 2 * seed + 1)
    )
    if common is not None:
        if common:
            begin = replace(first.settings, max_epochs=common, stop_loss=_NEVER)
            train(first.model, first.train, begin, loss=first.loss)
        second.model.load_state_dict(first.model.state_dict())
    # Orders of the data that the common epochs did not have.
    orders = [replace(s.settings, seed=s.settings.seed + 10**6) for s in (first, second)]
    trainings = train_many([first.model, second.model], first.train, orders, loss=first.loss)
    converged = all(training.converged for training in trainings)
    return first.problem(), (first.model, second.model), converged


def ways(curved: Path, aligned: Path) -> dict[str, Any]:
    """The numbers and losses of every way of two paths between the same networks."""
    routes = {**aligned.routes, **curved.routes}
    numbers: dict[str, Any] = {
        "distance": curved.distance,
        "aligned_distance": aligned.aligned_distance,
        "curve_length": routes["curve"].length,
    }
    for name, route in routes.items():
        assert route.train_error is not None
        assert route.test_error is not None
        ends = (route.test_error[0] + route.test_error[-1]) / 2
        numbers |= {
            f"{name}_barrier": route.barrier,
            f"{name}_train_error": route.train_error.max(),
            f"{name}_test_error_rise": route.test_error.max() - ends,
            name: route.train,
        }
    return numbers
