"""Verbs that other distributions bring, by entry points of the group ``lowland.verbs``."""

import functools
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Annotated

from cyclopts import Parameter

from lowland.cli.app import app
from lowland.errors import InputError
from lowland.usercode import described

# Verbs that are not in Lowland itself, with the distribution of each.
_ELSEWHERE = {"reproduce": "lowland-studies"}

_Anything = Annotated[str, Parameter(show=False, allow_leading_hyphen=True)]


@functools.cache  # verbs join once
def join() -> None:
    """Add the verbs that are installed; one that is not says what to install."""
    verbs = {
        name: _refusing(
            f"{name} is in a distribution of its own: pip install {distribution} (in a clone: "
            "pip install ./studies)",
            f"Needs the distribution {distribution}.",
        )
        for name, distribution in _ELSEWHERE.items()
    }
    for point in entry_points(group="lowland.verbs"):
        try:
            verbs[point.name] = point.load()
        except Exception as error:  # the other verbs do not depend on it
            verbs[point.name] = _refusing(
                f"{point.name} cannot be loaded from {point.value}: {described(error)}; install "
                "its distribution again",
                "Cannot be loaded.",
            )
    for name, verb in verbs.items():
        app.command(verb, name=name)


def _refusing(reason: str, help_text: str) -> Callable[..., None]:
    """Return a verb that only says why it cannot be had."""

    def refuse(*arguments: _Anything) -> None:
        raise InputError(reason)

    refuse.__doc__ = help_text
    return refuse
