"""One run on disk: a directory of files, with a list of their checksums."""

import contextlib
import json
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from lowland.errors import InputError
from lowland.manifest import Damaged, check_files, read_checked, read_sums, readable

RUN = "run.json"


def damage_of(folder: Path) -> str | None:
    """What is wrong with a run, or None if it is whole."""
    try:
        read_run(folder)
        check_files(folder)
    except Damaged as damage:
        return str(damage)
    return None


@contextlib.contextmanager
def undamaged(folder: Path) -> Iterator[None]:
    """Turn damage of a run into one line that the user can act on."""
    try:
        yield
    except Damaged as damage:
        raise InputError(
            f"the run {folder} is damaged: {damage}; start its sweep again, which does the run "
            "again"
        ) from damage


def read_run(folder: Path) -> dict[str, Any]:
    """The document of a run, checked against its checksum."""
    with readable(folder):
        (folder / RUN).stat()  # of all that a run can lack, this is named first
    content = read_checked(folder, RUN, read_sums(folder).get(RUN))
    try:
        run = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise Damaged(f"{RUN} is no JSON: {error}") from error
    if not isinstance(run, dict) or run.get("key") != folder.name:
        raise Damaged(f"{RUN} belongs to another run")
    parts = {name: run.get(name) or {} for name in ("configuration", "results", "code")}
    if not (all(isinstance(part, dict) for part in parts.values()) and _names_code(**parts)):
        raise Damaged(f"{RUN} is not a document that Lowland wrote")
    return run


def _names_code(configuration: Any, code: Any, **others: Any) -> bool:
    """Whether the source of the user is noted for settings that name a function."""
    users = code.get("users") or {}
    return isinstance(users, dict) and all(
        isinstance(configuration.get(name), str) and isinstance(digest, str)
        for name, digest in users.items()
    )


def as_text(document: Mapping[str, Any]) -> str:
    """The document as JSON; numbers that are not finite become null, as JSON has none."""
    finite = with_floats(document, lambda x: x if math.isfinite(x) else None)
    return json.dumps(finite, indent=1, allow_nan=False) + "\n"


def with_floats(value: Any, change: Callable[[float], Any]) -> Any:
    """The same value in plain dictionaries and lists, with ``change`` applied to every float."""
    if isinstance(value, Mapping):
        for name in value:
            if not isinstance(name, str):
                raise TypeError(f"{name!r} as a name is {type(name).__name__}")
        return {name: with_floats(inner, change) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [with_floats(inner, change) for inner in value]
    return change(value) if isinstance(value, float) else value
