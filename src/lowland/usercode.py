"""The user's own functions: finding them, calling them, and telling their errors from ours."""

import importlib
import os
import re
import sys
import traceback
from pathlib import Path
from typing import Any

from lowland.errors import InputError
from lowland.wording import suggestion

# Whose frames at the end of a traceback do not make an error the user's.
_NOT_USERS = {"lowland", "torch", "numpy", "scipy", "safetensors", "cyclopts", "rich", "pandas"}

# What torch puts before the traceback, as text, of an error in a worker process of a loader.
_RELAYED = "\nOriginal Traceback (most recent call last):\n"


def loss_named(name: str, option: str) -> Any:
    """A loss by its name, or the user's own from ``pkg.module:name``; a class is instantiated."""
    if ":" not in name:
        return name
    loss = imported(name, option)
    return called(name, option) if isinstance(loss, type) else loss  # torch.nn:MSELoss


def imported(path: str, option: str) -> Any:
    """The object at ``pkg.module:name``, from the current directory or anything installed."""
    module_name, _, name = path.partition(":")
    if not module_name or not name:
        raise InputError(f"{option} must be pkg.module:name; got {path!r}")
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        target: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise InputError(f"{option} {path}: importing {module_name} failed: {error}") from error
        hint = ""
        if module_name.endswith(".py") or "/" in module_name:
            dotted = ".".join(Path(module_name).with_suffix("").parts)
            hint = f"; write it as an import: {dotted}:{name}"
        raise InputError(
            f"{option} {path}: there is no module {error.name!r} in {here} or installed{hint}"
        ) from error
    except (Exception, SystemExit) as error:
        raise InputError(
            f"{option} {path}: importing {module_name} raised {located(error)}"
        ) from error
    for part in name.split("."):
        if not hasattr(target, part):
            hint = suggestion(part, dir(target)) or "name a function in it"
            raise InputError(f"{option} {path}: {module_name} has no {name!r}; {hint}")
        target = getattr(target, part)
    return target


def called(path: str, option: str, *args: Any) -> Any:
    """What the factory at ``pkg.module:name`` returns, for these arguments."""
    factory = imported(path, option)
    if not callable(factory):
        wanted = f"of {len(args)} arguments" if args else "without arguments"
        raise InputError(
            f"{option} {path} is {type(factory).__name__}; expected a function {wanted}"
        )
    try:
        return factory(*args)
    except InputError:
        raise
    except (Exception, SystemExit) as error:
        raise InputError(f"{option} {path} raised {located(error)}") from error


def described(error: BaseException) -> str:
    """The error's type and text, and for an exit why that is one."""
    if isinstance(error, SystemExit):
        return (
            f"SystemExit({error.code!r}): it ended the program; put what only a script should do "
            "under if __name__ == '__main__'"
        )
    if _RELAYED in str(error):
        return str(error).strip().split("\n")[-1]
    return ": ".join(filter(None, [type(error).__name__, str(error)]))


def blame(error: BaseException) -> str | None:
    """Where the user's own code raised the error, or None if it came from ours."""
    if _RELAYED in str(error):
        *_, (file, line, name) = re.findall(r'File "(.+)", line (\d+), in (\S+)', str(error))
        return f"{Path(file).name}, line {line}, in {name}"
    frames = [
        (str(frame.f_globals.get("__name__", "")).split(".")[0], frame, line)
        for frame, line in traceback.walk_tb(error.__traceback__)
    ]
    last = max((i for i, (room, *_) in enumerate(frames) if room == "lowland"), default=-1)
    users = [
        f"{Path(frame.f_code.co_filename).name}, line {line}, in {frame.f_code.co_name}"
        for room, frame, line in frames[last + 1 :]
        if room not in _NOT_USERS and room not in sys.stdlib_module_names
    ]
    return users[-1] if users else None


def located(error: BaseException) -> str:
    """What an error says, and where the user's own code raised it."""
    return f"{described(error)}{_place(error)}"


def _place(error: BaseException) -> str:
    where = blame(error)
    return f" ({where})" if where else ""
