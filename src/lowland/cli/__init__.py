"""The command line: thin verbs over the library. torch is imported only by verbs that compute."""

import os
import signal
import sys
from types import FrameType
from typing import NoReturn

from lowland.cli import terminal
from lowland.cli.interrupting import listening, noticed
from lowland.errors import InputError
from lowland.usercode import blame, described


def main() -> None:
    """Run the command line; a user's mistake is one line on stderr and exit code 2."""
    ours = [
        number
        for name in ("SIGINT", "SIGTERM", "SIGHUP")
        if (number := getattr(signal, name, None))
        and signal.getsignal(number) is not signal.SIG_IGN  # as nohup wants it
    ]
    try:
        for number in ours:
            signal.signal(number, _interrupt)
        with listening(set(ours)):
            _run()
    except BaseException as error:
        for number in ours:
            signal.signal(number, signal.SIG_IGN)  # what follows is one line: let it be said
        _explain(error)
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)  # an interrupt from now on has nothing to undo


def _run() -> None:
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the shell: `lowland ... >&-`
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
    # Late: an interrupt while this is imported is one, too.
    from cyclopts import CycloptsError

    from lowland.cli import making, picturing, verbs  # noqa: F401  (they join the app)
    from lowland.cli.app import app
    from lowland.cli.others import join

    join()

    try:
        app(sys.argv[1:], exit_on_error=False, print_error=False)
    except CycloptsError as error:
        verb = next((a for a in sys.argv[1:2] if a in app), "")
        ask = " ".join(f"lowland {verb} --help".split())
        raise InputError(f"{str(error).rstrip('.')}; see {ask}") from error


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    terminal.interrupts.append(number)
    noticed()
    raise KeyboardInterrupt


def _explain(error: BaseException) -> NoReturn:
    """End with the exit code and the one line that the error deserves."""
    if isinstance(error, SystemExit) and blame(error) is None:
        raise error
    # C++ code that is interrupted while it is imported turns the interrupt into other errors.
    if isinstance(error, KeyboardInterrupt) or terminal.interrupts:
        fate = str(error) if isinstance(error, KeyboardInterrupt) else ""
        _end(f"stopped; {fate or 'nothing was written'}", 128 + (terminal.interrupts or [2])[0])
    if isinstance(error, InputError):
        _end(str(error), 2)
    culprit = blame(error)
    if culprit is None:
        raise error  # a defect of Lowland: its traceback is what a bug report needs
    _end(f"{culprit} raised {described(error)}; mend it, or hand over what it expects", 2)


def _end(message: str, code: int) -> NoReturn:
    line = " ".join(message.split())
    terminal.complain(line)
    sys.exit(code)
