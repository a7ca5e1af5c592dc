"""What several measures need is computed once, while they are computed together."""

import contextlib
import functools
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeVar

from lowland.budget import DERIVATIVES, Work

if TYPE_CHECKING:
    from lowland.problem import Problem

Cost = Work | Callable[["Problem"], Work]
FREE = Work()  # weights are read, and at most a few samples


def work_of(cost: Cost, problem: "Problem") -> Work:
    """What something of this cost takes on a problem."""
    if isinstance(cost, Work):
        return cost
    try:
        return cost(problem)
    except Exception:  # what fails here fails when it is computed, and says so there
        return FREE


def differentiates(work: Work, problem: "Problem") -> bool:
    """Return whether work, or what it needs, takes derivatives."""
    if any(getattr(work, unit) for unit in DERIVATIVES):
        return True
    needed = (work_of(shared.cost, problem) for shared in work.needs)  # type: ignore[attr-defined]
    return any(differentiates(each, problem) for each in needed)


def on_test(passes: Work) -> Callable[["Problem"], Work]:
    """Passes over the test data, as the share of those over the training data that they are."""

    def cost(problem: "Problem") -> Work:
        return passes.times(problem.count("test") / problem.count())

    return cost


T = TypeVar("T")
# By function and problem: another model, loss or data set is another problem.
_SHARED: ContextVar["dict[tuple[Callable[..., Any], Problem], Any] | None"] = ContextVar(
    "shared", default=None
)


def once(
    cost: Cost = FREE, *, any_loss: bool = False
) -> Callable[[Callable[["Problem"], T]], Callable[["Problem"], T]]:
    """Make a function of a problem compute its value once within :func:`sharing`.

    ``cost`` is what that takes; a plan counts it once for all measures that name the function under
    ``needs``. With ``any_loss`` the value serves every loss that the problem is measured with: it
    is that of the problem before :meth:`Problem.with_loss`.
    """

    def decorate(function: Callable[["Problem"], T]) -> Callable[["Problem"], T]:
        @functools.wraps(function)
        def shared(problem: "Problem") -> T:
            problem = problem.base if any_loss else problem
            values = _SHARED.get()
            if values is None:
                return function(problem)
            if (shared, problem) not in values:
                values[shared, problem] = function(problem)
            return values[shared, problem]

        shared.cost, shared.any_loss = cost, any_loss  # type: ignore[attr-defined]
        return shared

    return decorate


@contextlib.contextmanager
def sharing() -> Iterator[None]:
    """Keep what functions under :func:`once` return until the end of the outermost block."""
    if _SHARED.get() is not None:
        yield
        return
    token = _SHARED.set({})
    try:
        yield
    finally:
        _SHARED.reset(token)


def share(function: Callable[["Problem"], T], problem: "Problem", value: T) -> None:
    """Within :func:`sharing`, let a function under :func:`once` return a value known already."""
    values = _SHARED.get()
    assert values is not None
    values[function, problem] = value


def computed(function: Callable[["Problem"], T]) -> "dict[Problem, T]":
    """Within :func:`sharing`, what a function under :func:`once` has returned so far."""
    values = _SHARED.get() or {}
    return {problem: value for (which, problem), value in values.items() if which is function}
