"""The application that every verb joins, and what all verbs share."""

import os
import shlex
import sys
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from lowland import __version__

app = App(
    name="lowland",
    version=__version__,
    help="Measure, explain and picture flat minima of neural networks.",
    help_on_error=False,
    suppress_keyboard_interrupt=False,  # it would end without a word
)

Json = Annotated[bool, Parameter("--json", negative="", help="One JSON document on stdout.")]
Quiet = Annotated[bool, Parameter("--quiet", negative="", help="No progress on stderr.")]


def typed() -> str:
    """The command as it was typed, for the record."""
    return shlex.join(["lowland", *sys.argv[1:]])


def home(path: Path) -> Path:
    """The path with a ``~`` that the shell left, as in ``--out=~/result``."""
    return Path(os.path.expanduser(path))
