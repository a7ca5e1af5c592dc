"""What several measures need is computed once, while they are computed together."""

import contextlib
import functools
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from lowland.problem import Problem

T = TypeVar("T")
# By function and problem: another model, loss or data set is another problem.
_SHARED: ContextVar["dict[tuple[Callable[..., Any], Problem], Any] | None"] = ContextVar(
    "shared", default=None
)


def once(function: Callable[["Problem"], T]) -> Callable[["Problem"], T]:
    """Make a function of a problem compute its value once within :func:`sharing`."""

    @functools.wraps(function)
    def shared(problem: "Problem") -> T:
        values = _SHARED.get()
        if values is None:
            return function(problem)
        if (shared, problem) not in values:
            values[shared, problem] = function(problem)
        return values[shared, problem]

    return shared


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
