"""What a command owes its terminal: stdout for results alone, everything else on stderr."""

import contextlib
import io
import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TextIO

from lowland.budget import Stage, in_words
from lowland.errors import InputError
from lowland.wording import printable

if TYPE_CHECKING:
    from rich.console import Console

WIDTH = 80  # also on a wider terminal: lines of text beyond it are hard to read

SILENCE = 5.0  # seconds between lines of progress, and of a stage that deserves one of its own

interrupts: list[int] = []  # the signals that came, also those whose exception was swallowed

Say = Callable[[str], None]


def complain(text: str) -> None:
    """Write a line on stderr; nothing happens where it cannot be written."""
    with contextlib.suppress(OSError):
        print(f"lowland: {printable(text)}", file=sys.stderr, flush=True)


def console(**options: Any) -> "Console":
    """Return a rich console on which no text, whoever wrote it, is a command to the terminal."""
    from rich.console import Console
    from rich.segment import Segment

    class Plain(Console):
        def render(self, *given: Any, **more: Any) -> Iterator[Segment]:
            """Render what is given, with control characters only where rich itself has them."""
            for segment in super().render(*given, **more):
                if segment.control is None:
                    segment = segment._replace(text=printable(segment.text))
                yield segment

    return Plain(**options)


class Results:
    """The process's stdout, taken away from everybody else.

    From here on a ``print`` of the user's code, of a subprocess or of a C library goes to stderr,
    until the process ends: ``--json`` promises one document on stdout.
    """

    def __init__(self) -> None:
        sys.stdout.flush()
        try:
            taken = os.dup(sys.stdout.fileno())
            os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        except (OSError, io.UnsupportedOperation):  # no file behind it, as in a notebook
            self._stream: TextIO = sys.stdout
        else:
            # A character that the terminal's encoding lacks is no reason to fail.
            encoding = sys.stdout.encoding
            self._stream = open(taken, "w", encoding=encoding, errors="replace")  # noqa: SIM115
        sys.stdout = sys.stderr

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._stream.close()

    def json(self, document: Any) -> None:
        """Write one JSON document."""
        self._write(json.dumps(document, allow_nan=False) + "\n")

    def text(self, draw: Callable[["Console"], None]) -> None:
        """Write what ``draw`` puts on a console of at most 80 columns."""
        outside = console(file=self._stream)
        drawn = io.StringIO()
        inside = console(
            file=drawn,
            width=min(WIDTH, outside.width),
            force_terminal=outside.is_terminal,
            color_system=outside.color_system,
            highlight=False,
        )
        draw(inside)
        text = "".join(f"{line.rstrip()}\n" for line in drawn.getvalue().splitlines())
        if not _encodes(self._stream.encoding, "±"):
            text = text.replace("±", "+-")
        self._write(text)

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except BrokenPipeError:  # `lowland measures | head -1`: the reader has what it wanted
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())
        except OSError as error:
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())
            raise InputError(f"cannot write to stdout: {error.strerror}") from error


@contextlib.contextmanager
def progress(quiet: bool) -> Iterator[Say]:
    """Tell stages on stderr: a bar with the time left or, where there is no terminal, lines."""
    if quiet:
        yield lambda stage: _go_on()
        return
    screen = console(stderr=True)
    if not screen.is_terminal:
        yield _lines()
        return
    from lowland.cli.bar import bar

    with bar(screen) as draw:

        def drawn(stage: str) -> None:
            _go_on()
            draw(stage)

        yield drawn


def _lines() -> Say:
    """One line for each kind of stage and for each that takes long, and some in between."""
    kind_told, time_told = "", -math.inf

    def tell(stage: str) -> None:
        nonlocal kind_told, time_told
        _go_on()
        now, kind = time.monotonic(), stage.split(": ")[0]
        if isinstance(stage, Stage) and stage.lasting:
            complain(stage)
            return
        takes = getattr(stage, "takes", None) or 0.0
        if kind == kind_told and takes < SILENCE and now - time_told < SILENCE:
            return
        done, left = getattr(stage, "done", None), getattr(stage, "left", None)
        shown = kind
        if done is not None and left is not None:
            shown = f"{stage} ({done:.0%} done, about {in_words(left)} left)"
        elif kind == kind_told:
            shown = stage
        kind_told, time_told = kind, now
        complain(shown)

    return tell


@contextlib.contextmanager
def fate_of(path: Path, what: str) -> Iterator[None]:
    """Make an interrupt say whether ``what`` was written to ``path`` before it came."""
    before = _identity(path)
    try:
        yield
    except KeyboardInterrupt:
        if _identity(path) == before:
            raise
        raise KeyboardInterrupt(f"{what} was already written, whole, to {path}") from None


def _go_on() -> None:
    """Stop here if an interrupt came whose exception some library swallowed."""
    if interrupts:
        raise KeyboardInterrupt


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _encodes(encoding: str, text: str) -> bool:
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return False
    return True
