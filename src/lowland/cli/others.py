"""Verbs that other distributions bring, by entry points of the group ``lowland.verbs``."""

import functools
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Annotated

from cyclopts import Parameter

from lowland.cli.app import app
from lowland.errors import InputError

# Verbs that are not in Lowland itself, with the distribution of each.
_ELSEWHERE = {"reproduce": "lowland-studies"}

_Anything = Annotated[str, Parameter(show=False, allow_leading_hyphen=True)]


@functools.cache  # verbs join once
def join() -> None:
    """Add the verbs that are installed; one that is not says what to install."""
    verbs = {name: _missing(name, distribution) for name, distribution in _ELSEWHERE.items()}
    verbs |= {point.name: point.load() for point in entry_points(group="lowland.verbs")}
    for name, verb in verbs.items():
        app.command(verb, name=name)


def _missing(verb: str, distribution: str) -> Callable[..., None]:
    """Return a verb that says what to install."""

    def refuse(*arguments: _Anything) -> None:
        raise InputError(
            f"{verb} is in a distribution of its own: pip install {distribution} (in a clone: "
            "pip install ./studies)"
        )

    refuse.__doc__ = f"Needs the distribution {distribution}."
    return refuse
